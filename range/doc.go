// Package ranges is one replica of a range: it evaluates what clients ask, numbers the writes, has them
// replicated, and applies them at the revisions that the order log gives them. (The folder is called
// range, which no package can be called.)
//
// # Map
//
//	Request ──> latch.Set ──> eval ──> payload ──> Host.Propose ──────────────┐
//	              (wait)     (applied state                          raft log of the range
//	                          + overlay)                                      │
//	Items ──> queue ──────────────────────────┐                               v
//	                                          v      window: payloads by seq, prepares
//	answer <── commit <── one data batch <── apply <──────────────────────────┘
//	                                          (Host.Progress: "committed through seq s")
//
// A Replica has no goroutines, clock or I/O of its own beyond the data engine: its methods are called by the worker of
// its Raft group, one at a time. Only Frontier and FlushMark may be used by anybody.
//
// # State
//
// Durable, under r/<range>/ in the data engine, always changed in the same batch as the versions they speak of:
//
//   - the cursor: ordered index and term (the last log entry of which everything is ordered and applied), the last seq applied (it
//     may lie inside the next entry), the frontier (position of the last item applied), compaction progress;
//   - the configuration in force, with its index;
//   - the prepared set: transactions whose Prepare the ordered cursor has passed and which are not decided;
//   - the decision memory: what the order log decided about transactions whose Prepare may still come.
//
// Volatile, on every replica: the window of log entries above the ordered cursor, as Raft delivered them, with the payload of
// each seq (slices of the entries' data, never copied), and the queue of items above the frontier.
//
// Volatile, only on a leader: latches, the overlay (writes of this term that are not applied, by key), locks, the requests which wait
// or are in flight.
//
// # One apply batch
//
// Flush applies, in one data batch, every item at the head of the queue whose payloads are all delivered: for each seq that is not
// void, its versions, event and lease entries; for each commit, the prepared writes; then what became of prepares that
// the ordered cursor passed, and the cursor. A position is applied wholly or not at all (O3). After the batch is committed to the engine the frontier is published and
// the clients are answered (O4). The engine has no write-ahead log: after a crash the state is that of some earlier batch, and the
// same items and entries come again.
//
// # Restart
//
// New loads what is durable and tells Raft to deliver again from the entry behind the ordered cursor on (StartInfo). The first such entry may hold seqs that
// are applied already: they are skipped. The order machine dispatches its stored items again: those at or below the frontier are ignored.
// Prepares above the cursor come again with the log, and meet the decision memory.
//
// # Change of leader
//
// A new leader numbers and evaluates nothing until an entry of its own term is delivered and the ordered cursor has passed
// it (O5). Then the next seq is the one behind the last delivered, the overlay is empty because nothing is unordered, and the latches are exactly those of
// the undecided prepares. It reports what is committed from the moment it leads.
//
// A leader that loses its office answers what waits (certainly not done) and keeps what is in flight, without latches: a seq that is delivered with
// the term it was proposed in is answered when it is applied; once anything of a later term is delivered, what has not come will never
// come (terms in a log never fall) and is answered "not leader"; what is still open at its time-out is ambiguous (O6).
//
// # What it does not do
//
// It does not read for clients (reads ask no leader), does not retry writes, does not split, merge or move.
package ranges
