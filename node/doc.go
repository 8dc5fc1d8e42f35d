// Package node is the composition root: it builds one braid node from its parts and is the
// only package that knows all of them. A Core is the node without goroutines and sockets, driven by
// pumps; the simulation drives it in seeded order, Node drives it with goroutines and carries its letters over
// package peer.
//
// A Core is built in this order, and taken down in reverse: engines, raft log, raft groups, the order machine
// (group 0), the replicas that the order state names, the router. What reaches a Core: letters (Receive), ticks (Tick), client
// requests (Server). All of these only enqueue; work is done by PumpWorker, PumpLog and PumpBackground.
package node
