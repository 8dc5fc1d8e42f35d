package raftgroup

import (
	"github.com/braidkv/braid/internal/ids"
)

const (
	stateProbe     = "probe"
	stateReplicate = "replicate"
	stateSnapshot  = "snapshot"
)

// GroupStatus is what an operator is told about a group on one node.
type GroupStatus struct {
	ID      ids.GroupID
	Replica ids.ReplicaID
	Role    Role
	State   string // follower, candidate, precandidate, leader
	Learner bool
	// Commit is known committed, Delivered handed to the machine, First to Last in the log.
	Commit, Delivered, First, Last ids.Index
	LogBytes                       int64
	Quiesced                       bool
	Restoring                      bool
	Transferee                     ids.ReplicaID // target of a leadership transfer in progress
	Conf                           ConfState
	Followers                      []FollowerStatus // only on the leader, ascending by replica, without itself
}

// FollowerStatus is a leader's knowledge of another replica.
type FollowerStatus struct {
	Replica ids.ReplicaID
	Node    ids.NodeID
	Match   ids.Index // known to be durable there
	Next    ids.Index // next to be sent
	State   string    // probe, replicate, snapshot
	Learner bool
	Active  bool // heard of within the last election time-out
}

// Counters are totals since the start of the process.
type Counters struct {
	Passes, Readies, EntriesDelivered, Proposals, ProposalsDropped uint64
	MessagesSent, MessagesReceived, MessagesDropped                uint64
	BeatsSent                                                      uint64 // heartbeats and answers, inside merged letters
	NotesSent                                                      uint64 // commit indexes that travelled among the beats
	SnapshotsSent, SnapshotsRestored                               uint64
	RoleChanges, Quiesced, Woken                                   uint64
}
