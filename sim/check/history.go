package check

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Outcome is what a client knows about a request when it is over.
type Outcome int

const (
	// OK: answered; Op.Response holds the answer.
	OK Outcome = iota
	// Ambiguous: it may take effect at any time after Op.Invoke, even after the client gave up, or never. A request that
	// is still open when the history ends is ambiguous.
	Ambiguous
	// Failed: refused, and certainly without effect.
	Failed
)

// String names the outcome.
func (o Outcome) String() string {
	switch o {
	case OK:
		return "ok"
	case Ambiguous:
		return "ambiguous"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("outcome(%d)", int(o))
}

// Refusal is a reason to refuse that depends on the store's state, and so can be judged.
type Refusal int

const (
	// NotJudged is any other reason.
	NotJudged Refusal = iota
	// Compacted: the revision asked for is gone.
	Compacted
	// FutureRevision: the revision asked for does not exist yet.
	FutureRevision
	// KeyNotFound: ignore_value or ignore_lease on a key that does not exist.
	KeyNotFound
)

// String names the refusal.
func (r Refusal) String() string {
	switch r {
	case Compacted:
		return "compacted"
	case FutureRevision:
		return "future revision"
	case KeyNotFound:
		return "key not found"
	}
	return "other"
}

// Op is one request of one client.
type Op struct {
	Client int
	// Node names the process that answered, "" if that is not known for certain. A restarted process has a new
	// name: its serializable reads may start lower.
	Node string
	// Invoke and Return are times of one clock; the unit does not matter. Two requests of which one returned
	// in the very unit in which the other was sent count as concurrent. Return means nothing if Outcome is Ambiguous.
	Invoke, Return int64
	// Request is a *etcdserverpb.PutRequest, DeleteRangeRequest, TxnRequest, RangeRequest or CompactionRequest.
	// A RangeStream is recorded as a RangeRequest with the chunks put together.
	Request any
	// Response is etcd's answer to that request if Outcome is OK, else nil.
	Response any
	Outcome  Outcome
	// Refusal says more if Outcome is Failed.
	Refusal Refusal
}

// Event is one change of one key, as the store holds it at the end.
type Event struct {
	Revision int64
	// Sub is the place within the revision, from 0; -1 if the caller cannot know.
	Sub    int64
	Key    string
	Delete bool
	// The rest is zero for a deletion.
	Value string
	Lease int64
	// Create and Version are checked if they are not 0.
	Create, Version int64
}

// String is one line for a report.
func (e Event) String() string {
	if e.Delete {
		return fmt.Sprintf("%d: delete %q", e.Revision, e.Key)
	}
	return fmt.Sprintf("%d: put %q=%q", e.Revision, e.Key, clip(e.Value, 40))
}

// History is everything that Check needs.
type History struct {
	// Base is the store's revision before the first request (1 for a fresh store), Initial the keys
	// that were there and Compacted the revision of the last compaction before.
	Base      int64
	Initial   []*mvccpb.KeyValue
	Compacted int64
	Ops       []Op
	// Events are all changes above Base up to and including Final, which is the store's revision when they
	// were read: after every request had returned or been given up. Their order does not matter.
	Events []Event
	Final  int64
	// MaxFaults bounds the report; 0 means 20.
	MaxFaults int
}

// Name names a broken guarantee.
type Name string

// The guarantees, by the name of the fault that breaks them.
const (
	// BadHistory: the recording itself is at fault, such as an unknown type of request.
	BadHistory Name = "bad-history"
	// RevisionGap: between Base and Final there is a revision without an event.
	RevisionGap Name = "revision-gap"
	// BadEvents: the events contradict each other: outside (Base, Final], one key twice in one revision, a deletion of
	// a key that did not exist, a create revision or version that does not follow from the events below.
	BadEvents Name = "bad-events"
	// DuplicateRevision: two answered writes with one revision.
	DuplicateRevision Name = "duplicate-revision"
	// LostRevision: an answer names a revision that the final history does not reach.
	LostRevision Name = "lost-revision"
	// LostWrite: an answered write has none of its changes at its revision.
	LostWrite Name = "lost-write"
	// TornWrite: only some of its changes are at its revision.
	TornWrite Name = "torn-write"
	// WrongEffect: its changes are not what the request does to the state below its revision.
	WrongEffect Name = "wrong-effect"
	// WrongSub: its changes are in another order within the revision.
	WrongSub Name = "wrong-sub"
	// WrongAnswer: a write's answer does not fit the state below its revision.
	WrongAnswer Name = "wrong-answer"
	// WrongRead: a read's answer does not fit the state at its revision.
	WrongRead Name = "wrong-read"
	// StaleRead: a linearizable read, or a write without effect, is older than something answered before it was sent.
	StaleRead Name = "stale-read"
	// RealTimeOrder: a write's revision is not above everything answered before it was sent.
	RealTimeOrder Name = "real-time-order"
	// NodeWentBack: a serializable read is older than something the same process answered before it was sent.
	NodeWentBack Name = "node-went-back"
	// PhantomWrite: a revision that no request explains.
	PhantomWrite Name = "phantom-write"
	// FailedWriteApplied: a revision that only a refused write explains.
	FailedWriteApplied Name = "failed-write-applied"
	// AppliedTwice: a revision that only a write explains which already has another revision.
	AppliedTwice Name = "applied-twice"
	// ReadBelowCompaction: an answer from below a compaction that was over before the read was sent.
	ReadBelowCompaction Name = "read-below-compaction"
	// WrongRefusal: a refusal that no state within the request's time justifies.
	WrongRefusal Name = "wrong-refusal"
	// NodesDiffer: two nodes hold different histories.
	NodesDiffer Name = "nodes-differ"
)

// Fault is one broken guarantee.
type Fault struct {
	Name Name
	// Op is an index of History.Ops, or -1.
	Op int
	// Revision is where it shows, or 0.
	Revision int64
	Text     string
}

// String is one line for a report.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(string(f.Name))
	if f.Revision != 0 {
		fmt.Fprintf(&b, " at revision %d", f.Revision)
	}
	if f.Op >= 0 {
		fmt.Fprintf(&b, " (request %d)", f.Op)
	}
	b.WriteString(": " + f.Text)
	return b.String()
}

// Report is a verdict, with figures that show how much it is worth.
type Report struct {
	Faults []Fault
	// More is the number of faults beyond History.MaxFaults.
	More int
	// Writes, Reads and Refused count answered writes with effect, other answered requests, and refusals.
	Writes, Reads, Refused int
	// Ambiguous counts writes of unknown outcome, Happened those of them that explain a revision.
	Ambiguous, Happened int
	// Revisions is the length of the final history.
	Revisions int64
}

// Err is nil for a clean report, else an error that lists the faults.
func (r *Report) Err() error {
	if len(r.Faults) == 0 {
		return nil
	}
	lines := make([]string, 0, len(r.Faults)+1)
	for _, f := range r.Faults {
		lines = append(lines, f.String())
	}
	if r.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", r.More))
	}
	return fmt.Errorf("the history breaks %d guarantees:\n  %s", len(r.Faults)+r.More, strings.Join(lines, "\n  "))
}

// Has tells whether a fault of that name was found.
func (r *Report) Has(n Name) bool {
	for _, f := range r.Faults {
		if f.Name == n {
			return true
		}
	}
	return false
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}
