// Package raftgroup runs any number of Raft groups on one node without knowing what they
// replicate.
//
// # Map
//
// Each group has a Machine, which holds the replicated state, and a Group, the machine's handle on
// Raft. Groups are spread over a few workers by ID; everything that concerns one group (stepping Raft,
// the machine's methods, reading the log) happens on its worker, one call at a time, so neither Group nor
// Machine needs a lock. Other goroutines put things into the group's inbox and wake the worker:
//
//	Enqueue (events) ─┐                       ┌─> Sender (messages to other nodes)
//	Receive (letters) ┼─> inbox ─> Pump ──────┼─> raftlog (appends) ─> durable ─┐
//	Tick, PeerUp/Down ┘      ^                └─> Machine                       │
//	                         └──────────────────────────────────────────────────┘
//
// One pass over a group: what the log has made durable and what came from other replicas is stepped into
// Raft; then Machine.Handle gets the events, Machine.Tick a tick if there was one; then Raft's Ready is
// worked off: messages out, appends to the log. When this is done for all groups that wait, the appends start on their way to the
// disk, and committed entries go to Machine.Deliver; Machine.Flush ends the pass. Messages to followers leave before the
// leader's own append is written, and no append waits for a machine that applies.
//
// # Guarantees
//
//   - R1: a machine gets every committed entry above GroupConfig.Applied exactly once per life of the
//     process, in ascending order and without gaps, or a Restore that covers it; a Restore never goes back. Entry 1 is made
//     up: it stands for the configuration that the group starts with (see raftlog.BirthIndex).
//   - R2: a Role is reported before any entry of that role's term is delivered and before any
//     event is handled in it; so what a machine proposes under a role is appended in that role's term or not at
//     all.
//   - R3: nothing that another node relies on (vote, term, acknowledged entry) leaves before it is durable.
//   - R4: proposals are never forwarded: Propose returns nil only if this replica leads and has appended.
//
// # Time
//
// Time is Tick calls. Election time-outs are random between one and two times ElectionTicks (drawn by the Raft library).
//
// # Goroutines
//
// None, except in Run: one per worker (owns its groups; woken by inboxes; ends with Run) and the
// log's (see package raftlog). The simulation calls Pump instead.
//
// # What it does not do
//
// It does not split, merge or place groups, does not store machine state and does not transfer it (only the Raft part
// of a snapshot travels here), and does not retry proposals.
package raftgroup
