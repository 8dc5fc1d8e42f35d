package ranges

import (
	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Host is what a replica needs from its node. All methods are called on the replica's worker and must not block (except that
// commits to the data engine may take as long as the engine takes). The Raft methods are not called before New has returned.
type Host interface {
	// Propose appends a payload to the range's log: nil says that this replica leads in the term of the last Role and
	// has appended; an error says that nothing was appended. The data is copied.
	Propose(data []byte) error
	// LastIndex is the end of the log.
	LastIndex() ids.Index
	// Campaign starts an election.
	Campaign()
	// TransferLeader hands leadership over to a node's replica, if it can.
	TransferLeader(to ids.NodeID)
	// Followers visits the other replicas in ascending order of their IDs; only on the leader is there anything to visit.
	Followers(visit func(Follower))
	// Truncate lets the log forget entries up to through.
	Truncate(through ids.Index)

	// Progress tells the local order machine that seqs of the range are committed; called on the leader, in
	// ascending order without gaps within a term. ProgressReset tells that what was said before no longer counts: leadership has
	// changed, and what is committed will be told again, if by this replica.
	Progress(p Progress)
	ProgressReset(r ids.RangeID)
	// OrderView is the local order state as last published.
	OrderView() OrderView
	// AbortTxn has TxnAbort proposed to the order log, once.
	AbortTxn(txn ids.TxnID, participants []ids.RangeID, deadline ids.Position)
	// LeaseExists looks into the local lease table. It only pre-checks: the order log has the last word.
	LeaseExists(id ids.LeaseID) bool

	// Data is the node's data engine (write-ahead log off).
	Data() *pebble.DB
	// Export fixes the range's state as of now, for Exporter to read.
	Export(start, end []byte, r ids.RangeID) (Exporter, error)
	// Import begins to replace the range's state. Nothing is visible before Finish.
	Import(start, end []byte, r ids.RangeID) (Importer, error)
	// Background runs a job off the worker, after all jobs posted before by this replica; what it returns comes
	// back to the replica's Handle as an event. At most a handful of jobs are posted at a time.
	Background(job func() (event any))

	// SendStateRequest and SendStateChunk send letters to the range's replica on another node, which gets
	// them as StateRequest and StateChunk events. They may be lost.
	SendStateRequest(to ids.NodeID, m *braidpb.StateRequest)
	SendStateChunk(to ids.NodeID, m *braidpb.StateChunk)

	// Fatal stops the node: its disk fails, or its state is broken. It may return; the replica does nothing more.
	Fatal(err error)
}

// Exporter reads a range's state in chunks; storage's Exporter is one. Used on one goroutine at a time.
type Exporter interface {
	Next(maxBytes int) (keys, values [][]byte, done bool, err error)
	Close() error
}

// Importer takes a range's state in chunks; storage's Importer is one. Used on one goroutine at a time.
type Importer interface {
	Add(keys, values [][]byte) error
	// Finish replaces the range's state, at once and durably; extra adds to it.
	Finish(extra func(w *pebble.Batch) error) error
	Abort()
}

// Role is a replica's part in its group: raftgroup's, field by field.
type Role struct {
	Term          ids.Term
	Leader        ids.NodeID // zero: none known
	LeaderReplica ids.ReplicaID
	IsLeader      bool
}

// Entry is a committed entry of the range's log. Data may be kept, and must not change.
type Entry struct {
	Index ids.Index
	Term  ids.Term
	Data  []byte     // empty: Raft's own
	Conf  *ConfState // the configuration in force after the entry, if it changes it
}

// ConfState is a group's configuration: raftgroup's, field by field.
type ConfState struct {
	Index          ids.Index // entry that brought it into force
	Voters         []ids.ReplicaID
	Learners       []ids.ReplicaID
	VotersOutgoing []ids.ReplicaID
	LearnersNext   []ids.ReplicaID
	AutoLeave      bool
}

// SnapMeta is the Raft part of a state: raftgroup's, field by field.
type SnapMeta struct {
	Index ids.Index
	Term  ids.Term
	Conf  ConfState
	Data  []byte
}

// Follower is what a leader knows of another replica.
type Follower struct {
	Node    ids.NodeID
	Match   ids.Index // durable there
	Learner bool
	Active  bool // heard of within the last election time-out
}

// OrderView is the part of the published order state that a replica looks at.
type OrderView struct {
	// Position and Revision belong together: Revision is the store's after Position.
	Position        ids.Position
	Revision        ids.Revision
	CompactRevision ids.Revision
	AuthRevision    ids.AuthRevision
	// Leader is the node that leads the order group, zero if none is known here.
	Leader ids.NodeID
}

// Progress says that the seqs in (From, Through] are committed in the range's log, and that they were stamped
// alike.
type Progress struct {
	Range         ids.RangeID
	Term          ids.Term // of the leader that says so
	From, Through ids.Seq
	Generation    ids.Generation
	AuthRevision  ids.AuthRevision
	Leases        []SeqLease // ascending seq
}

// SeqLease says that a seq names a lease (ignore_lease counts).
type SeqLease struct {
	Seq   ids.Seq
	Lease ids.LeaseID
}

// StartInfo is what a new replica's durable state says about its Raft group (raftgroup.GroupConfig).
type StartInfo struct {
	// Applied is the ordered index, so that entries delivered but not ordered before a restart are delivered again.
	Applied     ids.Index
	AppliedTerm ids.Term
	// Conf is the newest configuration known. For a replica without state: the one of the descriptor, with index zero.
	Conf ConfState
}
