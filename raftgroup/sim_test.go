package raftgroup

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/raftlog"
)

// The simulation runs several stores in one goroutine, in virtual time, with a network and disks that follow the seed.

type simEvent struct {
	at, n uint64
	fn    func()
}

type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simEvent)) }
func (q *simQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

// simParams are the faults of a run.
type simParams struct {
	nodes, groups, workers int
	drop, dup              float64
	slow                   float64 // share of messages that take long
	keepUnsynced           bool    // a crash may keep what was not synced
	quiesce                bool
	confChanges            bool
	tiny                   bool // limits so low that they are met
	failInstall            float64
}

const (
	us     = 1
	ms     = 1000
	second = 1000 * ms
	tickUs = 100 * ms
)

type sim struct {
	t     *testing.T
	p     simParams
	rng   *rand.Rand
	now   uint64
	queue simQueue
	n     uint64
	steps int
	hash  uint64

	nodes   []*simNode
	truths  []*truth
	blocked map[[2]int]bool // from, to
	next    int             // payloads
	ctx     uint64
	nextID  ids.ReplicaID // for replicas that are added
	homes   map[ids.ReplicaID]ids.NodeID
	calm    bool // no more faults
	lose    func(from *simNode, body []byte) bool
}

// simNode is a machine room: the process in it may come and go.
type simNode struct {
	w           *sim
	id          ids.NodeID
	incarnation uint64
	up          bool
	fs          *vfs.MemFS
	db          *pebble.DB
	log         *raftlog.Log
	store       *Store
	machines    map[ids.GroupID]*testMachine
	seen        map[ids.NodeID]uint64
	// durable
	disk     map[ids.GroupID]machineState
	replicas map[ids.GroupID]ids.ReplicaID
}

func simTrace() bool { return os.Getenv("RAFTGROUP_TRACE") != "" }

func newSim(t *testing.T, seed uint64, p simParams) *sim {
	w := &sim{
		t: t, p: p, rng: rand.New(rand.NewPCG(seed, 77)), blocked: map[[2]int]bool{}, nextID: 100,
		homes: map[ids.ReplicaID]ids.NodeID{},
	}
	for range p.groups {
		w.truths = append(w.truths, newTruth())
	}
	for i := range p.nodes {
		n := &simNode{
			w: w, id: ids.NodeID(i + 1), fs: vfs.NewCrashableMem(),
			disk: map[ids.GroupID]machineState{}, replicas: map[ids.GroupID]ids.ReplicaID{},
		}
		w.nodes = append(w.nodes, n)
		w.homes[ids.ReplicaID(i+1)] = n.id
		voters := []ids.ReplicaID{1, 2, 3}[:min(3, p.nodes)]
		for g := range p.groups {
			if i < 3 {
				n.replicas[ids.GroupID(g)] = ids.ReplicaID(i + 1)
				n.disk[ids.GroupID(g)] = machineState{conf: ConfState{Voters: voters}}
			}
		}
	}
	for _, n := range w.nodes {
		n.start()
		w.pumpLater(n)
		w.after(w.between(1, tickUs), func() { w.tick(n) })
	}
	return w
}

func (w *sim) close() {
	for _, n := range w.nodes {
		if n.up {
			n.db.Close()
		}
	}
}

func (w *sim) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("at %d µs: %s", w.now, fmt.Sprintf(format, args...))
}

func (w *sim) trace(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	h := fnv.New64a()
	fmt.Fprintf(h, "%x %d %s", w.hash, w.now, s)
	w.hash = h.Sum64()
	if simTrace() {
		fmt.Printf("%9d %s\n", w.now, s)
	}
}

func (w *sim) after(d uint64, fn func()) {
	w.n++
	heap.Push(&w.queue, simEvent{w.now + d, w.n, fn})
}

func (w *sim) between(lo, hi uint64) uint64     { return lo + w.rng.Uint64N(hi-lo+1) }
func (w *sim) chance(p float64) bool            { return w.rng.Float64() < p }
func (w *sim) pick() *simNode                   { return w.nodes[w.rng.IntN(len(w.nodes))] }
func (w *sim) node(id ids.NodeID) *simNode      { return w.nodes[id-1] }
func (w *sim) peers(r ids.ReplicaID) ids.NodeID { return w.homes[r] }

// run goes on until the time has come or done says so, and reports the latter.
func (w *sim) run(d uint64, done func() bool) bool {
	end := w.now + d
	for len(w.queue) > 0 && w.queue[0].at <= end {
		e := heap.Pop(&w.queue).(simEvent)
		w.now = e.at
		if w.steps++; w.steps > 20_000_000 {
			w.failf("budget of steps spent")
		}
		e.fn()
		if done != nil && w.steps%64 == 0 && done() {
			return true
		}
	}
	w.now = end
	return done != nil && done()
}

// pumpLater keeps a node's pumps going, each by itself.
func (w *sim) pumpLater(n *simNode) {
	for i := range w.p.workers {
		var again func()
		again = func() {
			if n.up {
				n.store.Pump(i)
			}
			w.after(w.between(100*us, 2*ms), again)
		}
		again()
	}
	var disk func()
	disk = func() {
		if n.up {
			if _, err := n.log.Pump(); err != nil {
				w.failf("log of node %d: %v", n.id, err)
			}
		}
		w.after(w.between(500*us, 5*ms), disk)
	}
	disk()
}

func (w *sim) tick(n *simNode) {
	if n.up {
		n.store.Tick()
	}
	w.after(w.between(tickUs*9/10, tickUs*11/10), func() { w.tick(n) })
}

// SendRaft is the network's side of a node.
func (n *simNode) SendRaft(to ids.NodeID, group ids.GroupID, body []byte) {
	w := n.w
	if w.lose != nil && w.lose(n, body) {
		return
	}
	copies := 1
	if !w.calm {
		if w.chance(w.p.drop) {
			return
		}
		if w.chance(w.p.dup) {
			copies = 2
		}
	}
	for range copies {
		delay := w.between(200*us, 3*ms)
		if !w.calm && w.chance(w.p.slow) {
			delay = w.between(10*ms, 800*ms)
		}
		from, incarnation := n, n.incarnation
		w.after(delay, func() {
			dst := w.node(to)
			if !dst.up || w.blocked[[2]int{int(from.id), int(to)}] {
				return
			}
			// The transport connects first. Letters of an older process may still come.
			if from.up && from.incarnation == incarnation && dst.seen[from.id] != incarnation {
				dst.seen[from.id] = incarnation
				dst.store.PeerUp(from.id, incarnation)
			}
			if err := dst.store.Receive(from.id, group, slices.Clone(body)); err != nil {
				w.failf("node %d: %v", to, err)
			}
		})
	}
}

// watchPeers tells a node what its transport would notice: who has gone and who is back.
func (w *sim) watchPeers() {
	for _, n := range w.nodes {
		for _, peer := range w.nodes {
			if n == peer || !n.up {
				continue
			}
			reachable := peer.up && !w.blocked[[2]int{int(peer.id), int(n.id)}]
			switch old := n.seen[peer.id]; {
			case old != 0 && (!reachable || old != peer.incarnation):
				n.seen[peer.id] = 0
				n.store.PeerDown(peer.id)
			case old == 0 && reachable:
				n.seen[peer.id] = peer.incarnation
				n.store.PeerUp(peer.id, peer.incarnation)
			}
		}
	}
}

func (n *simNode) config() Config {
	c := Config{Node: n.id, Incarnation: n.incarnation, Workers: n.w.p.workers, QuiesceTicks: 5, SnapshotTicks: 20}
	if n.w.p.tiny {
		c.MaxMessageBytes, c.MaxInflightMessages, c.MaxInflightBytes = 200, 4, 600
		c.MaxDeliverBytes, c.MaxUncommittedBytes, c.MaxInboxBytes = 300, 1500, 2000
	}
	if simTrace() && os.Getenv("RAFTGROUP_TRACE") == "2" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", uint64(n.id))
	}
	return c
}

// start starts a process on what the disk has.
func (n *simNode) start() {
	w := n.w
	n.incarnation++
	n.seen = map[ids.NodeID]uint64{}
	n.machines = map[ids.GroupID]*testMachine{}
	var err error
	n.db, err = pebble.Open("log", &pebble.Options{FS: n.fs, FormatMajorVersion: pebble.FormatNewest, Logger: panicLogger{}})
	if err != nil {
		w.failf("node %d: %v", n.id, err)
	}
	n.log, err = raftlog.Open(n.db, func(err error) { w.failf("node %d: %v", n.id, err) }, raftlog.Options{CacheBytes: 1})
	if err != nil {
		w.failf("node %d: %v", n.id, err)
	}
	n.store, err = New(n.config(), n.log, n)
	if err != nil {
		w.failf("node %d: %v", n.id, err)
	}
	n.up = true
	w.trace("start %d.%d", n.id, n.incarnation)
	for g := range w.p.groups {
		if _, ok := n.replicas[ids.GroupID(g)]; ok {
			n.add(ids.GroupID(g))
		}
	}
}

func (n *simNode) add(id ids.GroupID) {
	w, st := n.w, n.disk[id]
	err := n.store.Add(GroupConfig{
		ID: id, Replica: n.replicas[id], Peers: w.peers, Initial: st.conf, Applied: st.index, AppliedTerm: st.term,
		Quiesce: w.p.quiesce && id != 0,
		New: func(g *Group) Machine {
			m := &testMachine{
				g: g, node: n.id, truth: w.truths[id], st: st, failf: w.failf, trace: w.trace, install: w.install,
				reads: map[uint64]ids.Index{}, answered: map[uint64]bool{},
			}
			n.machines[id] = m
			return m
		},
	})
	if err != nil {
		w.failf("node %d group %d: %v", n.id, id, err)
	}
}

// install is what a machine does with an offer: it fetches the newest state from the sender and puts it on disk at once, as an
// ingestion would.
func (w *sim) install(m *testMachine, from ids.NodeID, meta SnapMeta, done func(*SnapMeta)) {
	n := w.node(m.node)
	incarnation := n.incarnation
	w.after(w.between(1*ms, 600*ms), func() {
		if !n.up || n.incarnation != incarnation || n.machines[m.g.ID()] != m {
			return
		}
		if !w.calm && w.chance(w.p.failInstall) {
			m.restoring = false
			done(nil)
			return
		}
		if src := w.node(from); src.up && w.chance(0.5) {
			if sm := src.machines[m.g.ID()]; sm != nil && !sm.restoring && sm.st.index >= meta.Index {
				meta = sm.st.meta()
			}
		}
		m.installed(meta)
		n.disk[m.g.ID()] = m.st
		w.trace("installed %d.%d at %d", n.id, m.g.ID(), m.st.index)
		if !w.calm && w.chance(0.2) {
			n.crash() // before the log knows
			return
		}
		done(&meta)
		done(nil) // only the first call counts
	})
}

func (n *simNode) crash() {
	if !n.up {
		return
	}
	w := n.w
	cfg := vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(w.rng.Uint64(), 3))}
	if w.p.keepUnsynced {
		cfg.UnsyncedDataPercent = w.rng.IntN(101)
	}
	clone := n.fs.CrashClone(cfg)
	n.db.Close()
	n.fs, n.up = clone, false
	w.trace("crash %d", n.id)
}

// flush makes the machines' states durable together and lets the logs go.
func (n *simNode) flush() {
	for g := range n.w.p.groups {
		id := ids.GroupID(g)
		m := n.machines[id]
		if m == nil || m.restoring {
			continue
		}
		n.disk[id] = m.st
		if tail := ids.Index(n.w.rng.IntN(20)); m.st.index > tail {
			n.store.Enqueue(id, truncateEvent{m.st.index - tail})
		}
	}
}

// leader is the machine of a group that thinks it leads, the one of the highest term if there are several.
func (w *sim) leader(id ids.GroupID) *testMachine {
	var best *testMachine
	for _, n := range w.nodes {
		if m := n.machines[id]; n.up && m != nil && m.role.IsLeader && (best == nil || m.role.Term > best.role.Term) {
			best = m
		}
	}
	return best
}

func (w *sim) propose(id ids.GroupID) {
	if m := w.leader(id); m != nil {
		w.next++
		data := fmt.Sprintf("payload-%d-%0*d", w.next, w.rng.IntN(80), 0)
		w.node(m.node).store.Enqueue(id, proposeEvent{data})
	}
}

func (w *sim) read(id ids.GroupID) {
	n := w.pick()
	if n.up && n.machines[id] != nil {
		w.ctx++
		n.store.Enqueue(id, readEvent{w.ctx})
	}
}

type panicLogger struct{}

func (panicLogger) Infof(string, ...any)              {}
func (panicLogger) Errorf(string, ...any)             {}
func (panicLogger) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
