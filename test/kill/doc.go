// Command kill runs a cluster of real processes under load, ends them with kill -9, freezes them, and then
// judges what the clients saw with sim/check: linearizability with dense revisions, nothing acknowledged
// lost, nothing refused applied, and equal content on all nodes.
//
//	kill --duration 10m                       braid, built from this checkout: 3 nodes, 16 ranges
//	kill --kind etcd --duration 1m            the same on etcd 3.7.3, to test the test
//	kill --kind etcd --faults rollback        data put back: must end with a violation
//
// A run has three parts. Under load, clients send a mix of requests and record them, and a nemesis
// injects one fault at a time and heals it. Then all nodes are killed at once and started, and must serve.
// Then the final history is read from every node: the whole (small) key set at every revision. That needs
// neither watches nor anything else but reads of the past.
//
// Exit status: 0 clean, 1 a guarantee is broken, 2 the run could not be made, 3 too little happened to show
// anything.
package main
