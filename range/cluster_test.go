package ranges

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sort"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/storage"
	"github.com/braidkv/braid/storage/transfer"
)

// cluster is a range with its replicas on a few nodes, over a stand-in for Raft and for the order log. Raft here is the protocol without its
// messages: an election, or a follower's catching up, is one step, and what is appended is durable. The data engines are
// real, on file systems that forget what was not flushed. Nothing happens by itself: a script or a random test takes the steps.
type cluster struct {
	nodes  []*member
	order  *orderLog
	trace  io.Writer // nil: silent
	cfg    func(*Config)
	starts uint64
	// copies says how often a letter arrives; nil: once.
	copies func() int
	// memtable is the size of the data engines' memtables.
	memtable uint64
	err      error // first fault found by the stand-ins
}

// member is one node.
type member struct {
	c     *cluster
	id    ids.NodeID
	fs    *vfs.MemFS
	eng   *storage.Engines
	rep   *Replica
	down  bool
	quiet bool // its leader has not heard of it for long
	inbox []any
	jobs  []func() any

	// Raft
	log       []logItem // index 1 is the configuration at birth
	truncated int       // entries up to here are gone
	commit    int
	delivered int
	role      Role
	restoring bool
	dropping  bool // proposals are dropped
	transfer  ids.NodeID
	campaign  bool

	// order
	pos    int // applied
	leader ids.NodeID
	told   ids.Seq  // progress of this term
	toldIn ids.Term // zero: none
	aborts []ids.TxnID
}

type logItem struct {
	term ids.Term
	data []byte
	conf bool
}

func newCluster(n int, cfg func(*Config)) *cluster {
	return newClusterOf(n, 1<<20, cfg)
}

func newClusterOf(n int, memtable uint64, cfg func(*Config)) *cluster {
	c := &cluster{order: newOrderLog(), cfg: cfg, memtable: memtable}
	for i := range n {
		m := &member{c: c, id: ids.NodeID(i + 1), fs: newFS(), log: []logItem{{term: 1, conf: true}}, commit: 1, leader: 1}
		c.nodes = append(c.nodes, m)
	}
	for _, m := range c.nodes {
		m.start()
	}
	return c
}

// newFS has the node's directory, durably.
func newFS() *vfs.MemFS {
	fs := vfs.NewCrashableMem()
	err := fs.MkdirAll("d", 0o700)
	var root vfs.File
	if err == nil {
		root, err = fs.OpenDir("/")
	}
	if err == nil {
		err = root.Sync()
	}
	if err != nil {
		panic(err)
	}
	return fs
}

func (c *cluster) node(id ids.NodeID) *member { return c.nodes[id-1] }

func (c *cluster) fault(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *cluster) tracef(format string, args ...any) {
	if c.trace != nil {
		fmt.Fprintf(c.trace, format+"\n", args...)
	}
}

func (c *cluster) close() {
	for _, m := range c.nodes {
		m.stop()
	}
}

func (c *cluster) descriptor() *braidpb.RangeDescriptor {
	d := &braidpb.RangeDescriptor{Id: 7, Generation: 1}
	for _, m := range c.nodes {
		d.Replicas = append(d.Replicas, &braidpb.Replica{Node: uint64(m.id), ReplicaId: uint64(m.id)})
	}
	return d
}

const orderRecord = 'z' // where a node notes how far it has applied the order log

// start opens the engines and makes the replica.
func (m *member) start() {
	var err error
	m.eng, err = storage.Open(storage.Options{FS: m.fs, Dir: "d", CacheBytes: 8 << 20, MemTableBytes: m.c.memtable})
	if err != nil {
		panic(err)
	}
	m.c.starts++
	cfg := Config{Descriptor: m.c.descriptor(), Node: m.id, Incarnation: m.c.starts, Logger: slog.New(slog.DiscardHandler)}
	if m.c.cfg != nil {
		m.c.cfg(&cfg)
	}
	rep, info, err := New(cfg, m)
	if err != nil {
		panic(err)
	}
	m.rep, m.down, m.restoring, m.inbox, m.jobs = rep, false, false, nil, nil
	applied := int(info.Applied)
	switch {
	case applied < m.truncated && !(applied == 0 && m.truncated == 1):
		m.c.fault("node %d: applied %d, log begins behind %d", m.id, applied, m.truncated)
	case applied > len(m.log) || applied > 0 && m.log[applied-1].term != info.AppliedTerm:
		// Raft's log ends before the state, or has something else there.
		m.log = append([]logItem(nil), m.c.committedLog(applied)...)
		m.truncated = applied
	}
	m.delivered, m.commit = applied, max(applied, 1)
	m.role.IsLeader, m.role.Leader = false, 0
	if m.role.Term == 0 {
		m.role.Term = 1
	}
	m.rep.Role(m.role)
	m.restartOrder()
}

// committedLog is the log up to an entry, from whoever knows it committed.
func (c *cluster) committedLog(n int) []logItem {
	for _, m := range c.nodes {
		if m.commit >= n && m.rep != nil && len(m.log) >= n {
			return m.log[:n]
		}
	}
	panic(fmt.Sprintf("nobody knows entry %d committed", n))
}

func (m *member) stop() {
	if m.eng == nil {
		return
	}
	if err := m.rep.Close(); err != nil {
		panic(err)
	}
	if err := m.eng.Close(); err != nil {
		panic(err)
	}
	m.eng, m.down = nil, true
}

// crash loses what is not durable.
func (m *member) crash() {
	fs := m.fs.CrashClone(vfs.CrashCloneCfg{})
	m.stop()
	m.fs = fs
	m.role.IsLeader, m.role.Leader = false, 0
	m.transfer, m.campaign, m.dropping = 0, false, false
	m.toldIn = 0
}

// flush makes the data engine durable and says so.
func (m *member) flush() {
	mark := m.rep.FlushMark()
	if err := m.eng.FlushData(); err != nil {
		panic(err)
	}
	m.inbox = append(m.inbox, Flushed{mark})
}

// pump is a pass over the group, without delivery beyond limit entries.
func (m *member) pump(limit int) {
	if m.down {
		return
	}
	in := m.inbox
	m.inbox = nil
	m.rep.Handle(in)
	m.deliver(limit)
	m.rep.Flush()
}

func (m *member) deliver(limit int) {
	if m.restoring {
		return
	}
	var ents []Entry
	for m.delivered < m.commit && len(ents) < limit {
		it := m.log[m.delivered]
		m.delivered++
		e := Entry{Index: ids.Index(m.delivered), Term: it.term, Data: it.data}
		if it.conf {
			e.Conf = &ConfState{Index: e.Index}
			for _, o := range m.c.nodes {
				e.Conf.Voters = append(e.Conf.Voters, ids.ReplicaID(o.id))
			}
		}
		ents = append(ents, e)
	}
	if len(ents) > 0 {
		m.rep.Deliver(ents)
	}
}

// background runs one job.
func (m *member) background() bool {
	if len(m.jobs) == 0 || m.down {
		return false
	}
	job := m.jobs[0]
	m.jobs = m.jobs[1:]
	m.inbox = append(m.inbox, job())
	return true
}

func (m *member) setRole(r Role) {
	if r == m.role {
		return
	}
	m.role = r
	m.c.tracef("n%d: term %d, leader n%d", m.id, r.Term, r.Leader)
	if !m.down {
		m.rep.Role(r)
	}
}

// elect has a node elected by some others. It reports whether they vote for it.
func (c *cluster) elect(id ids.NodeID, voters []ids.NodeID) bool {
	m := c.node(id)
	if m.down || m.restoring || 2*(len(voters)+1) <= len(c.nodes) {
		return false
	}
	last := func(x *member) (ids.Term, int) { return x.log[len(x.log)-1].term, len(x.log) }
	mt, ml := last(m)
	term := m.role.Term
	for _, v := range voters {
		x := c.node(v)
		xt, xl := last(x)
		if x.down || v == id || xt > mt || xt == mt && xl > ml {
			return false
		}
		term = max(term, x.role.Term)
	}
	term++
	for _, v := range voters {
		c.node(v).setRole(Role{Term: term, Leader: id, LeaderReplica: ids.ReplicaID(id)})
	}
	m.setRole(Role{Term: term, Leader: id, LeaderReplica: ids.ReplicaID(id), IsLeader: true})
	m.log = append(m.log[:len(m.log):len(m.log)], logItem{term: term})
	m.transfer, m.dropping = 0, false
	m.advance()
	return true
}

// replicate brings a follower up to most entries further, from a leader.
func (c *cluster) replicate(from, to ids.NodeID, most int) {
	l, f := c.node(from), c.node(to)
	if l.down || f.down || !l.role.IsLeader || l == f || f.restoring {
		return
	}
	if f.role.Term > l.role.Term {
		l.setRole(Role{Term: f.role.Term})
		return
	}
	f.setRole(Role{Term: l.role.Term, Leader: from, LeaderReplica: ids.ReplicaID(from)})
	i := l.match(f)
	if i < f.commit {
		i = f.commit // committed is equal
	}
	if i < l.truncated {
		c.snapshot(l, f)
		return
	}
	n := min(len(l.log), i+most)
	f.log = append(f.log[:i:i], l.log[i:n]...)
	f.commit = max(f.commit, min(l.commit, len(f.log)))
	l.advance()
}

// match is how much of a follower's log is the same as ours.
func (m *member) match(f *member) int {
	i := min(len(m.log), len(f.log))
	for i > 0 && (m.log[i-1].term != f.log[i-1].term || string(m.log[i-1].data) != string(f.log[i-1].data)) {
		i--
	}
	return i
}

func (m *member) advance() {
	if !m.role.IsLeader {
		return
	}
	var at []int
	for _, o := range m.c.nodes {
		if o == m {
			at = append(at, len(m.log))
		} else {
			at = append(at, m.match(o))
		}
	}
	sort.Ints(at)
	if n := at[(len(at)-1)/2]; n > m.commit && m.log[n-1].term == m.role.Term {
		m.commit = n
	}
}

// snapshot offers a follower a state.
func (c *cluster) snapshot(l, f *member) {
	meta, ok := l.rep.SnapshotMeta()
	if !ok || int(meta.Index) < l.truncated || int(meta.Index) <= f.commit {
		return
	}
	f.restoring = true
	rep := f.rep
	f.rep.Restore(l.id, meta, func(got *SnapMeta) {
		if f.rep != rep {
			return
		}
		f.restoring = false
		if got == nil {
			return
		}
		if got.Index < meta.Index {
			c.fault("node %d: state of entry %d installed, %d wanted", f.id, got.Index, meta.Index)
			return
		}
		f.log = append([]logItem(nil), c.committedLog(int(got.Index))...)
		f.truncated, f.commit, f.delivered = int(got.Index), int(got.Index), int(got.Index)
	})
}

// member as Host.

var errNotTaken = errors.New("not taken")

func (m *member) Propose(data []byte) error {
	if !m.role.IsLeader || m.dropping {
		m.c.tracef("n%d: proposal dropped", m.id)
		return errNotTaken
	}
	m.log = append(m.log[:len(m.log):len(m.log)], logItem{term: m.role.Term, data: append([]byte(nil), data...)})
	m.c.tracef("n%d: propose %s at %d", m.id, describePayload(data), len(m.log))
	m.advance()
	return nil
}

func describePayload(b []byte) string {
	if k, err := payloadKind(b); err != nil || k == kindPrepare {
		p, err := decodePrepare(b)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("prepare %v", p.txn)
	}
	w, err := decodeWrites(b)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("seqs %d-%d", w.first, w.last())
}

func (m *member) LastIndex() ids.Index { return ids.Index(len(m.log)) }
func (m *member) Campaign()            { m.campaign = true; m.c.tracef("n%d: campaign", m.id) }
func (m *member) TransferLeader(to ids.NodeID) {
	m.transfer = to
	m.c.tracef("n%d: transfer to n%d", m.id, to)
}

func (m *member) Followers(visit func(Follower)) {
	if !m.role.IsLeader {
		return
	}
	for _, o := range m.c.nodes {
		if o != m {
			visit(Follower{Node: o.id, Match: ids.Index(m.match(o)), Active: !o.down && !o.quiet})
		}
	}
}

func (m *member) Truncate(through ids.Index) {
	if n := min(int(through), m.delivered); n > m.truncated {
		m.truncated = n
		m.c.tracef("n%d: truncate through %d", m.id, n)
	}
}

func (m *member) Progress(p Progress) {
	m.c.tracef("n%d: progress (%d,%d] gen %d auth %d%s", m.id, p.From, p.Through, p.Generation, p.AuthRevision, describeLeases(p.Leases))
	st := m.c.order.at(m.pos)
	if p.Term != m.role.Term || !m.role.IsLeader {
		m.c.fault("node %d: progress of term %d as %+v", m.id, p.Term, m.role)
	}
	if m.toldIn == p.Term && p.From != m.told || m.toldIn != p.Term && p.From > st.ordered {
		m.c.fault("node %d: progress from %d, told was %d in term %d, ordered %d", m.id, p.From, m.told, m.toldIn, st.ordered)
	}
	m.told, m.toldIn = p.Through, p.Term
	m.c.order.report(m.c, p)
}

func describeLeases(ls []SeqLease) string {
	var b strings.Builder
	for _, l := range ls {
		fmt.Fprintf(&b, " lease %d of %d", l.Lease, l.Seq)
	}
	return b.String()
}

func (m *member) ProgressReset(ids.RangeID) { m.toldIn = 0 }

func (m *member) OrderView() OrderView {
	st := m.c.order.at(m.pos)
	return OrderView{
		Position: ids.Position(m.pos), Revision: st.rev, CompactRevision: st.compact, AuthRevision: st.auth, Leader: m.leader,
	}
}

func (m *member) AbortTxn(txn ids.TxnID, ps []ids.RangeID, deadline ids.Position) {
	m.c.tracef("n%d: abort %v, participants %v, deadline %d", m.id, txn, ps, deadline)
	m.aborts = append(m.aborts, txn)
}

func (m *member) LeaseExists(id ids.LeaseID) bool { return id < 100 }

func (m *member) Data() *pebble.DB { return m.eng.Data }

func (m *member) Export(start, end []byte, r ids.RangeID) (Exporter, error) {
	return transfer.Export(m.eng, start, end, r)
}

func (m *member) Import(start, end []byte, r ids.RangeID) (Importer, error) {
	return transfer.Import(m.eng, start, end, r)
}

func (m *member) Background(job func() any) { m.jobs = append(m.jobs, job) }

func (m *member) SendStateRequest(to ids.NodeID, q *braidpb.StateRequest) {
	m.c.tracef("n%d: ask n%d for chunk %d, frontier %d", m.id, to, q.Chunk, q.MinFrontier)
	m.c.post(to, StateRequest{m.id, q})
}

func (m *member) SendStateChunk(to ids.NodeID, q *braidpb.StateChunk) {
	m.c.tracef("n%d: chunk %d to n%d%s", m.id, q.Chunk, to, map[bool]string{true: ", the last"}[q.Last]+q.Error)
	m.c.post(to, StateChunk{m.id, q})
}

// post brings a letter to a node, now.
func (c *cluster) post(to ids.NodeID, letter any) {
	n := 1
	if c.copies != nil {
		n = c.copies()
	}
	if o := c.node(to); !o.down {
		for range n {
			o.inbox = append(o.inbox, letter)
		}
	}
}

func (m *member) Fatal(err error) { m.c.fault("node %d stops: %v", m.id, err) }
