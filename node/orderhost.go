package node

import (
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/raftgroup"
	ranges "github.com/braidkv/braid/range"
)

// orderHost is what the order machine sees of its node.
type orderHost struct {
	c     *Core
	group *raftgroup.Group // set before the machine runs
}

func (h *orderHost) Propose(data []byte) error     { return h.group.Propose(data) }
func (h *orderHost) ReadIndex(ctx uint64)          { h.group.ReadIndex(ctx) }
func (h *orderHost) Truncate(through ids.Position) { h.group.Truncate(ids.Index(through)) }

func (h *orderHost) Send(to ids.NodeID, kind order.LetterKind, m proto.Message) {
	h.c.sendLetter(to, kindOrder+uint32(kind), 0, m)
}

func (h *orderHost) CreateRange(d *braidpb.RangeDescriptor) {
	if err := h.c.addReplica(d); err != nil {
		h.c.fatal(err)
	}
}

// Refill and Dispatch make the replica's frontier lag before the position is published, so that no reader takes it for
// passed.
func (h *orderHost) Refill(r ids.RangeID, min ids.Position) {
	if l := h.c.local(r); l != nil {
		if l.replica.Frontier().Newest() < min {
			l.replica.Frontier().Enqueue(min)
		}
		h.c.store.Enqueue(ids.GroupOf(r), ranges.Refill{Min: min})
	}
}

func (h *orderHost) Dispatch(r ids.RangeID, it *braidpb.Items) {
	if l := h.c.local(r); l != nil {
		l.replica.Frontier().Enqueue(ids.Position(it.GetPosition()))
		h.c.store.Enqueue(ids.GroupOf(r), ranges.Dispatch{Items: it})
	}
}

func (h *orderHost) FlushData(done func()) {
	h.c.background.post(func() {
		if err := h.c.engines.FlushData(); err != nil {
			h.c.fatal(err)
			return
		}
		done()
	})
}

func (h *orderHost) Fatal(err error) { h.c.fatal(err) }

// orderMachine is the order machine in its Raft group.
type orderMachine struct {
	*order.Machine
	c    *Core
	ents []order.Entry
}

func (m *orderMachine) Deliver(ents []raftgroup.Entry) {
	out := m.ents[:0]
	for _, e := range ents {
		x := order.Entry{Position: ids.Position(e.Index), Term: e.Term, Data: e.Data}
		if e.Conf != nil {
			c := order.ConfState(*e.Conf)
			x.Conf = &c
		}
		out = append(out, x)
	}
	m.Machine.Deliver(out)
	clear(out)
	m.ents = out[:0]
}

// Role also tells the local replicas: their leaders follow the order leader.
func (m *orderMachine) Role(r raftgroup.Role) {
	m.Machine.Role(order.Role(r))
	for _, l := range m.c.locals() {
		m.c.store.Enqueue(ids.GroupOf(l.id), ranges.Poke{})
	}
}

func (m *orderMachine) ReadState(ctx uint64, index ids.Index) {
	m.Machine.ReadState(ctx, ids.Position(index))
}

func (m *orderMachine) SnapshotMeta() (raftgroup.SnapMeta, bool) {
	meta, ok := m.Machine.SnapshotMeta()
	return raftgroup.SnapMeta{Index: ids.Index(meta.Position), Term: meta.Term, Conf: raftgroup.ConfState(meta.Conf), Data: meta.Data}, ok
}

func (m *orderMachine) Restore(from ids.NodeID, meta raftgroup.SnapMeta, done func(*raftgroup.SnapMeta)) {
	want := order.SnapMeta{Position: ids.Position(meta.Index), Term: meta.Term, Conf: order.ConfState(meta.Conf), Data: meta.Data}
	m.Machine.Restore(from, want, func(got *order.SnapMeta) {
		if got == nil {
			done(nil)
			return
		}
		done(&raftgroup.SnapMeta{Index: ids.Index(got.Position), Term: got.Term, Conf: raftgroup.ConfState(got.Conf), Data: got.Data})
	})
}
