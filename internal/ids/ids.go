// Package ids is the typed vocabulary of braid: the numbers that nodes exchange
// and store. Mixing two of them up is a compile error.
package ids

import "fmt"

// NodeID names a braid process; it is what etcd calls the member ID. Zero names no node.
type NodeID uint64

// String prints the ID as etcd prints member IDs: in hexadecimal.
func (n NodeID) String() string { return fmt.Sprintf("%x", uint64(n)) }

// RangeID names a range (a span of user keys with its own Raft group). IDs start at 1
// and are never used again.
type RangeID uint64

// GroupID names a Raft group on a node: OrderGroup, or the ID of a range.
type GroupID uint64

// OrderGroup is the Raft group that every node follows and that alone decides revisions.
const OrderGroup GroupID = 0

// GroupOf is the Raft group of a range.
func GroupOf(r RangeID) GroupID { return GroupID(r) }

// ReplicaID is a replica's Raft ID within its group; never used again within the group.
// In the order group it equals the node's ID.
type ReplicaID uint64

// Term is a Raft term of some group.
type Term uint64

// Index is an index in the Raft log of a range group. (Of the order log: Position.)
type Index uint64

// Position is an index in the order log.
type Position uint64

// Seq is the dense number, from 1, of a write transaction in a range's log.
type Seq uint64

// Revision is etcd's main revision. A fresh store is at 1.
type Revision int64

// Generation counts splits and merges of a range; it starts at 1.
type Generation uint64

// AuthRevision is etcd's auth revision: it changes whenever users, roles or permissions do.
type AuthRevision uint64

// LeaseID is etcd's lease ID. Zero is no lease.
type LeaseID int64

// TxnID names one attempt at a transaction over several ranges, or one proposal to the
// order log: the node that made it, that node's incarnation (unique for each process start) and a counter.
type TxnID struct {
	Node        NodeID
	Incarnation uint64
	Counter     uint64
}

// IsZero tells whether the ID names nothing.
func (t TxnID) IsZero() bool { return t == TxnID{} }

// Less is a total order on IDs.
func (t TxnID) Less(u TxnID) bool {
	if t.Node != u.Node {
		return t.Node < u.Node
	}
	if t.Incarnation != u.Incarnation {
		return t.Incarnation < u.Incarnation
	}
	return t.Counter < u.Counter
}

func (t TxnID) String() string {
	return fmt.Sprintf("%x.%x.%d", uint64(t.Node), t.Incarnation, t.Counter)
}
