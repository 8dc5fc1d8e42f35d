// Package router serves etcd's API on a node: it validates, routes to ranges, reads at a revision, coordinates transactions over
// several ranges, and says what went wrong in etcd's words.
//
// Reads (design: every node serves them): a linearizable read gets a position from the order group, waits until the node has applied it and
// the local replicas of the ranges it touches have passed it, and reads the data engine at the revision there. It asks no
// range leader, and over several ranges it is consistent. A serializable read takes the newest revision that the node has, which is never
// below one that the node has put into a header.
//
// Writes of one range go to its leader; an answer that says "changes nothing, or fails by the state" is found again as a read
// at a revision obtained after the request came. Writes of several ranges go through a coordinator.
//
// The server never tries a write again unless it is certain that it was not done (O6).
//
// Goroutines: none of its own; gRPC runs each request on one. All waiting goes through an Await, and all waits end: by what they wait
// for, with the client's context, or when Server.Tick has counted the request's time.
//
// Lists go from the engine's blocks to the wire's form without an object for each key (encodedList).
//
// Where answers differ from etcd 3.7.3's, on purpose: keys that a sort finds equal stay in the order of keys (etcd: in any order); a
// stream is in the order of keys also if the request names a sort target without an order (etcd sorts each chunk by itself, and so loses
// keys); "too many requests" has the code ResourceExhausted (etcd: the right text with the code Unknown).
package router
