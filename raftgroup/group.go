package raftgroup

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	"github.com/braidkv/braid/storage/raftlog"
)

// Group is a machine's handle on its Raft group. Its methods may be called only on the group's worker: from the machine's
// methods.
type Group struct {
	s       *Store
	w       *worker
	id      ids.GroupID
	replica uint64
	peers   func(ids.ReplicaID) ids.NodeID
	logger  *slog.Logger

	machine Machine
	idler   Idler // nil: never idle
	rn      *raft.RawNode
	log     *raftlog.GroupLog

	// The worker's view of Raft. Invariant: delivered <= committed <= lastIndex().
	role      Role
	term      uint64
	state     raft.StateType
	lead      uint64
	committed uint64
	delivered uint64 // last entry the machine has got, or whose state it has installed
	alone     bool   // the only voter, just started: no need to wait for a time-out
	newborn   bool   // the machine has not got the group's first configuration
	unready   uint64 // proposals since the last Ready
	suspect   bool   // the role may have changed since it was last compared

	earlyReads  []uint64 // reads asked for before an entry of the term was committed
	confPending uint64   // a configuration change may lie in the log up to this entry
	transferee  uint64   // target of a transfer in progress
	snap        preparedSnapshot
	offers      map[uint64]int // by replica: ticks since it was offered a snapshot
	restore     *restore       // state being installed
	restores    uint64
	parting     *parting // last words of a removed leader
	ticks       int
	quiet       quietState
	notes       noteState
	drain       drainState
	dead        bool

	applies  []*raftpb.Message // committed entries to be delivered in this pass
	ents     []Entry           // scratch of deliver
	freeAcks []*ack

	published atomic.Pointer[Role]
	skipTick  atomic.Bool // quiesced and the machine idle

	mu     sync.Mutex
	in     inbox // guarded by mu
	spare  inbox // guarded by mu
	queued bool  // guarded by mu: the worker has the group in its queue
}

// inbox is what waits for a pass.
type inbox struct {
	acks     []*ack
	control  []func(*Group)
	messages []inMessage
	bytes    int // of the messages
	events   []any
	tick     bool
}

type inMessage struct {
	m       *raftpb.Message
	quiesce *quiesce
	node    ids.NodeID
	note    bool // m is a note
}

// ack is an append whose durability is awaited, with what Raft wants to happen then.
type ack struct {
	g    *Group
	self []*raftpb.Message // to be stepped
	out  []letter          // to be sent
}

type letter struct {
	to   ids.NodeID
	body []byte
}

// Durable sends what other replicas wait for right from the log's goroutine, which saves them our
// worker's wake-up, and leaves the rest to the worker.
func (a *ack) Durable() {
	g := a.g
	for _, l := range a.out {
		g.s.out.SendRaft(l.to, g.id, l.body)
	}
	g.mu.Lock()
	g.in.acks = append(g.in.acks, a)
	g.scheduleLocked()
}

// scheduleLocked puts the group into its worker's queue unless it is there, and releases g.mu.
func (g *Group) scheduleLocked() {
	queued := g.queued
	g.queued = true
	g.mu.Unlock()
	if !queued {
		g.w.push(g)
	}
}

// control has f run on the worker, before messages and events.
func (g *Group) control(f func(*Group)) {
	g.mu.Lock()
	g.in.control = append(g.in.control, f)
	g.scheduleLocked()
}

// ID is the group's.
func (g *Group) ID() ids.GroupID { return g.id }

// Replica is this node's replica.
func (g *Group) Replica() ids.ReplicaID { return ids.ReplicaID(g.replica) }

// Role is what Machine.Role was last told.
func (g *Group) Role() Role { return g.role }

// Committed is the highest index known to be committed.
func (g *Group) Committed() ids.Index { return ids.Index(g.committed) }

// Delivered is the index of the last entry that the machine has got.
func (g *Group) Delivered() ids.Index { return ids.Index(g.delivered) }

// LastIndex is the end of the log. Right after a successful Propose it is the proposal's index.
func (g *Group) LastIndex() ids.Index { return ids.Index(g.lastIndex()) }

// FirstIndex is the first entry that the log still holds.
func (g *Group) FirstIndex() ids.Index {
	i, _ := g.log.FirstIndex()
	return ids.Index(i)
}

func (g *Group) lastIndex() uint64 {
	i, _ := g.log.LastIndex()
	return i + g.unready
}

// LogBytes is the size of the log's entries.
func (g *Group) LogBytes() int64 { return g.log.Bytes() }

// Propose appends data to the group's log (R4): nil says that this replica led in Role().Term and has appended, not that
// the entry will be committed. ErrNotLeader and ErrDropped say that nothing was appended. The
// data is copied.
func (g *Group) Propose(data []byte) error {
	if !g.role.IsLeader {
		return ErrNotLeader
	}
	g.wake()
	if err := g.rn.Propose(data); err != nil {
		g.s.counters.ProposalsDropped.Add(1)
		return ErrDropped
	}
	g.proposed()
	return nil
}

func (g *Group) proposed() {
	g.unready++
	g.quiet.active = true
	g.s.counters.Proposals.Add(1)
	if invariant.Enabled {
		st := g.rn.BasicStatus()
		invariant.Check(st.GetTerm() == uint64(g.role.Term) && st.RaftState == raft.StateLeader, "R2",
			"group %d: proposal under %+v appended by %v of term %d", g.id, g.role, st.RaftState, st.GetTerm())
	}
}

// ReadIndex asks for an index that covers everything committed before the call, by a round to a quorum. The
// answer comes by Machine.ReadState with the same ctx, or never; ctx must be unique in the life of the process. (The answer to an
// earlier process of this node is not mistaken for one to this: it would be too old.)
func (g *Group) ReadIndex(ctx uint64) {
	g.wake()
	g.quiet.active = true
	if g.role.IsLeader && !g.committedOwn() {
		g.earlyReads = append(g.earlyReads, ctx)
		return
	}
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 16), g.s.cfg.Incarnation)
	g.rn.ReadIndex(binary.BigEndian.AppendUint64(b, ctx))
}

// committedOwn tells whether an entry of the current term is committed. Before, a leader does not know all that is: Raft
// itself waits for it, except in a group with a single voter, which answers at once with a commit index that, after a
// restart, may lie below what an earlier process has answered.
func (g *Group) committedOwn() bool {
	t, err := g.log.Term(g.committed)
	return err == nil && t == g.term
}

// askEarlyReads asks what ReadIndex has held back, or forgets it with the leadership.
func (g *Group) askEarlyReads() {
	if len(g.earlyReads) == 0 || g.role.IsLeader && !g.committedOwn() {
		return
	}
	early := g.earlyReads
	g.earlyReads = nil
	if g.role.IsLeader {
		for _, ctx := range early {
			g.ReadIndex(ctx)
		}
	}
}

// readState passes an answer on.
func (g *Group) readState(rs raft.ReadState) {
	if b := rs.RequestCtx; len(b) == 16 && binary.BigEndian.Uint64(b) == g.s.cfg.Incarnation {
		g.machine.ReadState(binary.BigEndian.Uint64(b[8:]), ids.Index(rs.Index))
	}
}

// Campaign starts an election (with the pre-vote round) without waiting for a time-out.
func (g *Group) Campaign() {
	g.wake()
	if err := g.rn.Campaign(); err != nil {
		g.logger.Debug("campaign not started", "err", err)
	}
	g.suspect = true
}

// TransferLeader hands leadership over to a node's replica. Until it is done, or an election time-out has passed,
// proposals are dropped. Nothing happens if this replica does not lead or the other cannot.
func (g *Group) TransferLeader(to ids.NodeID) {
	if !g.role.IsLeader {
		return
	}
	var target uint64
	g.Progress(func(f FollowerStatus) {
		if f.Node == to && !f.Learner {
			target = uint64(f.Replica)
		}
	})
	if target != 0 {
		g.transfer(target)
	}
}

func (g *Group) transfer(target uint64) {
	g.wake()
	g.quiet.active = true
	g.transferee = target
	g.rn.TransferLeader(target)
}

// Transferring tells whether leadership is being handed over, so that proposals are dropped.
func (g *Group) Transferring() bool { return g.transferee != 0 }

// Progress visits the other replicas, in ascending order; only on the leader is there anything to visit.
func (g *Group) Progress(visit func(FollowerStatus)) {
	if g.state != raft.StateLeader {
		return
	}
	g.rn.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
		if id == g.replica {
			return
		}
		visit(FollowerStatus{
			Replica: ids.ReplicaID(id), Node: g.peers(ids.ReplicaID(id)),
			Match: ids.Index(pr.Match), Next: ids.Index(pr.Next), State: progressState(pr.State),
			Learner: typ == raft.ProgressTypeLearner, Active: pr.RecentActive,
		})
	})
}

func progressState(s tracker.StateType) string {
	switch s {
	case tracker.StateReplicate:
		return stateReplicate
	case tracker.StateSnapshot:
		return stateSnapshot
	}
	return stateProbe
}

// FollowersCaughtUp tells whether this replica leads and all others have its whole log.
func (g *Group) FollowersCaughtUp() bool {
	if !g.role.IsLeader {
		return false
	}
	ok, last := true, ids.Index(g.lastIndex())
	g.Progress(func(f FollowerStatus) { ok = ok && f.Match == last && f.State == stateReplicate })
	return ok
}

// Truncate lets the log forget entries up to through, which the machine's durable state must contain; at most what has been
// delivered goes.
func (g *Group) Truncate(through ids.Index) {
	g.log.Truncate(min(uint64(through), g.delivered))
}

// Conf is the newest configuration in force.
func (g *Group) Conf() ConfState {
	cs, index := g.log.Conf()
	return *confFromRaft(index, cs)
}

// Status describes the group.
func (g *Group) status() GroupStatus {
	st := GroupStatus{
		ID: g.id, Replica: ids.ReplicaID(g.replica), Role: g.role, State: stateName(g.state),
		Commit: ids.Index(g.committed), Delivered: ids.Index(g.delivered), First: g.FirstIndex(), Last: g.LastIndex(),
		LogBytes: g.log.Bytes(), Quiesced: g.quiet.quiesced, Restoring: g.restore != nil,
		Transferee: ids.ReplicaID(g.transferee), Conf: g.Conf(),
	}
	for _, l := range st.Conf.Learners {
		st.Learner = st.Learner || l == st.Replica
	}
	g.Progress(func(f FollowerStatus) { st.Followers = append(st.Followers, f) })
	return st
}

func stateName(s raft.StateType) string {
	switch s {
	case raft.StateLeader:
		return "leader"
	case raft.StateCandidate:
		return "candidate"
	case raft.StatePreCandidate:
		return "precandidate"
	}
	return "follower"
}

// stepIgnored are errors of Raft that only say that a message no longer matters.
func stepIgnored(err error) bool {
	return errors.Is(err, raft.ErrStepPeerNotFound) || errors.Is(err, raft.ErrProposalDropped)
}
