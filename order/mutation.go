package order

// Mutation switches single rules off, so that a simulation can show that it finds out. Zero is right.
type Mutation uint

// The rules that can be switched off.
const (
	// ReportOnce: a report says only what is new since the last one, and is never repeated.
	ReportOnce Mutation = 1 << iota
	// NoVoid: a cut gives every seq a revision.
	NoVoid
	// ThinRuns: a cut carries the leases and stamps only of the seqs that it adds to the cuts in flight.
	ThinRuns
	// AcceptGap: the order leader takes reports whose base it has not got. Shows together with ReportOnce.
	AcceptGap
	// CommitAfterAbort: a commit overrides an earlier abort.
	CommitAfterAbort
	// reportUncommitted is for the harness of this package's tests: ranges report what is only appended (breaks O1).
	reportUncommitted
)

func (m Mutation) has(x Mutation) bool { return m&x != 0 }
