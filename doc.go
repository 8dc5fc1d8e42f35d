// Package braid is the root of an etcd-compatible store over many Raft groups. The root package holds
// only tests of the project's own rules; docs/architecture.md is the map.
package braid
