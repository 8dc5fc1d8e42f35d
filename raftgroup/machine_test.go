package raftgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/braidkv/braid/internal/ids"
)

// machineState is what testMachine replicates: a hash over everything delivered so far.
type machineState struct {
	index ids.Index
	term  ids.Term
	chain uint64
	conf  ConfState
}

func (s machineState) next(e Entry) machineState {
	h := fnv.New64a()
	var b [24]byte
	binary.BigEndian.PutUint64(b[0:], s.chain)
	binary.BigEndian.PutUint64(b[8:], uint64(e.Index))
	binary.BigEndian.PutUint64(b[16:], uint64(e.Term))
	h.Write(b[:])
	h.Write(e.Data)
	h.Write(e.Context)
	s.index, s.term, s.chain = e.Index, e.Term, h.Sum64()
	if e.Conf != nil && e.Conf.Index >= s.conf.Index {
		s.conf = *e.Conf
	}
	return s
}

func (s machineState) meta() SnapMeta {
	return SnapMeta{Index: s.index, Term: s.term, Conf: s.conf, Data: binary.BigEndian.AppendUint64(nil, s.chain)}
}

// truth is what all replicas of a group must agree on. It belongs to the test.
type truth struct {
	states    map[ids.Index]machineState // after each entry that anybody got
	delivered ids.Index                  // highest
	leaders   map[ids.Term]ids.ReplicaID
	proposed  map[string]bool // every payload ever appended
}

func newTruth() *truth {
	return &truth{states: map[ids.Index]machineState{}, leaders: map[ids.Term]ids.ReplicaID{}, proposed: map[string]bool{}}
}

// Events of testMachine.
type (
	proposeEvent  struct{ data string }
	readEvent     struct{ ctx uint64 }
	confEvent     struct{ changes []ConfChange }
	transferEvent struct{ to ids.NodeID }
	truncateEvent struct{ through ids.Index }
	campaignEvent struct{}
)

// testMachine checks everything it is told against the truth.
type testMachine struct {
	g       *Group
	node    ids.NodeID
	truth   *truth
	failf   func(format string, args ...any)
	trace   func(format string, args ...any)
	install func(m *testMachine, from ids.NodeID, meta SnapMeta, done func(*SnapMeta)) // what Restore does

	st        machineState
	role      Role
	reads     map[uint64]ids.Index
	answered  map[uint64]bool
	lastRead  ids.Index // of the last answer
	dropped   int       // proposals
	restoring bool
	ticks     int
	busy      bool // not idle
	noSnap    bool
	onFlush   func()
	onRole    func()
}

func (m *testMachine) check(ok bool, format string, args ...any) {
	if !ok {
		m.failf("node %d group %d replica %d: %s", m.node, m.g.ID(), m.g.Replica(), fmt.Sprintf(format, args...))
	}
}

func (m *testMachine) Handle(events []any) {
	for _, ev := range events {
		switch ev := ev.(type) {
		case proposeEvent:
			before := m.g.LastIndex()
			err := m.g.Propose([]byte(ev.data))
			m.check(err == nil || errors.Is(err, ErrDropped) || errors.Is(err, ErrNotLeader), "Propose: %v", err)
			if err != nil {
				m.dropped++
				m.check(m.g.LastIndex() == before, "a dropped proposal was appended")
				continue
			}
			m.check(m.role.IsLeader && m.g.LastIndex() == before+1, "appended at %d after %d as %+v", m.g.LastIndex(), before, m.role)
			m.truth.proposed[ev.data] = true
		case readEvent:
			m.reads[ev.ctx] = m.truth.delivered
			m.g.ReadIndex(ev.ctx)
		case confEvent:
			err := m.g.ProposeConf(ev.changes, []byte("ctx"))
			m.check(err == nil || errors.Is(err, ErrDropped) || errors.Is(err, ErrNotLeader) || errors.Is(err, ErrConfChange), "ProposeConf: %v", err)
			m.trace("conf %d %v %v", m.g.ID(), ev.changes, err)
		case transferEvent:
			m.g.TransferLeader(ev.to)
		case truncateEvent:
			m.g.Truncate(ev.through)
		case campaignEvent:
			m.g.Campaign()
		default:
			m.check(false, "unknown event %T", ev)
		}
	}
}

func (m *testMachine) Deliver(ents []Entry) {
	m.check(!m.restoring, "entries while state is being installed")
	for _, e := range ents {
		m.check(e.Index == m.st.index+1, "entry %d follows %d", e.Index, m.st.index)
		m.check(e.Term >= m.st.term && e.Term <= m.role.Term, "entry %d of term %d after %d under %+v", e.Index, e.Term, m.st.term, m.role)
		m.check(e.Conf == nil || e.Conf.Index >= e.Index && len(e.Data) == 0, "configuration %+v in entry %d", e.Conf, e.Index)
		if len(e.Data) > 0 {
			m.check(m.truth.proposed[string(e.Data)], "%q was never appended", e.Data)
		}
		m.st = m.st.next(e)
		m.agree(m.st)
	}
	m.truth.delivered = max(m.truth.delivered, m.st.index)
	m.check(m.g.Delivered() == m.st.index && m.g.Committed() >= m.st.index, "delivered %d, committed %d, here %d", m.g.Delivered(), m.g.Committed(), m.st.index)
	m.trace("deliver %d.%d to %d %x", m.node, m.g.ID(), m.st.index, m.st.chain)
}

func (m *testMachine) agree(st machineState) {
	want, ok := m.truth.states[st.index]
	if !ok {
		m.truth.states[st.index] = st
		return
	}
	m.check(want.chain == st.chain && want.term == st.term, "state after entry %d differs from what another replica got", st.index)
}

func (m *testMachine) Role(r Role) {
	m.check(r != m.role && r.Term >= m.role.Term, "role %+v after %+v", r, m.role)
	m.check(r.IsLeader == (r.LeaderReplica == m.g.Replica()), "role %+v", r)
	if r.LeaderReplica != 0 {
		if old, ok := m.truth.leaders[r.Term]; ok {
			m.check(old == r.LeaderReplica, "two leaders in term %d: %d and %d", r.Term, old, r.LeaderReplica)
		}
		m.truth.leaders[r.Term] = r.LeaderReplica
	}
	m.role = r
	m.trace("role %d.%d %d %d %v", m.node, m.g.ID(), r.Term, r.LeaderReplica, r.IsLeader)
	if m.onRole != nil {
		m.onRole()
	}
}

func (m *testMachine) ReadState(ctx uint64, index ids.Index) {
	floor, ok := m.reads[ctx]
	m.check(ok, "answer to a read that was not asked")
	m.check(index >= floor, "read at %d, but %d was delivered before it", index, floor)
	m.answered[ctx], m.lastRead = true, index
}

func (m *testMachine) Tick() { m.ticks++ }

func (m *testMachine) Flush() {
	if m.onFlush != nil {
		m.onFlush()
	}
}

func (m *testMachine) Idle() bool { return !m.busy }

func (m *testMachine) SnapshotMeta() (SnapMeta, bool) {
	if m.noSnap || m.st.index == 0 || m.restoring {
		return SnapMeta{}, false
	}
	return m.st.meta(), true
}

func (m *testMachine) Restore(from ids.NodeID, meta SnapMeta, done func(*SnapMeta)) {
	m.check(meta.Index > m.st.index && meta.Conf.Index == meta.Index, "offered %+v at %d", meta, m.st.index)
	m.restoring = true
	m.install(m, from, meta, done)
}

// installed replaces the state.
func (m *testMachine) installed(meta SnapMeta) {
	st := machineState{index: meta.Index, term: meta.Term, chain: binary.BigEndian.Uint64(meta.Data), conf: meta.Conf}
	st.conf.Index = meta.Index
	m.agree(st)
	m.st, m.restoring = st, false
}
