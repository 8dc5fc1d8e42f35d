package node

import (
	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/raftgroup"
	ranges "github.com/braidkv/braid/range"
	"github.com/braidkv/braid/storage/transfer"
)

// rangeHost is what a replica sees of its node.
type rangeHost struct {
	c     *Core
	id    ids.RangeID
	desc  *braidpb.RangeDescriptor
	group *raftgroup.Group // set before the replica runs
}

func (h *rangeHost) Propose(data []byte) error    { return h.group.Propose(data) }
func (h *rangeHost) LastIndex() ids.Index         { return h.group.LastIndex() }
func (h *rangeHost) Campaign()                    { h.group.Campaign() }
func (h *rangeHost) TransferLeader(to ids.NodeID) { h.group.TransferLeader(to) }
func (h *rangeHost) Truncate(through ids.Index)   { h.group.Truncate(through) }

func (h *rangeHost) Followers(visit func(ranges.Follower)) {
	h.group.Progress(func(f raftgroup.FollowerStatus) {
		visit(ranges.Follower{Node: f.Node, Match: f.Match, Learner: f.Learner, Active: f.Active})
	})
}

func (h *rangeHost) Progress(p ranges.Progress) {
	leases := make([]order.SeqLease, len(p.Leases))
	for i, l := range p.Leases {
		leases[i] = order.SeqLease(l)
	}
	h.c.store.Enqueue(ids.OrderGroup, order.Progress{
		Range: p.Range, Term: p.Term, From: p.From, Through: p.Through,
		Generation: p.Generation, AuthRevision: p.AuthRevision, Leases: leases,
	})
}

func (h *rangeHost) ProgressReset(r ids.RangeID) {
	h.c.store.Enqueue(ids.OrderGroup, order.ProgressReset{Range: r})
}

func (h *rangeHost) OrderView() ranges.OrderView {
	v := h.c.order.View()
	return ranges.OrderView{
		Position: v.Position, Revision: v.Revision, CompactRevision: v.CompactRevision, AuthRevision: v.AuthRevision, Leader: v.Leader,
	}
}

func (h *rangeHost) AbortTxn(txn ids.TxnID, participants []ids.RangeID, deadline ids.Position) {
	m := &braidpb.TxnAbort{
		Txn:      &braidpb.TxnID{Node: uint64(txn.Node), Incarnation: txn.Incarnation, Counter: txn.Counter},
		Deadline: uint64(deadline),
	}
	for _, p := range participants {
		m.Participants = append(m.Participants, uint64(p))
	}
	h.c.Propose(&braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Abort{Abort: m}}, 0, nil)
}

// LeaseExists knows of no lease: this version grants none.
func (h *rangeHost) LeaseExists(ids.LeaseID) bool { return false }

func (h *rangeHost) Data() *pebble.DB { return h.c.engines.Data }

func (h *rangeHost) Export(start, end []byte, r ids.RangeID) (ranges.Exporter, error) {
	return transfer.Export(h.c.engines, start, end, r)
}

func (h *rangeHost) Import(start, end []byte, r ids.RangeID) (ranges.Importer, error) {
	return transfer.Import(h.c.engines, start, end, r)
}

func (h *rangeHost) Background(job func() any) {
	h.c.background.post(func() {
		if ev := job(); ev != nil {
			h.c.store.Enqueue(ids.GroupOf(h.id), ev)
		}
	})
}

func (h *rangeHost) SendStateRequest(to ids.NodeID, m *braidpb.StateRequest) {
	h.c.sendGroup(to, kindState, h.id, m)
}

func (h *rangeHost) SendStateChunk(to ids.NodeID, m *braidpb.StateChunk) {
	h.c.sendGroup(to, kindStateChunk, h.id, m)
}

func (h *rangeHost) Fatal(err error) { h.c.fatal(err) }

// rangeMachine is a replica in its Raft group.
type rangeMachine struct {
	*ranges.Replica
	c    *Core
	ents []ranges.Entry
}

func (m *rangeMachine) Deliver(ents []raftgroup.Entry) {
	out := m.ents[:0]
	for _, e := range ents {
		x := ranges.Entry{Index: e.Index, Term: e.Term, Data: e.Data}
		if e.Conf != nil {
			c := ranges.ConfState(*e.Conf)
			x.Conf = &c
		}
		out = append(out, x)
	}
	m.Replica.Deliver(out)
	clear(out)
	m.ents = out[:0]
}

func (m *rangeMachine) Role(r raftgroup.Role) { m.Replica.Role(ranges.Role(r)) }

// ReadState is never asked for: reads go through the order group.
func (m *rangeMachine) ReadState(uint64, ids.Index) {}

func (m *rangeMachine) SnapshotMeta() (raftgroup.SnapMeta, bool) {
	meta, ok := m.Replica.SnapshotMeta()
	return raftgroup.SnapMeta{Index: meta.Index, Term: meta.Term, Conf: raftgroup.ConfState(meta.Conf), Data: meta.Data}, ok
}

func (m *rangeMachine) Restore(from ids.NodeID, meta raftgroup.SnapMeta, done func(*raftgroup.SnapMeta)) {
	want := ranges.SnapMeta{Index: meta.Index, Term: meta.Term, Conf: ranges.ConfState(meta.Conf), Data: meta.Data}
	m.Replica.Restore(from, want, func(got *ranges.SnapMeta) {
		if got == nil {
			done(nil)
			return
		}
		done(&raftgroup.SnapMeta{Index: got.Index, Term: got.Term, Conf: raftgroup.ConfState(got.Conf), Data: got.Data})
	})
}

// keepLogBytes is how much of a range's log stays for followers that lag; one that lags more gets the state instead.
const keepLogBytes = 512 << 10

// How long what a dead coordinator leaves behind stands in the way of others, in ticks: a lock that is not used up (a live coordinator needs some
// milliseconds), and a transaction that is prepared and not decided. Locks may lapse one after the other.
const (
	lockTicks  = 15
	stuckTicks = 20
)

// localRange is a range with a replica on this node.
type localRange struct {
	id      ids.RangeID
	desc    *braidpb.RangeDescriptor
	replica *ranges.Replica
}

// addReplica starts this node's replica of a range, if the range has one here.
func (c *Core) addReplica(desc *braidpb.RangeDescriptor) error {
	var self ids.ReplicaID
	nodes := map[ids.ReplicaID]ids.NodeID{}
	for _, r := range desc.GetReplicas() {
		nodes[ids.ReplicaID(r.GetReplicaId())] = ids.NodeID(r.GetNode())
		if ids.NodeID(r.GetNode()) == c.cfg.Self {
			self = ids.ReplicaID(r.GetReplicaId())
		}
	}
	id := ids.RangeID(desc.GetId())
	if self == 0 || c.local(id) != nil {
		return nil
	}
	h := &rangeHost{c: c, id: id, desc: desc}
	timing := c.cfg.RangeTiming
	timing.ElectionTicks = c.cfg.ElectionTicks
	if timing.LockTicks == 0 {
		timing.LockTicks = lockTicks
	}
	if timing.StuckTicks == 0 {
		timing.StuckTicks = stuckTicks
	}
	replica, start, err := ranges.New(ranges.Config{
		Descriptor: desc, Node: c.cfg.Self, Incarnation: c.cfg.Incarnation, Mutation: c.cfg.Mutation.Range, Logger: c.cfg.Logger.With("range", uint64(id)),
		Limits: ranges.Limits{KeepEntries: c.cfg.SnapshotCount, KeepBytes: keepLogBytes},
		Timing: timing,
	}, h)
	if err != nil {
		return err
	}
	c.setLocal(id, &localRange{id: id, desc: desc, replica: replica})
	return c.store.Add(raftgroup.GroupConfig{
		ID: ids.GroupOf(id), Replica: self, Peers: func(r ids.ReplicaID) ids.NodeID { return nodes[r] },
		Initial: raftgroup.ConfState(start.Conf), Applied: start.Applied, AppliedTerm: start.AppliedTerm, Quiesce: true,
		New: func(g *raftgroup.Group) raftgroup.Machine {
			h.group = g
			return &rangeMachine{Replica: replica, c: c}
		},
	})
}

// sendGroup sends a letter about a range.
func (c *Core) sendGroup(to ids.NodeID, kind uint32, r ids.RangeID, m proto.Message) {
	c.sendLetter(to, kind, uint64(r), m)
}
