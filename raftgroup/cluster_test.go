package raftgroup

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"testing/cryptotest"

	"github.com/braidkv/braid/internal/ids"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "run only this seed of the simulation")
	simSeeds = flag.Uint64("sim.seeds", 12, "how many seeds to run")
)

// chaos keeps things happening: proposals, reads, crashes, partitions, flushes, transfers, configuration changes.
func (w *sim) chaos() {
	again := func(lo, hi uint64, fn func()) {
		var loop func()
		loop = func() {
			if w.calm {
				return
			}
			fn()
			w.after(w.between(lo, hi), loop)
		}
		w.after(w.between(lo, hi), loop)
	}
	group := func() ids.GroupID { return ids.GroupID(w.rng.IntN(w.p.groups)) }
	again(1*ms, 40*ms, func() {
		id := group()
		for range w.rng.IntN(8) {
			w.propose(id)
		}
	})
	again(5*ms, 100*ms, func() { w.read(group()) })
	again(20*ms, 2*second, func() {
		if n := w.pick(); n.up {
			n.flush()
		}
	})
	again(1*second, 12*second, func() {
		n := w.pick()
		n.crash()
		w.after(w.between(1*ms, 4*second), n.startAgain)
	})
	again(2*second, 10*second, w.partition)
	again(50*ms, 50*ms, w.watchPeers)
	again(1*second, 8*second, func() {
		if m := w.leader(group()); m != nil {
			w.node(m.node).store.Enqueue(m.g.ID(), transferEvent{w.pick().id})
		}
	})
	again(3*second, 20*second, func() {
		if n := w.pick(); n.up {
			n.store.Campaign(group())
		}
	})
	if w.p.confChanges {
		again(500*ms, 3*second, func() { w.changeConf(group()) })
	}
}

func (n *simNode) startAgain() {
	if !n.up {
		n.start()
	}
}

// partition cuts some links, in one or both directions, for a while.
func (w *sim) partition() {
	var cut [][2]int
	alone := w.rng.IntN(len(w.nodes)) + 1
	for i := range w.nodes {
		for j := range w.nodes {
			if a, b := i+1, j+1; a != b && (a == alone && w.chance(0.8) || b == alone && w.chance(0.8) || w.chance(0.1)) {
				cut = append(cut, [2]int{a, b})
			}
		}
	}
	for _, c := range cut {
		w.blocked[c] = true
	}
	w.trace("cut %v", cut)
	w.after(w.between(100*ms, 5*second), func() {
		for _, c := range cut {
			delete(w.blocked, c)
		}
	})
}

// changeConf has a leader change its group's configuration: add a learner on a node that has no member, promote one, remove or
// replace a voter.
func (w *sim) changeConf(id ids.GroupID) {
	m := w.leader(id)
	if m == nil {
		return
	}
	conf := m.st.conf
	members := slices.Concat(conf.Voters, conf.Learners, conf.VotersOutgoing)
	if conf.Joint() {
		return
	}
	ev := confEvent{}
	switch {
	case len(conf.Learners) > 0 && w.chance(0.7):
		l := conf.Learners[0]
		ev.changes = []ConfChange{{AddVoter, l}}
		if w.chance(0.5) {
			ev.changes = append(ev.changes, ConfChange{RemoveReplica, conf.Voters[w.rng.IntN(len(conf.Voters))]})
		}
	case len(conf.Voters) > 3 || len(conf.Learners) > 0 && w.chance(0.3):
		r := members[w.rng.IntN(len(members))]
		if slices.Contains(conf.Voters, r) && len(conf.Voters) <= 2 {
			return
		}
		ev.changes = []ConfChange{{RemoveReplica, r}}
	default:
		// A node that has no member of this group, as the leader sees it.
		var free []*simNode
		for _, n := range w.nodes {
			if n.up && !slices.ContainsFunc(members, func(r ids.ReplicaID) bool { return w.homes[r] == n.id }) {
				free = append(free, n)
			}
		}
		if len(free) == 0 {
			return
		}
		n := free[w.rng.IntN(len(free))]
		if r, ok := n.replicas[id]; ok && m.knows(r) {
			// What it has is of a replica that was removed; it goes first.
			w.discard(n, id)
			return
		} else if !ok {
			w.nextID++
			w.homes[w.nextID] = n.id
			n.replicas[id], n.disk[id] = w.nextID, machineState{}
			n.add(id)
		}
		ev.changes = []ConfChange{{AddLearner, n.replicas[id]}}
	}
	w.node(m.node).store.Enqueue(id, ev)
}

// knows tells whether a replica has been a member in some configuration up to this machine's state. IDs that were added but never
// became members are higher than all.
func (m *testMachine) knows(r ids.ReplicaID) bool {
	for i := ids.Index(0); i <= m.st.index; i++ {
		st, ok := m.truth.states[i]
		if ok && slices.Contains(slices.Concat(st.conf.Voters, st.conf.Learners), r) {
			return true
		}
	}
	return r <= 3
}

// discard removes a replica that is no longer a member.
func (w *sim) discard(n *simNode, id ids.GroupID) {
	incarnation := n.incarnation
	delete(n.machines, id)
	n.store.Remove(id, func() {
		if n.incarnation == incarnation {
			delete(n.replicas, id)
			delete(n.disk, id)
			w.trace("discarded %d.%d", n.id, id)
		}
	})
}

// heal ends all faults.
func (w *sim) heal() {
	w.calm = true
	clear(w.blocked)
	for _, n := range w.nodes {
		n.startAgain()
	}
	var watch func()
	watch = func() {
		w.watchPeers()
		w.after(50*ms, watch)
	}
	watch()
}

// converged tells whether all members of all groups have the same state and know the same leader.
func (w *sim) converged() bool {
	for id := range ids.GroupID(w.p.groups) {
		l := w.leader(id)
		if l == nil || l.st.index < w.truths[id].delivered || l.st.conf.Joint() {
			return false
		}
		for _, r := range slices.Concat(l.st.conf.Voters, l.st.conf.Learners) {
			m := w.node(w.homes[r]).machines[id]
			if m == nil || m.st.chain != l.st.chain || m.role.LeaderReplica != l.g.Replica() || m.role.Term != l.role.Term {
				return false
			}
		}
	}
	return true
}

func (w *sim) dump() string {
	s := ""
	for _, n := range w.nodes {
		for id := range ids.GroupID(w.p.groups) {
			if m := n.machines[id]; m != nil && n.up {
				s += fmt.Sprintf("node %d: %+v\n   state %+v restoring %v\n", n.id, m.g.status(), m.st, m.restoring)
			}
		}
	}
	return s
}

// runChaos runs a seed: faults for a while, then calm, in which everything must come together and go on.
func runChaos(t *testing.T, seed uint64, p simParams) uint64 {
	t.Logf("seed %d: go test ./raftgroup -run %s -sim.seed=%d", seed, t.Name(), seed)
	cryptotest.SetGlobalRandom(t, seed)
	w := newSim(t, seed, p)
	defer w.close()
	w.chaos()
	w.run(60*second, nil)
	w.heal()
	if !w.run(60*second, w.converged) {
		t.Fatalf("no agreement a minute after the last fault:\n%s", w.dump())
	}
	before := make([]ids.Index, p.groups)
	var propose func()
	propose = func() {
		for id, tr := range w.truths {
			if tr.delivered <= before[id] {
				w.propose(ids.GroupID(id))
			}
		}
		w.after(1*second, propose)
	}
	for id, tr := range w.truths {
		before[id] = tr.delivered
	}
	propose()
	if !w.run(20*second, func() bool {
		for id, tr := range w.truths {
			if tr.delivered <= before[id] {
				return false
			}
		}
		return w.converged()
	}) {
		t.Fatalf("no progress after the last fault:\n%s", w.dump())
	}
	var restored, delivered uint64
	for _, n := range w.nodes {
		c := n.store.Counters()
		restored, delivered = restored+c.SnapshotsRestored, delivered+c.EntriesDelivered
	}
	t.Logf("%d steps, %d entries, last incarnations: %d delivered, %d restored", w.steps, w.truths[0].delivered, delivered, restored)
	return w.hash
}

func paramsOf(seed uint64) simParams {
	return simParams{
		nodes: 4, groups: 3, workers: int(1 + seed%2),
		drop: []float64{0, 0.02, 0.15}[seed%3], dup: 0.05, slow: []float64{0, 0.02}[seed/2%2],
		keepUnsynced: seed%4 == 1, quiesce: seed%5 != 0, confChanges: seed%2 == 0, tiny: seed%4 >= 2, failInstall: 0.2,
	}
}

func TestChaos(t *testing.T) {
	seeds := *simSeeds
	if testing.Short() {
		seeds = min(seeds, 4)
	}
	for i := range seeds {
		seed := i + 1
		if *simSeed != 0 {
			if i > 0 {
				return
			}
			seed = *simSeed
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runChaos(t, seed, paramsOf(seed)) })
	}
}

// TestSameSeedSameRun shows that nothing but the seed decides.
func TestSameSeedSameRun(t *testing.T) {
	for _, seed := range []uint64{4, 6} {
		p := paramsOf(seed)
		p.keepUnsynced = false
		var first uint64
		t.Run("first", func(t *testing.T) { first = runChaos(t, seed, p) })
		t.Run("second", func(t *testing.T) {
			if second := runChaos(t, seed, p); second != first {
				t.Errorf("seed %d: traces %x and %x", seed, first, second)
			}
		})
	}
}
