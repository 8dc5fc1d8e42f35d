// Package peer carries letters between braid's nodes: one gRPC stream for each direction of each pair of nodes. What a
// letter means is the business of its sender and receiver; this package knows only where it goes.
//
// What it guarantees, for letters from node A to node B:
//
//   - They arrive in the order of Send and at most once. A letter may be lost: when the queue to B is full, when B cannot be
//     reached, when a connection breaks. Whoever needs more repeats.
//   - Send never blocks. What waits for B is bounded (Config.MaxQueueBytes) and does not delay letters to others.
//   - There is no batching timer: a letter leaves as soon as the sender of its link is free, and everything that was queued
//     meanwhile leaves in the same envelope.
//   - A letter is only accepted from a node of the same cluster that says who it is, to whom it wants to talk, and is a known
//     peer. Everything else is refused with an error that says what differs, logged once.
//
// Liveness is judged by what is heard, for each stream and at both of its ends. A sender that has sent nothing for a heartbeat interval
// sends an empty envelope; the receiver sends an empty envelope back each interval (an echo). A receiver that hears nothing
// for Config.DeadAfter takes the node for down; a sender that hears no echo for as long makes a new connection. So a
// failure of one direction of one connection is found by the end that it matters to. Time is counted in the transport's own ticks, so a process that was stopped
// for a while does not take its peers for dead. Up carries the peer's incarnation; a peer that restarted is always reported
// down before it is up with the new one.
//
// The wire format is that of proto/braid.proto (service Peer). Envelopes are encoded and decoded by hand (codec.go)
// so that large bodies are not copied on the way out and letters cost no allocation each on the way in.
//
// Goroutines, all of them owned by the Transport and gone when Close returns:
//
//	ticker           one; heartbeats, echoes, silence
//	link.run         one for each peer: dials, sends
//	session reader   one for each established outgoing stream: takes the echoes, waits for its end
//	inbound.receive  one for each incoming stream: decodes and calls the Handler
//
// and gRPC's own: a reader and a writer for each connection.
package peer
