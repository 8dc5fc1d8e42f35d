// Package servers builds braid and etcd and runs clusters of them as processes of their own on
// loopback ports, for the programs that test and measure over the wire. It needs Linux.
//
// A Cluster is used from one goroutine at a time, its Nodes likewise. Every process that was
// started is known by its process and ended by Close; should the program die first, the kernel ends them
// (parent death signal).
package servers
