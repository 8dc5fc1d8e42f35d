package raftgroup

import (
	"errors"
	"fmt"
	"testing"
	"testing/cryptotest"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
)

// quietSim is a cluster without faults.
func quietSim(t *testing.T, p simParams) *sim {
	cryptotest.SetGlobalRandom(t, 1)
	if p.nodes == 0 {
		p.nodes, p.workers = 3, 1
	}
	w := newSim(t, 1, p)
	t.Cleanup(w.close)
	w.heal() // no chaos
	return w
}

func (w *sim) mustConverge(d uint64) {
	w.t.Helper()
	if !w.run(d, w.converged) {
		w.t.Fatalf("no agreement:\n%s", w.dump())
	}
}

func (w *sim) counters() (c []Counters) {
	for _, n := range w.nodes {
		c = append(c, n.store.Counters())
	}
	return c
}

// TestQuiescence shows that an idle group costs nothing, what wakes it, and that a dead leader is noticed.
func TestQuiescence(t *testing.T) {
	w := quietSim(t, simParams{groups: 2, quiesce: true})
	w.mustConverge(10 * second)
	w.propose(1)
	w.run(3*second, nil)
	all := func(want bool) {
		t.Helper()
		for _, n := range w.nodes {
			if g := n.machines[1].g; g.quiet.quiesced != want || g.skipTick.Load() != want {
				t.Errorf("node %d: quiesced %v, no ticks %v", n.id, g.quiet.quiesced, g.skipTick.Load())
			}
			if n.machines[0].g.quiet.quiesced {
				t.Errorf("node %d: group 0 is quiesced", n.id)
			}
		}
	}
	all(true)
	term := w.leader(1).role.Term
	before := w.counters()
	ticks := w.leader(1).ticks
	w.run(30*second, nil)
	all(true)
	if got := w.leader(1).ticks; got != ticks {
		t.Errorf("%d ticks for an idle machine", got-ticks)
	}
	for i, c := range w.counters() {
		// Group 0's leader sends a heartbeat per follower and tick.
		if beats := c.BeatsSent - before[i].BeatsSent; beats > 2*300+50 {
			t.Errorf("node %d: %d heartbeats in 300 ticks", i+1, beats)
		}
	}

	// A proposal wakes the group, and it goes back to sleep.
	w.propose(1)
	last := w.truths[1].delivered
	if !w.run(second, func() bool { return w.truths[1].delivered > last }) {
		t.Error("a proposal does not wake the group")
	}
	w.run(3*second, nil)
	all(true)
	if got := w.leader(1).role.Term; got != term {
		t.Errorf("election in a quiet cluster: term %d became %d", term, got)
	}

	// A machine that is not idle gets its ticks, while the group stays quiet.
	m := w.node(2).machines[1]
	m.busy = true
	w.node(2).store.Enqueue(1, truncateEvent{})
	w.run(second, nil)
	ticks = m.ticks
	w.run(second, nil)
	if m.ticks-ticks < 8 || !m.g.quiet.quiesced {
		t.Errorf("busy machine: %d ticks in a second, quiesced %v", m.ticks-ticks, m.g.quiet.quiesced)
	}
	m.busy = false
	w.run(second, nil)

	// The leader's process goes: the others notice and elect.
	l := w.leader(1)
	w.node(l.node).crash()
	delete(w.node(l.node).machines, 1)
	if !w.run(5*second, func() bool { n := w.leader(1); return n != nil && n.role.Term > term }) {
		t.Fatalf("nobody takes over from a dead leader:\n%s", w.dump())
	}
	// It comes back, and everybody may sleep again.
	w.node(l.node).start()
	w.run(10*second, nil)
	w.mustConverge(second)
	all(true)

	// A restart that nobody notices as a lost connection, only by the incarnation, wakes the leader, which pings.
	follower := w.node(1 + w.leader(1).node%3)
	follower.crash()
	follower.start()
	w.run(5*second, nil)
	w.mustConverge(second)
	all(true)
}

// TestLostQuiesce shows that a follower that misses the word wakes its leader before anybody is elected.
func TestLostQuiesce(t *testing.T) {
	w := quietSim(t, simParams{groups: 2, quiesce: true})
	w.mustConverge(10 * second)
	l := w.leader(1)
	term := l.role.Term
	w.run(300*ms, nil)
	deaf := int(1 + l.node%3)
	for range 50 {
		// Cut off while the leader falls silent.
		if w.run(100*ms, func() bool { return l.g.quiet.idle >= 4 }) {
			break
		}
	}
	w.blocked[[2]int{int(l.node), deaf}] = true
	w.node(ids.NodeID(deaf)).seen[l.node] = w.node(l.node).incarnation
	w.run(150*ms, nil)
	delete(w.blocked, [2]int{int(l.node), deaf})
	w.run(20*second, nil)
	if got := w.leader(1); got != l || got.role.Term != term {
		t.Errorf("leader %d of term %d became %d of term %d", l.node, term, got.node, got.role.Term)
	}
	for _, n := range w.nodes {
		if !n.machines[1].g.quiet.quiesced {
			t.Errorf("node %d is awake", n.id)
		}
	}
}

// TestBeatsAreMerged shows that heartbeats of many groups make one letter per node and tick.
func TestBeatsAreMerged(t *testing.T) {
	w := quietSim(t, simParams{groups: 20})
	w.mustConverge(20 * second)
	// All leaders on one node.
	for id := range ids.GroupID(20) {
		w.node(w.leader(id).node).store.Enqueue(id, transferEvent{1})
	}
	w.run(3*second, nil)
	before := w.counters()[0]
	w.run(10*second, nil)
	after := w.counters()[0]
	beats, letters := after.BeatsSent-before.BeatsSent, after.MessagesSent-before.MessagesSent
	if beats < 95*2*20 || letters > 110*2 {
		t.Errorf("%d heartbeats in %d letters over 100 ticks", beats, letters)
	}
}

// TestHandOver shows that a node that is about to stop gives its leaderships away well within the time that etcd takes for it, and that
// the cluster goes on at once.
func TestHandOver(t *testing.T) {
	w := quietSim(t, simParams{groups: 6, quiesce: true, nodes: 3, workers: 2})
	w.mustConverge(20 * second)
	for id := range ids.GroupID(6) {
		w.node(w.leader(id).node).store.Enqueue(id, transferEvent{2})
	}
	w.run(5*second, nil)
	n := w.node(2)
	for id := range ids.GroupID(6) {
		if l := w.leader(id); l.node != 2 {
			t.Fatalf("group %d is led by node %d", id, l.node)
		}
	}
	start := w.now
	n.store.BeginHandOver()
	if n.store.HandedOver() {
		t.Error("handed over before anything was done")
	}
	if !w.run(1500*ms, n.store.HandedOver) {
		t.Fatalf("not handed over:\n%s", w.dump())
	}
	if took := w.now - start; took > 100*ms {
		t.Errorf("took %d ms", took/ms)
	}
	n.crash()
	n.machines = map[ids.GroupID]*testMachine{}
	for id := range ids.GroupID(6) {
		last := w.truths[id].delivered
		w.propose(id)
		if !w.run(200*ms, func() bool { return w.truths[id].delivered > last }) {
			t.Errorf("group %d does not go on", id)
		}
	}
}

// TestHandOverWithoutSuccessor shows that a node that nobody can succeed does not wait.
func TestHandOverWithoutSuccessor(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 3, workers: 1})
	w.mustConverge(10 * second)
	l := w.leader(0)
	for _, n := range w.nodes {
		if n.id != l.node {
			n.crash()
		}
	}
	w.run(100*ms, nil) // the transport notices
	w.node(l.node).store.BeginHandOver()
	if !w.run(100*ms, w.node(l.node).store.HandedOver) {
		t.Errorf("waits for nobody:\n%s", w.dump())
	}
}

// TestLimits shows what happens at the limit of uncommitted bytes.
func TestLimits(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 3, workers: 1, tiny: true})
	w.mustConverge(10 * second)
	l := w.leader(0)
	for i := range w.nodes { // nothing gets through
		for j := range w.nodes {
			w.blocked[[2]int{i + 1, j + 1}] = true
		}
	}
	for range 200 {
		w.propose(0)
	}
	w.run(50*ms, nil)
	if l.dropped == 0 {
		t.Error("nothing was dropped")
	}
	if size := l.g.LogBytes(); size > 12000 {
		t.Errorf("%d bytes in the log", size)
	}
	clear(w.blocked)
	w.mustConverge(20 * second)
}

// TestConfChangeRefusals shows which changes are refused before anything is appended.
func TestConfChangeRefusals(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 3, workers: 1})
	w.mustConverge(10 * second)
	l := w.leader(0)
	self := l.g.Replica()
	other := ids.ReplicaID(1 + uint64(self)%3)
	var errs []string
	l.onFlush = func() {
		l.onFlush = nil
		for _, changes := range [][]ConfChange{
			nil,
			{{Type: 9, Replica: 7}},
			{{AddLearner, 0}},
			{{RemoveReplica, self}},
			{{AddLearner, self}},
			{{RemoveReplica, 1}, {RemoveReplica, 2}, {RemoveReplica, 3}},
		} {
			before := l.g.LastIndex()
			err := l.g.ProposeConf(changes, nil)
			if !errors.Is(err, ErrConfChange) || l.g.LastIndex() != before {
				errs = append(errs, fmt.Sprintf("%v: %v", changes, err))
			}
		}
		if err := l.g.ProposeConf([]ConfChange{{RemoveReplica, other}}, []byte("why")); err != nil {
			errs = append(errs, err.Error())
		}
		if err := l.g.ProposeConf([]ConfChange{{AddLearner, 9}}, nil); !errors.Is(err, ErrConfChange) {
			errs = append(errs, fmt.Sprintf("second change: %v", err))
		}
	}
	w.node(l.node).store.Enqueue(0, truncateEvent{})
	w.run(second, nil)
	if len(errs) > 0 || l.onFlush != nil {
		t.Error(errs)
	}
	if got := len(l.st.conf.Voters); got != 2 {
		t.Errorf("configuration %+v", l.st.conf)
	}
}

// TestOneReplica shows that a group of one needs nobody and waits for nobody.
func TestOneReplica(t *testing.T) {
	w := quietSim(t, simParams{groups: 2, nodes: 1, workers: 1, quiesce: true})
	w.mustConverge(50 * ms)
	w.propose(1)
	w.read(1)
	m := w.leader(1)
	if !w.run(50*ms, func() bool { return m.answered[w.ctx] && len(m.truth.proposed) == 1 && m.st.index == m.g.LastIndex() }) {
		t.Error("no answer")
	}
	w.run(2*second, nil)
	w.node(1).crash()
	w.node(1).start()
	w.mustConverge(50 * ms)
	w.node(1).store.BeginHandOver()
	if !w.run(50*ms, w.node(1).store.HandedOver) {
		t.Error("waits for a successor")
	}
}

// TestReadAfterRestartOfOneReplica shows that the only voter of a group, which after a restart knows less to be committed than it has
// answered before, holds reads back until it has committed an entry of its term.
func TestReadAfterRestartOfOneReplica(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 1, workers: 1})
	w.mustConverge(50 * ms)
	for range 5 {
		w.propose(0)
		w.run(5*ms, nil)
	}
	last := w.leader(0).st.index
	w.node(1).crash()
	w.node(1).start()
	m := w.node(1).machines[0]
	m.onRole = func() {
		if m.role.IsLeader { // before it can have committed anything in this term
			m.reads[1] = 0
			m.g.ReadIndex(1)
		}
	}
	if !w.run(100*ms, func() bool { return m.answered[1] }) {
		t.Fatal("no answer")
	}
	if m.lastRead < last {
		t.Errorf("a read was answered with entry %d, but entry %d was delivered before the restart", m.lastRead, last)
	}
}

// TestRemovedLeaderIsHeard shows that a leader whose change removes itself does not leave the others without a leader: they do
// not know the change committed, and by the old configuration they need its vote, which it refuses, its log being longer.
func TestRemovedLeaderIsHeard(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 3, workers: 1})
	w.mustConverge(10 * second)
	l := w.leader(0)
	self := l.g.Replica()
	var rest []ids.ReplicaID
	for r := ids.ReplicaID(1); r <= 3; r++ {
		if r != self {
			rest = append(rest, r)
		}
	}
	// Down to two voters, so that the old majority is both.
	w.node(l.node).store.Enqueue(0, confEvent{[]ConfChange{{RemoveReplica, rest[1]}}})
	w.run(second, nil)
	w.node(l.node).store.Enqueue(0, confEvent{[]ConfChange{{AddLearner, rest[1]}}})
	w.run(3*second, nil)
	// Nobody hears of the change being committed, nor gets what the leader appends behind it.
	var leave uint64
	w.lose = func(from *simNode, body []byte) bool {
		if from.id != l.node || leave == 0 || !l.role.IsLeader {
			return false
		}
		commit, last := uint64(0), uint64(0)
		switch body[0] {
		case kindMessage:
			m, err := decodeMessage(body[1:])
			if err != nil {
				t.Fatal(err)
			}
			commit = m.GetCommit()
			if n := len(m.GetEntries()); n > 0 {
				last = m.GetEntries()[n-1].GetIndex()
			}
		case kindBeats:
			_ = decodeBeats(body[1:], func(_ ids.GroupID, m *raftpb.Message, _ bool) { commit = max(commit, m.GetCommit()) })
		}
		return commit >= leave || last > leave
	}
	l.onFlush = func() {
		l.onFlush = nil
		cc, err := confChange([]ConfChange{{AddVoter, rest[1]}, {RemoveReplica, self}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		// Not by ProposeConf, which refuses it; leadership may move after a proposal.
		if err := l.g.rn.ProposeConfChange(cc); err != nil {
			t.Fatal(err)
		}
		l.g.proposed()
		leave = uint64(l.g.LastIndex()) + 1 // Raft leaves the joint configuration next
	}
	w.node(l.node).store.Enqueue(0, truncateEvent{})
	for range 1000 {
		w.run(1*ms, nil)
		if uint64(l.g.LastIndex()) >= leave && leave > 0 && l.role.IsLeader {
			w.propose(0)
		}
		if !l.role.IsLeader {
			break
		}
	}
	if l.role.IsLeader || l.st.conf.Joint() || uint64(l.g.LastIndex()) <= leave {
		t.Fatalf("not the situation that this is about:\n%s", w.dump())
	}
	if !w.run(20*second, func() bool {
		n := w.leader(0)
		return n != nil && n != l && n.st.term > l.st.term && !n.st.conf.Joint()
	}) {
		t.Errorf("no leader:\n%s", w.dump())
	}
}

// TestStatus shows what an operator sees.
func TestStatus(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 3, workers: 1})
	w.mustConverge(10 * second)
	w.propose(0)
	w.run(second, nil)
	var got []GroupStatus
	for _, n := range w.nodes {
		if n.store.Status(9, nil) {
			t.Error("status of a group that is not there")
		}
		n.store.Status(0, func(st GroupStatus) { got = append(got, st) })
	}
	w.run(10*ms, nil)
	if len(got) != 3 {
		t.Fatal(got)
	}
	leaders := 0
	for _, st := range got {
		role, ok := w.node(ids.NodeID(st.Replica)).store.Role(0)
		if !ok || role != st.Role {
			t.Errorf("%+v, %+v", role, st.Role)
		}
		if st.Commit != w.truths[0].delivered || st.Delivered != st.Commit || st.Last != st.Commit || len(st.Conf.Voters) != 3 || st.LogBytes == 0 {
			t.Errorf("%+v", st)
		}
		if st.State == "leader" {
			leaders++
			if len(st.Followers) != 2 || st.Followers[0].Match != st.Last || !st.Followers[1].Active || st.Followers[0].State != "replicate" {
				t.Errorf("%+v", st)
			}
		}
	}
	if leaders != 1 {
		t.Error(got)
	}
}

// TestBadLetters shows that no letter does harm.
func TestBadLetters(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 3, workers: 1})
	s := w.node(1).store
	for _, body := range [][]byte{nil, {0}, {kindMessage}, {kindMessage, 2, 0, 1, 2, 3}, {kindBeats, 1}, {kindQuiesce, 9}, {0xff, 1}} {
		if err := s.Receive(2, 0, body); !errors.Is(err, ErrBadMessage) {
			t.Errorf("%x: %v", body, err)
		}
	}
	// For a group that is not there, or a replica that is not here: dropped.
	beat := appendBeat([]byte{kindBeats}, beat{group: 5, to: 1, from: 2, term: 99})
	if err := s.Receive(2, 0, beat); err != nil {
		t.Error(err)
	}
	if c := s.Counters(); c.MessagesDropped != 1 || c.MessagesReceived != 0 {
		t.Errorf("%+v", c)
	}
}
