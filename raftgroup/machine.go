package raftgroup

import (
	"github.com/braidkv/braid/internal/ids"
)

// Machine is the state that a group replicates, on one node. All its methods are called on the worker of its
// group, one at a time, and must not block. A machine may call the methods of its Group from any of them.
type Machine interface {
	// Handle takes the events that Store.Enqueue was given, in order. The slice is reused
	// after the call.
	Handle(events []any)

	// Deliver takes over committed entries (R1). The slice is reused after the call; the Data of
	// the entries may be kept and must not be changed.
	Deliver(ents []Entry)

	// Role tells of a change of leadership or term, before entries of it are delivered (R2). The first
	// call comes before anything else if the replica has a term.
	Role(r Role)

	// ReadState answers Group.ReadIndex: once the machine has taken all entries up to index, it reflects
	// everything committed before the request. Requests may be lost: the machine asks again.
	ReadState(ctx uint64, index ids.Index)

	// Tick is called once per tick of the store, unless the group is quiesced and the machine idle.
	Tick()

	// Flush ends a pass over the group: apply what can be applied, answer clients.
	Flush()

	// SnapshotMeta is asked when a follower is too far behind for the log; never from
	// within another method of the machine. The meta must describe a state the machine can hand
	// out, with Index at or above the truncated part of the log. With !ok the follower waits and
	// the machine is asked again later.
	SnapshotMeta() (meta SnapMeta, ok bool)

	// Restore tells that this replica needs the state that the meta stands for; Raft has not yet
	// seen it, and entries stay away until done is called. The machine installs the state, durably, of the meta's
	// index or a later one, from the node given or another, and calls done with the meta of what it installed,
	// or with nil to give up (the leader will offer a snapshot again). done may be called at any time, from any
	// goroutine; only the first call counts.
	Restore(from ids.NodeID, meta SnapMeta, done func(installed *SnapMeta))
}

// Idler is implemented by machines of groups that may quiesce (GroupConfig.Quiesce). A machine without it
// counts as never idle.
type Idler interface {
	// Idle tells that nothing is unfinished for which the machine needs ticks.
	Idle() bool
}

// Entry is a committed entry of the log.
type Entry struct {
	Index ids.Index
	Term  ids.Term
	// Data is what was proposed. It is empty for entries that Raft itself appends (new leader) and for
	// configuration changes.
	Data []byte
	// Conf is the configuration in force after this entry, if the entry changes it; nil otherwise. Conf.Index is
	// this entry's index, or a later one if the entry is delivered again after a restart and
	// the log knows of later changes.
	Conf *ConfState
	// Context is what ProposeConf was given along, for an entry with Conf.
	Context []byte
}

// ConfState is a group's configuration: who votes and who only follows.
type ConfState struct {
	// Index is the entry that brought it into force, or the index of a snapshot that contains it; zero for the one that
	// a group starts with.
	Index          ids.Index
	Voters         []ids.ReplicaID
	Learners       []ids.ReplicaID
	VotersOutgoing []ids.ReplicaID // joint configuration: voters of the one being left
	LearnersNext   []ids.ReplicaID // joint configuration: outgoing voters that become learners
	AutoLeave      bool            // Raft leaves the joint configuration by itself
}

// Joint tells whether the configuration is a joint one.
func (c *ConfState) Joint() bool { return len(c.VotersOutgoing) > 0 }

// SnapMeta is the Raft part of a snapshot.
type SnapMeta struct {
	// Index and Term are of the last entry that the state contains.
	Index ids.Index
	Term  ids.Term
	// Conf is the configuration in force at Index. Conf.Index is set to Index on the way.
	Conf ConfState
	// Data is the machine's own.
	Data []byte
}

// Role is a replica's part in its group.
type Role struct {
	Term ids.Term
	// Leader is the node that leads, LeaderReplica its replica; zero: none known.
	Leader        ids.NodeID
	LeaderReplica ids.ReplicaID
	IsLeader      bool
}

// ConfChangeType says what a ConfChange does to a replica.
type ConfChangeType uint8

// The kinds of change. AddVoter also promotes a learner, AddLearner also demotes a voter (in a joint change).
const (
	AddVoter ConfChangeType = iota + 1
	AddLearner
	RemoveReplica
)

// ConfChange is one change of a configuration.
type ConfChange struct {
	Type    ConfChangeType
	Replica ids.ReplicaID
}
