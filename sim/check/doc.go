// Package check judges recorded histories of an etcd-compatible store: is what the clients saw
// possible for one store whose revisions are dense and whose answers are linearizable?
//
// It knows the etcd v3 API and nothing of any implementation; the same checks serve the
// simulation (virtual time) and real processes (wall time). Everything is a function of the history.
//
// # How it judges
//
// The caller hands over what the clients did (History.Ops) and what the store holds at the end
// (History.Events, each change with its revision). From the events follows the state at every
// revision. Then each answered request is replayed at the revision its header names: a write on the
// state just below, where it must have made exactly the events of its revision; a read on the state
// of that revision. Since a revision is a point in the one order, linearizability comes down to
// comparing revisions with real time:
//
//   - a write's revision is above every revision that was answered before the write was sent;
//   - a linearizable read's revision is not below any that was answered before the read was sent;
//   - a serializable read's is not below any that the same process answered before.
//
// A revision that no answered write explains must be the work of an ambiguous one (sent, outcome
// unknown): the revisions left over are matched with the ambiguous writes, each used at most once. A write
// that was refused must have left nothing.
//
// When no events are at hand, Recover finds an order with porcupine first; that is a search, good for
// short histories only.
//
// Each kind of broken guarantee has a Name, so that a test of the store can demand the one it provoked.
package check
