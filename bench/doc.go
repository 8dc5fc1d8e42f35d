// Command bench compares braid with etcd 3.7.3, each run as processes of its own, alternately in one
// run, so that a noisy machine is as noisy for the one as for the other.
//
//	bench compare [flags]   throughput, latency, server CPU, memory and disk of the workloads
//	bench load [flags]      many keys: time, memory, disk, and how long a restart takes
//
// A *side* is one of the two stores compared; --a and --b say which it is, so that a store can also be
// compared with itself, which shows the noise. See README.md.
package main
