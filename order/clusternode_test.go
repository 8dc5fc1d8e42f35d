package order

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/storage/key"
)

// hNode is a node of the simulated cluster, and its machine's Host.
type hNode struct {
	c  *cluster
	i  int
	id ids.NodeID
	fs *vfs.MemFS
	db *pebble.DB
	m  *Machine

	incarnation uint64
	role        Role
	events      []any
	states      []hReadState
	restored    func() // to be called when the data is flushed; entries stay away until then
	published   ids.Position
	waits       int // reads that wait for their position

	replicas map[ids.RangeID]*hReplica
	know     map[ids.RangeID]int      // committed seqs of each range that this node knows of
	leads    map[ids.RangeID]ids.Term // ranges that this node believes to lead
	said     map[ids.RangeID]ids.Seq  // progress told
}

type hReadState struct {
	ctx   uint64
	index int
	term  ids.Term
}

// hReplica is a replica: the items applied, as a hash.
type hReplica struct {
	seq      ids.Seq
	frontier ids.Position
	hash     uint64
	queue    []*braidpb.Items
	refill   ids.Position
}

func (n *hNode) start() {
	db, err := pebble.Open("data", &pebble.Options{
		FS: n.fs, Comparer: key.Comparer, DisableWAL: true, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{},
	})
	if err != nil {
		panic(err)
	}
	n.db = db
	n.incarnation++
	n.replicas, n.leads, n.said = map[ids.RangeID]*hReplica{}, map[ids.RangeID]ids.Term{}, map[ids.RangeID]ids.Seq{}
	n.events, n.states, n.restored, n.role = nil, nil, nil, Role{}
	m, info, err := New(Config{
		Node: n.id, Incarnation: n.incarnation, Data: db, Bootstrap: n.c.init, Mutation: n.c.mutation,
		Limits: Limits{KeepEntries: 5, History: 16, MaxCommands: 3},
	})
	if err != nil {
		panic(err)
	}
	n.m = m
	n.published = info.Applied
	if info.Applied > 0 && len(info.Conf.Voters) == 0 {
		n.c.failf("node %d: configuration lost", n.i)
	}
	m.Start(n)
}

// crash restarts the node with what its disk has.
func (n *hNode) crash() {
	c := n.c
	if c.leader == n.i {
		c.leader = -1
		defer c.elect(c.rnd.IntN(len(c.nodes)))
	}
	// What clients of the node waited for is gone with it.
	fs := n.fs.CrashClone(vfs.CrashCloneCfg{})
	for _, e := range n.events {
		n.m.Handle([]any{e})
	}
	n.m.Stop()
	c.reads -= n.waits
	n.waits = 0
	n.db.Close()
	n.fs = fs
	for _, r := range c.ranges {
		if r.leader == n.i {
			r.leader = -1
		}
		// The log is synced, but not what was known to be committed.
		n.know[r.id] = 0
	}
	n.start()
	c.stats["crashes"]++
}

// Host.

func (n *hNode) Propose(data []byte) error {
	c := n.c
	if !n.role.IsLeader {
		return errors.New("not leader")
	}
	if !c.fair && c.chance(10) {
		return errors.New("dropped")
	}
	e, err := DecodeEntry(data)
	if err != nil {
		c.failf("proposed: %w", err)
		return err
	}
	for _, cmd := range e.GetCommands() {
		c.checkCut(n, cmd.GetCut())
	}
	if c.leader == n.i && c.term == n.role.Term {
		c.log = append(c.log, hEntry{term: c.term, data: append([]byte(nil), data...)})
		inflight := 0
		for p := c.noop; p < len(c.log); p++ {
			if p >= int(n.m.state.at.Position) {
				inflight++
			}
		}
		if inflight > 2 {
			c.failf("%d entries in flight", inflight)
		}
	} // else a deposed leader, whose tail will be lost
	return nil
}

func (n *hNode) ReadIndex(ctx uint64) {
	c := n.c
	if c.leader == n.i && c.term == n.role.Term && c.committed >= c.noop && (c.fair || c.chance(80)) {
		n.states = append(n.states, hReadState{ctx, c.committed, c.term})
	}
}

func (n *hNode) Truncate(through ids.Position) {
	if through > n.m.state.at.Position-5 {
		n.c.failf("node %d: log truncated through %d at position %d", n.i, through, n.m.state.at.Position)
	}
	n.c.stats["truncations"]++
}

func (n *hNode) Send(to ids.NodeID, kind LetterKind, m proto.Message) {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	if to == n.id {
		n.c.failf("node %d writes to itself", n.i)
	}
	if len(n.c.letters) < 100 {
		n.c.letters = append(n.c.letters, hLetter{n.id, to, kind, b})
	}
}

func (n *hNode) CreateRange(d *braidpb.RangeDescriptor) {
	id := ids.RangeID(d.Id)
	if n.replicas[id] != nil {
		n.c.failf("node %d: range %d created twice", n.i, id)
	}
	p := &hReplica{}
	n.replicas[id] = p
	v, closer, err := n.db.Get(key.Replica(id, 'x'))
	if err == nil {
		p.seq, p.frontier = ids.Seq(binary.BigEndian.Uint64(v)), ids.Position(binary.BigEndian.Uint64(v[8:]))
		p.hash = binary.BigEndian.Uint64(v[16:])
		closer.Close()
	}
}

func (n *hNode) Refill(r ids.RangeID, min ids.Position) {
	if p := n.replicas[r]; p.frontier < min {
		p.refill = min
	}
}

func (n *hNode) Dispatch(r ids.RangeID, it *braidpb.Items) {
	c := n.c
	at := ids.Position(it.GetPosition())
	if at <= n.published && at > n.m.View().Position {
		c.failf("node %d: item of position %d after it was published", n.i, at)
	}
	var got []string
	for _, x := range it.Items {
		got = append(got, describe(x))
	}
	if want := c.told(uint64(r), uint64(at)); want != strings.Join(got, "; ") {
		c.failf("O2: node %d, position %d, range %d: %q; right is %q", n.i, at, r, got, want)
	}
	p := n.replicas[r]
	if k := len(p.queue); k > 0 && ids.Position(p.queue[k-1].Position) >= at {
		c.failf("node %d: item of range %d at %d after %d", n.i, r, at, p.queue[k-1].Position)
	}
	// What is dispatched must be in the data engine.
	if s, err := Load(n.db); err != nil || s.Position() < at {
		c.failf("node %d: item of position %d dispatched at %d, %v", n.i, at, s.Position(), err)
	}
	if at > p.frontier {
		p.queue = append(p.queue, it)
	}
}

func (n *hNode) FlushData(done func()) { n.restored = done }

func (n *hNode) Fatal(err error) { n.c.failf("node %d: fatal: %w", n.i, err) }

// learn tells the node of a term.
func (n *hNode) learn(term ids.Term) {
	if term <= n.role.Term && (term < n.role.Term || n.role.Leader != 0) {
		return
	}
	i, ok := n.c.leaders[term]
	r := Role{Term: term}
	if ok {
		r.Leader, r.LeaderReplica, r.IsLeader = n.c.nodes[i].id, ids.ReplicaID(n.c.nodes[i].id), i == n.i && n.c.leader == i
	}
	if ok && i == n.i && !r.IsLeader {
		r.Leader, r.LeaderReplica = 0, 0 // it was, before it crashed
	}
	n.role = r
	n.m.Role(r)
}

// loseLeader has the node suspect that there is no leader.
func (n *hNode) loseLeader() {
	if n.role.Term > 0 && !(n.c.leader == n.i && n.c.term == n.role.Term) {
		n.role = Role{Term: n.role.Term}
		n.m.Role(n.role)
	}
}

// pass is a pass of raftgroup over the machine.
func (n *hNode) pass(tick bool) {
	if n.c.err != nil {
		return
	}
	ev := n.events
	n.events = nil
	n.m.Handle(ev)
	if tick {
		n.m.Tick()
	}
	for range 3 {
		states := n.states
		n.states = nil
		for _, s := range states {
			if s.term == n.role.Term && n.role.IsLeader && s.term == n.c.term {
				n.m.ReadState(s.ctx, ids.Position(s.index))
			}
		}
		if n.restored == nil {
			n.deliver()
		}
		n.m.Flush()
		n.check()
		if len(n.states) == 0 {
			return
		}
	}
}

func (n *hNode) deliver() {
	c := n.c
	at := int(n.m.state.at.Position)
	end := c.committed
	if !c.fair && n.i == c.slow && c.chance(95) {
		end = at
	}
	if !c.fair && end > at {
		end = at + c.rnd.IntN(end-at+1)
	}
	var ents []Entry
	for p := at + 1; p <= end; p++ {
		x := c.log[p-1]
		if x.term > n.role.Term {
			if len(ents) > 0 {
				n.m.Deliver(ents)
				ents = ents[:0]
			}
			n.learn(x.term)
		}
		e := Entry{Position: ids.Position(p), Term: x.term, Data: x.data}
		if p == 1 {
			e.Conf = &ConfState{Index: 1, Voters: []ids.ReplicaID{1, 2, 3}}
		}
		ents = append(ents, e)
	}
	if len(ents) > 0 {
		n.m.Deliver(ents)
	}
}

// check looks at what is published.
func (n *hNode) check() {
	v := n.m.View()
	if v.Position < n.published {
		n.c.failf("node %d: position %d published after %d", n.i, v.Position, n.published)
	}
	n.published = v.Position
	if rev, ok := n.m.RevisionAt(v.Position); v.Position > 0 && (!ok || rev != v.Revision) {
		n.c.failf("node %d: revision at %d: %d, %v; published %d", n.i, v.Position, rev, ok, v.Revision)
	}
	if n.m.cutter.covers != nil {
		for _, x := range n.m.cutter.covers {
			if x.held != nil {
				n.c.stats["held"]++
			}
		}
	}
}

// lead makes the node lead a range: it tells again what it knows to be committed, from what its replica has applied.
func (n *hNode) lead(r *hRange) {
	n.leads[r.id] = r.term
	n.said[r.id] = n.replicas[r.id].seq
}

// hear lets the node learn what is committed in a range, and tell it if it (believes to) lead; or learn that it does not.
func (n *hNode) hear(r *hRange) {
	p := n.replicas[r.id]
	if p == nil {
		return
	}
	if n.leads[r.id] == 0 || n.leads[r.id] == r.term || n.c.chance(50) {
		n.know[r.id] = max(n.know[r.id], min(r.committed, n.know[r.id]+n.c.rnd.IntN(r.committed+1)))
	}
	term := n.leads[r.id]
	if term == 0 {
		return
	}
	if term != r.term && n.c.chance(50) {
		delete(n.leads, r.id)
		n.events = append(n.events, ProgressReset{Range: r.id})
		return
	}
	through := n.know[r.id]
	if n.c.mutation.has(reportUncommitted) && term == r.term {
		through = len(r.facts.stamps)
	}
	for from := n.said[r.id]; int(from) < through; from = n.said[r.id] {
		g := r.facts.segment(uint64(from), uint64(through))
		x := g.Runs[0]
		e := Progress{Range: r.id, Term: term, From: from, Through: ids.Seq(x.Through), Generation: ids.Generation(x.Generation), AuthRevision: ids.AuthRevision(x.AuthRevision)}
		for _, l := range x.Leases {
			e.Leases = append(e.Leases, SeqLease{ids.Seq(l.Seq), ids.LeaseID(l.Lease)})
		}
		n.said[r.id] = e.Through
		n.events = append(n.events, e)
	}
}

// replicate lets a replica apply items whose payloads it has, or refill.
func (n *hNode) replicate(r *hRange) {
	p := n.replicas[r.id]
	if p == nil || n.c.err != nil {
		return
	}
	if p.refill > p.frontier {
		for _, x := range n.c.nodes {
			if y := x.replicas[r.id]; y != nil && y.frontier >= p.refill {
				n.c.stats["refills"]++
				p.seq, p.frontier, p.hash = y.seq, y.frontier, y.hash
				n.store(r.id, p)
				break
			}
		}
		if p.refill > p.frontier {
			return
		}
	}
	for len(p.queue) > 0 {
		it := p.queue[0]
		if ids.Position(it.Position) > p.frontier && !n.apply(r, p, it) {
			return
		}
		p.queue = p.queue[1:]
	}
}

func (n *hNode) apply(r *hRange, p *hReplica, it *braidpb.Items) bool {
	h := fnv.New64a()
	fmt.Fprint(h, p.hash, it.Position)
	seq := p.seq
	for _, x := range it.Items {
		if q := x.GetSeqs(); q != nil {
			if ids.Seq(q.From) != seq {
				n.c.failf("O3: node %d, range %d: item from seq %d, applied is %d", n.i, r.id, q.From, seq)
			}
			if int(q.Through) > n.know[r.id] {
				return false
			}
			seq = ids.Seq(q.Through)
		}
		fmt.Fprint(h, describe(x))
	}
	p.seq, p.frontier, p.hash = seq, ids.Position(it.Position), h.Sum64()
	n.store(r.id, p)
	return true
}

func (n *hNode) store(id ids.RangeID, p *hReplica) {
	var v [24]byte
	binary.BigEndian.PutUint64(v[:], uint64(p.seq))
	binary.BigEndian.PutUint64(v[8:], uint64(p.frontier))
	binary.BigEndian.PutUint64(v[16:], p.hash)
	if err := n.db.Set(key.Replica(id, 'x'), v[:], pebble.NoSync); err != nil {
		panic(err)
	}
	for _, x := range n.c.nodes {
		if y := x.replicas[id]; y != nil && y.frontier == p.frontier && (y.hash != p.hash || y.seq != p.seq) {
			n.c.failf("O3: range %d differs at position %d", id, p.frontier)
		}
	}
}

// flush makes durable what is committed, and tells.
func (n *hNode) flush() {
	f := Flushed{Order: n.m.View().Position}
	for _, r := range n.c.ranges {
		if p := n.replicas[r.id]; p != nil {
			f.Ranges = append(f.Ranges, RangeFlushed{r.id, p.frontier})
		}
	}
	if err := n.db.Flush(); err != nil {
		panic(err)
	}
	n.events = append(n.events, f)
	n.finishRestore()
}

func (n *hNode) finishRestore() {
	if n.restored != nil {
		if err := n.db.Flush(); err != nil {
			panic(err)
		}
		done := n.restored
		n.restored = nil
		done()
	}
}

// snapshot sends the node another one's state instead of entries.
func (n *hNode) snapshot() {
	c := n.c
	from := c.nodes[c.rnd.IntN(len(c.nodes))]
	if from == n || n.restored != nil || from.m.state.at.Position <= n.m.state.at.Position+1 || c.leader == n.i {
		return
	}
	meta, ok := from.m.SnapshotMeta()
	if !ok {
		c.failf("node %d: no snapshot", from.i)
		return
	}
	if meta.Term > n.role.Term {
		n.learn(meta.Term)
	}
	n.m.Restore(from.id, meta, func(got *SnapMeta) {
		if got == nil || got.Position != meta.Position || got.Term != meta.Term {
			c.failf("node %d: snapshot refused", n.i)
		}
	})
	if n.m.View().Position != meta.Position {
		c.failf("node %d: at %d after a snapshot of %d", n.i, n.m.View().Position, meta.Position)
	}
	n.check()
	c.stats["snapshots"]++
}

// read asks for a position, which must cover all that is committed now, and then waits for it.
func (n *hNode) read() {
	c := n.c
	if n.restored != nil {
		return
	}
	at := ids.Position(c.committed)
	c.reads++
	n.events = append(n.events, Read{Done: func(p ids.Position, err error) {
		c.reads--
		if err != nil {
			return
		}
		c.stats["reads"]++
		if p < at {
			c.failf("read: position %d, but %d was committed before it came", p, at)
		}
		c.reads++
		n.waits++
		m := n.m
		m.WaitApplied(p, func(q ids.Position, rev ids.Revision) {
			c.reads--
			n.waits--
			if q < p || m.View().Position != q || m.View().Revision != rev {
				c.failf("read: waited for %d, got (%d, %d)", p, q, rev)
			}
		})
	}})
}

// propose proposes, and holds the outcome against the model.
func (n *hNode) propose(cmd *braidpb.OrderCommand, txn *worldTxn, abort bool) {
	c := n.c
	c.proposals++
	told := false
	n.events = append(n.events, Propose{Cmd: proto.CloneOf(cmd), Done: func(r Result) {
		c.proposals--
		if told {
			c.failf("two outcomes of %v", cmd)
		}
		told = true
		switch {
		case errors.Is(r.Err, ErrAmbiguous):
			c.stats["ambiguous"]++
			return
		case errors.Is(r.Err, ErrTimeout), errors.Is(r.Err, ErrNoLeader), errors.Is(r.Err, ErrStopped):
			c.stats["timeouts"]++
			return
		case txn == nil:
			return
		}
		// A decision past the deadline that the model does not know of is an abort.
		if txn.commit != r.Committed || r.Committed && int64(r.Revision) != txn.rev || errors.Is(r.Err, ErrTxnAborted) != (!abort && !r.Committed) {
			c.failf("txn %d: told %+v; decided %v, commit %v @%d", txn.c.Txn.Counter, r, txn.decided, txn.commit, txn.rev)
		}
		if n.m.View().Position < r.Position {
			c.failf("txn %d: told of position %d at %d", txn.c.Txn.Counter, r.Position, n.m.View().Position)
		}
		c.stats["outcomes"]++
	}})
}
