package ranges

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// record is a request of the random test and what became of it.
type record struct {
	req   *Request
	id    string // the unique part of the values that it writes; empty if it writes none
	after ids.Revision
	resp  *Response
	node  ids.NodeID
}

// coordinated is a transaction of the random test: it reads one key and writes what it read to another.
type coordinated struct {
	id         ids.TxnID
	node       ids.NodeID
	read, into string
	saw        string
	value      string
	lock       *Response
	prepared   *Response
	preparing  bool
	deadline   ids.Position
	committed  ids.Revision
}

// mode is what a random test does beyond the usual.
type mode struct {
	leases   bool // writes name leases, which go away
	starving bool // nodes lack items; letters get lost and come twice
}

// random drives a cluster in random steps.
type random struct {
	*cluster
	records []*record
	txns    []*coordinated
	newest  ids.Revision // answered
	flushed map[ids.NodeID]ids.Position
	n       int
	mode
	steps  int
	faults int // of a thousand steps
	// lazy is a node that does not apply the order log: it will lack items. Nil: none.
	lazy *member
	rnd  *rand.Rand
}

// between is a random number in [lo, hi].
func (x *random) between(lo, hi int) int { return lo + x.rnd.IntN(hi-lo+1) }

func (x *random) flip() bool { return x.rnd.IntN(2) == 0 }

var randomKeys = []string{"a", "b", "c", "d", "e"}

func (x *random) key() string { return randomKeys[x.between(0, len(randomKeys)-1)] }

func (x *random) anyNode() *member {
	return x.nodes[x.between(0, len(x.nodes)-1)]
}

// target is mostly a leader.
func (x *random) target() *member {
	if x.between(0, 9) > 0 {
		var best *member
		for _, m := range x.nodes {
			if m.role.IsLeader && !m.down && (best == nil || m.role.Term > best.role.Term) {
				best = m
			}
		}
		if best != nil {
			return best
		}
	}
	return x.anyNode()
}

func (x *random) send(q *Request, id string) {
	m := x.target()
	if m.down {
		return
	}
	rec := &record{req: q, id: id, after: x.newest, node: m.id}
	q.Generation, q.AuthRevision = 1, x.order.at(m.pos).auth
	q.TimeoutTicks = 15
	q.Done = func(resp *Response) {
		if rec.resp != nil {
			x.fault("%v is answered twice: %+v, %+v", q, rec.resp, resp)
		}
		rec.resp = resp
		x.tracef("step %d: %s answered %v %d", x.steps, id, resp.Code, resp.Revision)
		if resp.Code == CodeOK && resp.Revision > 0 {
			if resp.Revision <= rec.after {
				x.fault("O4: revision %d is answered, but %d was answered before the request was sent", resp.Revision, rec.after)
			}
			x.newest = max(x.newest, resp.Revision)
		}
	}
	x.tracef("step %d: n%d gets put %v delete %v txn %v", x.steps, m.id, q.Put, q.Delete, q.Txn)
	x.records = append(x.records, rec)
	m.inbox = append(m.inbox, q)
}

func (x *random) unique() string {
	x.n++
	return fmt.Sprintf("#%d#", x.n)
}

func (x *random) request() {
	k := []byte(x.key())
	id := x.unique()
	switch x.between(0, 9) {
	case 0, 1, 2:
		p := &pb.PutRequest{Key: k, Value: []byte(id), PrevKv: x.flip()}
		if x.leases {
			p.Lease = int64(x.between(0, 2))
		}
		x.send(&Request{Put: p}, id)
	case 3:
		x.send(&Request{Put: &pb.PutRequest{Key: k, Value: []byte(id), IgnoreLease: true}}, id)
	case 4:
		d := &pb.DeleteRangeRequest{Key: k, PrevKv: x.flip()}
		if x.between(0, 3) == 0 {
			d.RangeEnd = []byte("z")
		}
		x.send(&Request{Delete: d}, "")
	default:
		x.send(&Request{Txn: x.cas(k, id)}, id)
	}
}

// cas is a transaction with a compare that has a chance to hold.
func (x *random) cas(k []byte, id string) *pb.TxnRequest {
	cmp := &pb.Compare{Key: k, Result: pb.Compare_CompareResult(x.between(0, 3))}
	newest := int64(x.order.newest().rev)
	switch x.between(0, 4) {
	case 0:
		cmp.Target, cmp.TargetUnion = pb.Compare_VERSION, &pb.Compare_Version{Version: int64(x.between(0, 3))}
	case 1:
		cmp.Target, cmp.TargetUnion = pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: newest - int64(x.between(-3, 5))}
	case 2:
		cmp.Target, cmp.TargetUnion = pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: int64(x.between(0, 1)) * newest}
	case 3:
		cmp.Target, cmp.TargetUnion = pb.Compare_LEASE, &pb.Compare_Lease{Lease: int64(x.between(0, 2))}
	default:
		cmp.Target, cmp.TargetUnion = pb.Compare_VALUE, &pb.Compare_Value{Value: []byte(fmt.Sprintf("#%d#", x.n-x.between(1, 5)))}
	}
	if x.between(0, 5) == 0 {
		cmp.RangeEnd = []byte("z")
	}
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: k, Value: []byte(id), PrevKv: true}}}
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(x.key())}}}
	del := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: k}}}
	switch x.between(0, 3) {
	case 0:
		return &pb.TxnRequest{Compare: []*pb.Compare{cmp}, Success: []*pb.RequestOp{put}}
	case 1:
		return &pb.TxnRequest{Compare: []*pb.Compare{cmp}, Success: []*pb.RequestOp{get, put}, Failure: []*pb.RequestOp{del}}
	case 2:
		return &pb.TxnRequest{Compare: []*pb.Compare{cmp}, Success: []*pb.RequestOp{put, get}, Failure: []*pb.RequestOp{get}}
	}
	other := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("f"), Value: []byte(id + "f")}}}
	return &pb.TxnRequest{Compare: []*pb.Compare{cmp}, Success: []*pb.RequestOp{put, other}, Failure: []*pb.RequestOp{other}}
}

// coordinate takes a step of a transaction, or begins one.
func (x *random) coordinate() {
	if len(x.txns) == 0 || x.between(0, 3) == 0 {
		m := x.target()
		if m.down {
			return
		}
		x.n++
		c := &coordinated{id: ids.TxnID{Node: m.id, Incarnation: 1, Counter: uint64(x.n)}, node: m.id, read: x.key(), into: x.key()}
		q := &Request{TimeoutTicks: 15, Generation: 1, AuthRevision: x.order.at(m.pos).auth, Lock: &braidpb.LockRequest{
			Txn: txnProto(c.id), Reads: []*braidpb.Span{{Start: []byte(c.read)}}, Writes: []*braidpb.Span{{Start: []byte(c.into)}},
		}}
		q.Done = func(r *Response) { c.lock = r }
		m.inbox = append(m.inbox, q)
		x.txns = append(x.txns, c)
		return
	}
	c := x.txns[x.between(0, len(x.txns)-1)]
	m := x.node(c.node)
	switch {
	case c.lock == nil || m.down:
	case !c.preparing && c.lock.Code == CodeOK:
		if x.between(0, 4) == 0 {
			c.preparing = true
			m.inbox = append(m.inbox, &Request{Unlock: &braidpb.UnlockRequest{Txn: txnProto(c.id), Token: c.lock.Lock.Token}})
			return
		}
		x.prepare(c, m)
	case c.prepared != nil && c.prepared.Code == CodeOK && c.committed == 0:
		if x.between(0, 4) == 0 {
			x.order.decide(c.id, false, c.deadline)
			return
		}
		c.committed = x.order.decide(c.id, true, c.deadline)
	}
}

func (x *random) prepare(c *coordinated, m *member) {
	for _, b := range c.lock.Lock.Kvs {
		kv := &mvccpb.KeyValue{}
		if err := proto.Unmarshal(b, kv); err != nil {
			x.fault("%w", err)
		}
		if string(kv.Key) == c.read {
			c.saw = string(kv.Value)
		}
	}
	c.value = fmt.Sprintf("txn %d saw %s", c.id.Counter, c.saw)
	if len(c.value) > 200 {
		c.value = fmt.Sprintf("txn %d", c.id.Counter)
	}
	c.preparing = true
	c.deadline = ids.Position(len(x.order.states) + x.between(0, 20))
	q := &Request{TimeoutTicks: 15, Generation: 1, AuthRevision: x.order.at(m.pos).auth, Prepare: &braidpb.PrepareRequest{
		Txn: txnProto(c.id), Token: c.lock.Lock.Token, Term: c.lock.Lock.Term, Deadline: uint64(c.deadline), Participants: []uint64{7},
		Writes: []*braidpb.WriteOp{{Key: []byte(c.into), Value: []byte(c.value)}},
	}}
	q.Done = func(r *Response) { c.prepared = r }
	m.inbox = append(m.inbox, q)
}

func (x *random) elect() {
	m := x.anyNode()
	var voters []ids.NodeID
	for _, o := range x.nodes {
		if o != m && !o.down && (len(x.nodes) == 3 || x.flip()) {
			voters = append(voters, o.id)
		}
	}
	if len(voters) > 1 && x.flip() {
		voters = voters[:1]
	}
	x.cluster.elect(m.id, voters)
}

func (x *random) replicateSome() {
	for _, l := range x.nodes {
		if l.role.IsLeader && x.between(0, 3) > 0 {
			f := x.anyNode()
			if f == l {
				f = x.anyNode()
			}
			x.replicate(l.id, f.id, x.between(1, 5))
		}
	}
}

func (x *random) flush(m *member) {
	mark := m.rep.FlushMark()
	x.tracef("step %d: n%d flushes %+v", x.steps, m.id, mark)
	m.flush()
	x.flushed[m.id] = mark.Frontier
}

func (x *random) crash(m *member) {
	x.tracef("step %d: n%d crashes", x.steps, m.id)
	m.crash()
	m.start()
}

// step takes one random step. How often faults come is drawn for each seed.
func (x *random) step() {
	x.steps++
	if x.between(0, 999) < x.faults {
		x.disturb()
		return
	}
	if x.between(0, 9) == 0 {
		led := false
		for _, m := range x.nodes {
			m.dropping = false
			led = led || m.role.IsLeader
		}
		if !led {
			x.elect()
		}
	}
	switch n := x.between(0, 99); {
	case n < 10:
		for range x.between(1, 3) {
			x.request()
		}
	case n < 14:
		x.coordinate()
	case n < 30:
		x.anyNode().pump(x.between(0, 6))
	case n < 42:
		x.target().pump(x.between(0, 6))
	case n < 62:
		x.replicateSome()
	case n < 72:
		x.order.cut(x.order.newest().ordered + ids.Seq(x.between(1, 8)))
	case n < 82:
		x.applyOrder(x.anyNode())
	case n < 92:
		x.applyOrder(x.target())
	case n < 95:
		if m := x.target(); !m.down {
			m.rep.Tick()
		}
	case n < 98:
		x.anyNode().background()
	default:
		if m := x.anyNode(); !m.down {
			x.flush(m)
		}
	}
}

func (x *random) applyOrder(m *member) {
	if m != x.lazy {
		m.applyOrder()
	}
}

// starve has a node lack items for good: it falls behind, the others are flushed and the items dropped, and it gets an order
// snapshot.
func (x *random) starve() {
	if x.lazy == nil {
		x.lazy = x.anyNode()
		return
	}
	for _, m := range x.nodes {
		if m != x.lazy && !m.down {
			x.flush(m)
		}
	}
	x.order.drop(x.flushedByMajority(x.flushed))
	x.lazy.skipOrder()
	x.lazy = nil
}

// disturb makes something unusual happen.
func (x *random) disturb() {
	m := x.anyNode()
	if x.starving && x.between(0, 1) == 0 {
		x.starve()
		return
	}
	switch n := x.between(0, 99); {
	case n < 25:
		x.elect()
	case n < 40:
		if !m.down {
			x.crash(m)
		}
	case n < 50:
		m.dropping = !m.dropping
	case n < 60:
		x.order.compact(x.order.newest().rev - ids.Revision(x.between(0, 4)))
	case n < 68:
		x.order.changeAuth()
	case n < 80:
		x.order.drop(x.flushedByMajority(x.flushed))
	case n < 88:
		m.skipOrder()
	default:
		if x.leases {
			x.order.revoke(ids.LeaseID(x.between(1, 2)))
		}
	}
}

// settle ends all faults and lets the cluster come to rest.
func (x *random) settle() {
	x.copies, x.lazy = nil, nil
	for _, m := range x.nodes {
		m.dropping = false
	}
	var led *member
	for _, m := range x.nodes {
		if m.role.IsLeader && (led == nil || m.role.Term > led.role.Term) {
			led = m
		}
	}
	for range 400 {
		if led == nil || !led.role.IsLeader {
			led = x.electAnybody()
		}
		busy := false
		for _, m := range x.nodes {
			if led != nil {
				x.replicate(led.id, m.id, 100)
			}
			for m.applyOrder() {
				busy = true
			}
			m.rep.Tick()
			for m.background() {
			}
			m.pump(100)
			for _, t := range m.aborts {
				x.order.decide(t, false, ids.Position(len(x.order.states)+5))
				busy = true
			}
			m.aborts = nil
			busy = busy || len(m.inbox) > 0 || len(m.jobs) > 0 || m.delivered < m.commit || led != nil && m.commit < len(led.log) ||
				m.rep.queue.Len() > 0 || m.rep.stalled() || m.rep.window.slots.Len() > 0 || m.rep.leader.live.n > 0 || m.rep.txns.undecided() ||
				m.rep.cursor.compacted < m.rep.cursor.target
		}
		busy = x.order.cut(1<<40) || busy
		if x.err != nil {
			return
		}
		if !busy && led != nil {
			return
		}
	}
	for _, m := range x.nodes {
		x.fault("no rest: node %d: role %+v, log %d, commit %d, delivered %d, order %d of %d, cursor %+v, queue %d, slots %d, live %d, fetch %+v, refill %d",
			m.id, m.role, len(m.log), m.commit, m.delivered, m.pos, len(x.order.states)-1, m.rep.cursor, m.rep.queue.Len(),
			m.rep.window.slots.Len(), m.rep.leader.live.n, m.rep.fetch, m.rep.refill)
	}
	x.fault("the cluster does not come to rest")
}

func (x *random) electAnybody() *member {
	for _, m := range x.nodes {
		var others []ids.NodeID
		for _, o := range x.nodes {
			if o != m {
				others = append(others, o.id)
			}
		}
		if x.cluster.elect(m.id, others) {
			return m
		}
	}
	return nil
}

// runRandom runs seeds from first on. BRAID_SEED runs that one alone, with a trace; BRAID_SEEDS runs so many.
func runRandom(t *testing.T, seeds, steps int, mo mode, cfg func(*Config)) {
	first, only := uint64(1), false
	if v, err := strconv.ParseUint(os.Getenv("BRAID_SEED"), 10, 64); err == nil {
		first, seeds, only = v, 1, true
	}
	if v, err := strconv.Atoi(os.Getenv("BRAID_SEEDS")); err == nil {
		seeds = v
	}
	seen := map[string]int{}
	for seed := first; seed < first+uint64(seeds); seed++ {
		if err := runSeed(seed, steps, mo, cfg, only, seen); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	t.Log(seen)
}

func runSeed(seed uint64, steps int, mo mode, cfg func(*Config), trace bool, seen map[string]int) (err error) {
	c := newCluster(3, func(cc *Config) {
		cc.Timing = Timing{ElectionTicks: 3, RequestTicks: 15, LockTicks: 8, StuckTicks: 5, NotReadyTicks: 10, TransferTicks: 2}
		cc.Limits.ChunkBytes = 200
		cc.Limits.KeepEntries = 3
		if cfg != nil {
			cfg(cc)
		}
	})
	if trace {
		c.trace = os.Stderr
	}
	defer c.close()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	x := &random{cluster: c, flushed: map[ids.NodeID]ids.Position{}, mode: mo, rnd: rand.New(rand.NewPCG(seed, 0))}
	x.faults = x.between(0, 80)
	if mo.starving {
		x.faults *= 2
		c.copies = func() int { return []int{0, 1, 1, 1, 1, 1, 1, 2}[x.between(0, 7)] }
	}
	x.cluster.elect(1, []ids.NodeID{2, 3})
	for range steps {
		x.step()
		if x.err != nil {
			return x.err
		}
	}
	x.settle()
	if x.err == nil {
		x.check()
	}
	x.count(seen)
	return x.err
}

// count notes what a run has exercised.
func (x *random) count(seen map[string]int) {
	for _, r := range x.records {
		if r.resp == nil {
			seen["unanswered"]++
		} else {
			seen[r.resp.Code.String()]++
		}
	}
	for _, c := range x.txns {
		switch {
		case c.committed > 0:
			seen["txn committed"]++
		case c.prepared != nil:
			seen["txn prepared "+c.prepared.Code.String()]++
		case c.lock != nil:
			seen["txn locked "+c.lock.Code.String()]++
		}
	}
	for _, m := range x.nodes {
		seen["fetches"] += int(m.rep.fetches)
		seen["refills"] += m.rep.refills
	}
}

// TestRandom drives three replicas in random steps: many requests, cuts in random places, crashes, changes of leader, states
// sent; and compares with a store that does one write after the other.
func TestRandom(t *testing.T) { runRandom(t, 150, 600, mode{}, nil) }

// TestRandomLeases does the same with writes that name leases which go away.
func TestRandomLeases(t *testing.T) { runRandom(t, 150, 600, mode{leases: true}, nil) }

// TestRandomTransfers has nodes that lack items, leaders among them.
func TestRandomTransfers(t *testing.T) { runRandom(t, 150, 600, mode{starving: true}, nil) }

// TestMutants switches off one rule at a time: the random test must find out.
func TestMutants(t *testing.T) {
	for _, m := range []struct {
		name string
		m    Mutation
		mode mode
	}{
		{"NoO5", Mutation{NoO5: true}, mode{}},
		{"NoRelatch", Mutation{NoRelatch: true}, mode{}},
		{"PrepareWithoutToken", Mutation{PrepareWithoutToken: true}, mode{}},
		{"CertainTooEarly", Mutation{CertainTooEarly: true}, mode{}},
		{"AnyPipelining", Mutation{AnyPipelining: true}, mode{leases: true}},
	} {
		t.Run(m.name, func(t *testing.T) {
			seen := map[string]int{}
			for seed := uint64(1); seed <= 3000; seed++ {
				if err := runSeed(seed, 600, m.mode, func(c *Config) { c.Mutation = m.m }, false, seen); err != nil {
					text, _, _ := strings.Cut(err.Error(), "\n")
					t.Logf("seed %d: %s", seed, text)
					return
				}
			}
			t.Error("nothing was found")
		})
	}
}
