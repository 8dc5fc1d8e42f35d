// Package order is the order group's state machine: it turns the order log into revisions, and on the leader it
// builds the log's entries.
//
// # Map
//
//	State    what applying the order log amounts to; a pure function of the log (O2)
//	View     an immutable picture of it, published after each batch, with Routing
//	Machine  the actor of group 0 on each node: applies, publishes, reports, reads, proposes
//	reporter what the ranges led here have committed and no applied cut covers
//	cutter   on the leader: what all reports of this term cover, from which it builds cuts
//
// The path of a write: the range's leader sends Progress to the Machine of its node; at the end of the same pass this
// sends one Report to the order leader (or takes it itself), which proposes a cut in the pass in which the report arrived, unless
// MaxInflight entries are on their way already. Every node applies the cut, commits it to the data
// engine, dispatches the items to the replicas it has, and only then publishes the new position.
//
// # Guarantees
//
//   - O1: a cut covers only committed seqs: reports say what is committed, and a cut only what reports say.
//   - O2: revisions are dense and a function of the log: State.Apply looks at nothing else.
//   - What is committed is ordered in the end: a report is repeated, also to a new leader, until the reporter has applied a
//     cut that covers it. No timer is involved unless a message is lost.
//   - The batch that applies an entry is committed to the data engine before any of its items is dispatched, and
//     the items are dispatched before the position is published. So whoever sees a position published can ask a replica's
//     frontier whether it has passed it.
//
// # What the caller must do
//
//  1. New loads the state from the data engine and says where the log goes on (StartInfo).
//  2. Start, on the group's worker, before any other method: ranges are created, stored items dispatched.
//  3. Then the methods that mirror raftgroup.Machine, one at a time on the group's worker.
//
// View, WaitApplied and RevisionAt may be called by anybody at any time.
//
// # What it does not do
//
// It starts no goroutines and reads no clock; time is Tick. It does not see keys or values. It has no leases yet: every
// lease counts as gone (State.leaseGone), so a write that names one is void.
package order
