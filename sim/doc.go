// Package sim runs whole braid clusters in one goroutine under virtual time: the real
// node core (order group, ranges, Raft groups, engines, router) with a simulated disk and
// network, driven by one seeded source of choices. A run is a function of its seed.
//
// Parts: World is the event queue and the clock; Cluster owns the nodes, the network
// between them and the faults; a client is a coroutine that calls the router's blocking
// methods, whose waits hand control back to the World. What clients saw is recorded and judged by sim/check.
package sim
