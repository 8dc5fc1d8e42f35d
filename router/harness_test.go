package router

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/storage"
)

// fake is a Backend over a real engine: one node on which the order log and all ranges live. Requests are carried out at once, in
// the order they come; a script can hold, lose or refuse them.
type fake struct {
	t testing.TB
	w *world

	engines   *storage.Engines
	writer    *mvcc.Writer
	view      *order.View
	hidden    *order.View // applied, not yet published (publish)
	revisions map[ids.Position]ids.Revision
	fronts    map[ids.RangeID]*ranges.Frontier
	lagging   map[ids.RangeID]bool // does not advance by itself
	waiters   []fakeWaiter
	leases    map[ids.LeaseID]bool

	caughtUp bool
	onCaught []func()
	txns     uint64
	locks    map[uint64]*fakeLock
	token    uint64
	prepares map[ids.TxnID][]*braidpb.PrepareRequest

	// read and submit and propose, if set, take over a call unless they say false.
	read    func(done func(ids.Position, error)) bool
	submit  func(r ids.RangeID, req *ranges.Request) bool
	propose func(cmd *braidpb.OrderCommand, done func(order.Result)) bool

	submitted []string // what was submitted, for tests to look at
	compacted []func()
	physical  ids.Revision
}

type fakeWaiter struct {
	at ids.Position
	fn func(ids.Position, ids.Revision)
}

type fakeLock struct {
	r  ids.RangeID
	id ids.TxnID
}

// newFake makes a node whose key space is cut at the split keys.
func newFake(t testing.TB, w *world, splits ...string) *fake {
	t.Helper()
	e, err := storage.Open(storage.Options{FS: vfs.NewMem(), Dir: "data"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fake{
		t: t, w: w, engines: e, writer: mvcc.NewWriter(e.Data), caughtUp: true,
		revisions: map[ids.Position]ids.Revision{1: 1}, fronts: map[ids.RangeID]*ranges.Frontier{}, lagging: map[ids.RangeID]bool{},
		leases: map[ids.LeaseID]bool{}, locks: map[uint64]*fakeLock{}, prepares: map[ids.TxnID][]*braidpb.PrepareRequest{},
	}
	f.view = &order.View{
		Position: 1, Revision: 1, Initialised: true, ClusterID: 0xc1, Term: 7, Leader: 3, Routing: f.routing(1, splits...),
		Members: []*braidpb.Member{
			{Id: 1, Name: "a", PeerUrls: []string{"http://a:2380"}, ClientUrls: []string{"http://a:2379"}, IsLearner: true},
			{Id: 3, Name: "c", PeerUrls: []string{"http://c:2380"}},
		},
	}
	return f
}

// routing cuts the key space; all ranges get the generation.
func (f *fake) routing(generation uint64, splits ...string) *order.Routing {
	var ds []*braidpb.RangeDescriptor
	start := ""
	for i, s := range append(splits, "") {
		d := &braidpb.RangeDescriptor{Id: uint64(i + 1), Start: []byte(start), End: []byte(s), Generation: generation}
		ds = append(ds, d)
		if id := ids.RangeID(d.Id); f.fronts[id] == nil {
			f.fronts[id] = ranges.NewFrontier(1)
		}
		start = s
	}
	return order.NewRouting(ds)
}

func (f *fake) NodeID() ids.NodeID { return 3 }
func (f *fake) View() *order.View  { return f.view }

func (f *fake) CaughtUp(fn func()) {
	if f.caughtUp {
		fn()
		return
	}
	f.onCaught = append(f.onCaught, fn)
}

func (f *fake) ReadIndex(done func(ids.Position, error)) {
	if f.read != nil && f.read(done) {
		return
	}
	p := f.view.Position
	if f.hidden != nil {
		p = f.hidden.Position
	}
	f.w.later(func() { done(p, nil) })
}

func (f *fake) WaitApplied(p ids.Position, fn func(ids.Position, ids.Revision)) {
	if f.view.Position >= p {
		fn(f.view.Position, f.view.Revision)
		return
	}
	f.waiters = append(f.waiters, fakeWaiter{p, fn})
}

func (f *fake) RevisionAt(p ids.Position) (ids.Revision, bool) {
	r, ok := f.revisions[p]
	return r, ok
}

func (f *fake) Frontier(r ids.RangeID) *ranges.Frontier { return f.fronts[r] }
func (f *fake) Reader() mvcc.Reader                     { return f.engines.Data }

func (f *fake) NewTxnID() ids.TxnID {
	f.txns++
	return ids.TxnID{Node: 3, Incarnation: 1, Counter: f.txns}
}

func (f *fake) Compacted(rev ids.Revision, fn func()) {
	if f.physical >= rev {
		fn()
		return
	}
	f.compacted = append(f.compacted, fn)
}

func (f *fake) DBSize() (total, inUse int64)            { return 4096, 1024 }
func (f *fake) RaftIndex() (last, applied ids.Position) { return f.view.Position + 1, f.view.Position }
func (f *fake) Defragment(ctx context.Context) error    { return nil }
func (f *fake) next() *order.View                       { v := *f.current(); v.Position++; return &v }
func (f *fake) describe(format string, args ...any) {
	f.submitted = append(f.submitted, fmt.Sprintf(format, args...))
}
func (f *fake) put(k, v string) ids.Revision {
	return f.apply(eval.Write{Key: []byte(k), Value: []byte(v)})
}
func (f *fake) del(k string) ids.Revision { return f.apply(eval.Write{Key: []byte(k), Delete: true}) }
func (f *fake) descriptor(key string) *braidpb.RangeDescriptor {
	return f.view.Routing.Lookup([]byte(key))
}

// current is the newest state, published or not.
func (f *fake) current() *order.View {
	if f.hidden != nil {
		return f.hidden
	}
	return f.view
}

// publish shows a state to the router and calls those who waited for it.
func (f *fake) publish(v *order.View) {
	f.view, f.hidden = v, nil
	f.revisions[v.Position] = v.Revision
	kept := f.waiters[:0]
	for _, w := range slices.Clone(f.waiters) {
		if w.at <= v.Position {
			w.fn(v.Position, v.Revision)
		} else {
			kept = append(kept, w)
		}
	}
	f.waiters = kept
}

// apply carries out writes at the next revision and publishes it.
func (f *fake) apply(writes ...eval.Write) ids.Revision {
	f.t.Helper()
	v := f.next()
	v.Revision++
	for _, w := range writes {
		f.fronts[f.range_(w.Key)].Enqueue(v.Position)
	}
	f.publish(v)
	b := f.engines.Data.NewBatch()
	f.writer.Reset(b)
	for _, w := range writes {
		f.write(w, v.Revision)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		f.t.Fatal(err)
	}
	if err := f.writer.Done(); err != nil {
		f.t.Fatal(err)
	}
	for _, w := range writes {
		if r := f.range_(w.Key); !f.lagging[r] {
			f.fronts[r].Advance(v.Position)
		}
	}
	return v.Revision
}

func (f *fake) range_(key []byte) ids.RangeID { return ids.RangeID(f.view.Routing.Lookup(key).GetId()) }

func (f *fake) write(w eval.Write, rev ids.Revision) {
	f.t.Helper()
	if w.PrevKV != nil {
		kv, err := f.writer.PrevKV(w.Key)
		if err != nil {
			f.t.Fatal(err)
		}
		w.PrevKV(kv)
	}
	var err error
	if w.Delete {
		_, _, err = f.writer.Delete(w.Key, rev, w.Sub)
	} else {
		_, err = f.writer.Put(mvcc.Put{Key: w.Key, Value: w.Value, Lease: w.Lease, Rev: rev, Sub: w.Sub})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// noop moves the order log on by a position that changes nothing, after fn has changed the state.
func (f *fake) noop(fn func(v *order.View)) {
	v := f.next()
	if fn != nil {
		fn(v)
	}
	f.publish(v)
}

// catchUp lets a lagging range apply all it has.
func (f *fake) catchUp(r ids.RangeID) {
	f.lagging[r] = false
	f.fronts[r].Advance(f.view.Position)
}

// compact compacts at a revision: the order state says so, and every version that is superseded there goes.
func (f *fake) compact(rev ids.Revision) {
	f.t.Helper()
	f.noop(func(v *order.View) { v.CompactRevision = rev })
	f.remove(rev)
}

// remove removes what a compaction removes.
func (f *fake) remove(rev ids.Revision) {
	f.t.Helper()
	b := f.engines.Data.NewBatch()
	if _, err := mvcc.CompactStep(f.engines.Data, b, nil, nil, f.physical, rev, 1<<30); err != nil {
		f.t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		f.t.Fatal(err)
	}
	f.physical = rev
	run := f.compacted
	f.compacted = nil
	for _, fn := range run {
		fn()
	}
}

// leaderView is what a range's leader evaluates on.
type leaderView struct {
	f *fake
	v *order.View
}

func (l leaderView) Get(k []byte, _ bool) (eval.Value, error) {
	kv, err := mvcc.Get(l.f.engines.Data, k, l.v.Revision)
	return eval.Value{KV: kv}, err
}

func (l leaderView) Scan(start, end []byte, visit func(*mvccpb.KeyValue) (bool, error)) error {
	res, err := mvcc.Range(l.f.engines.Data, mvcc.RangeOptions{Start: start, End: end, Rev: l.v.Revision})
	for _, kv := range res.KVs {
		if more, err := visit(kv); err != nil || !more {
			return err
		}
	}
	return err
}

func (l leaderView) ReadAt(o mvcc.RangeOptions) (mvcc.RangeResult, error) {
	return mvcc.Range(l.f.engines.Data, o)
}
func (l leaderView) LeaseExists(id ids.LeaseID) bool { return l.f.leases[id] }
func (l leaderView) Revision() ids.Revision          { return l.v.Revision }
func (l leaderView) Compacted() ids.Revision         { return l.v.CompactRevision }

func (f *fake) Submit(r ids.RangeID, req *ranges.Request) {
	if f.submit != nil && f.submit(r, req) {
		return
	}
	// The leader is elsewhere: it answers later.
	f.w.later(func() { req.Done(f.serve(r, req)) })
}

// serve is what a range's leader does with a request.
func (f *fake) serve(r ids.RangeID, req *ranges.Request) *ranges.Response {
	d := f.current().Routing.ByID(r)
	if d == nil || ids.Generation(d.Generation) != req.Generation {
		return &ranges.Response{Code: ranges.CodeGeneration}
	}
	if f.current().AuthRevision != req.AuthRevision {
		return &ranges.Response{Code: ranges.CodeAuthRevision}
	}
	v := leaderView{f, f.current()}
	var res eval.Result
	switch {
	case req.Put != nil:
		f.describe("put %d", r)
		res = eval.Put(v, req.Put)
	case req.Delete != nil:
		f.describe("delete %d", r)
		res = eval.DeleteRange(v, req.Delete)
	case req.Txn != nil:
		f.describe("txn %d", r)
		res = eval.Txn(v, req.Txn)
	default:
		return f.serveTxn(r, req)
	}
	if res.Err != nil || len(res.Writes) == 0 {
		return &ranges.Response{Code: ranges.CodeReadInstead}
	}
	rev := f.apply(res.Writes...)
	res.SetRevision(rev)
	return &ranges.Response{Revision: rev, Put: res.Put, Delete: res.Delete, Txn: res.Txn}
}

// serveTxn is a range's part of a transaction over several.
func (f *fake) serveTxn(r ids.RangeID, req *ranges.Request) *ranges.Response {
	switch {
	case req.Lock != nil:
		f.describe("lock %d", r)
		f.token++
		f.locks[f.token] = &fakeLock{r, txnOf(req.Lock.Txn)}
		resp := &braidpb.LockResponse{Token: f.token, Term: 1}
		seen := map[string]bool{}
		for _, sp := range req.Lock.Reads {
			end := sp.End
			if len(end) == 0 && !sp.ToEnd {
				end = append(bytes.Clone(sp.Start), 0)
			}
			res, err := mvcc.Range(f.engines.Data, mvcc.RangeOptions{Start: sp.Start, End: end, Rev: f.current().Revision})
			if err != nil {
				f.t.Fatal(err)
			}
			for _, kv := range res.KVs {
				if seen[string(kv.Key)] {
					continue
				}
				seen[string(kv.Key)] = true
				m, err := proto.Marshal(kv)
				if err != nil {
					f.t.Fatal(err)
				}
				resp.Kvs = append(resp.Kvs, m)
			}
		}
		return &ranges.Response{Lock: resp}
	case req.Prepare != nil:
		f.describe("prepare %d", r)
		l := f.locks[req.Prepare.Token]
		if l == nil || l.r != r {
			return &ranges.Response{Code: ranges.CodeTokenLapsed}
		}
		delete(f.locks, req.Prepare.Token)
		f.prepares[l.id] = append(f.prepares[l.id], req.Prepare)
		return &ranges.Response{}
	}
	f.describe("unlock %d", r)
	delete(f.locks, req.Unlock.Token)
	return &ranges.Response{}
}

func txnOf(t *braidpb.TxnID) ids.TxnID {
	return ids.TxnID{Node: ids.NodeID(t.GetNode()), Incarnation: t.GetIncarnation(), Counter: t.GetCounter()}
}

func (f *fake) Propose(cmd *braidpb.OrderCommand, timeoutTicks int, done func(order.Result)) {
	if done == nil {
		done = func(order.Result) {}
	}
	if f.propose != nil && f.propose(cmd, done) {
		return
	}
	f.w.later(func() { done(f.decide(cmd)) })
}

// decide is what the order log does with a command.
func (f *fake) decide(cmd *braidpb.OrderCommand) order.Result {
	switch k := cmd.Kind.(type) {
	case *braidpb.OrderCommand_Compact:
		rev := ids.Revision(k.Compact.Revision)
		switch v := f.current(); {
		case rev <= v.CompactRevision:
			return order.Result{Err: order.ErrCompacted, Revision: v.Revision}
		case rev > v.Revision:
			return order.Result{Err: order.ErrFutureRev, Revision: v.Revision}
		}
		f.noop(func(v *order.View) { v.CompactRevision = rev })
		return order.Result{Position: f.view.Position, Revision: f.view.Revision}
	case *braidpb.OrderCommand_Abort:
		f.describe("abort")
		delete(f.prepares, txnOf(k.Abort.Txn))
		return order.Result{Position: f.view.Position}
	case *braidpb.OrderCommand_Commit:
		f.describe("commit")
		prepares := f.prepares[txnOf(k.Commit.Txn)]
		if len(prepares) != len(k.Commit.Participants) {
			f.t.Errorf("commit of %d participants with %d prepares", len(k.Commit.Participants), len(prepares))
		}
		delete(f.prepares, txnOf(k.Commit.Txn))
		var writes []eval.Write
		for _, p := range prepares {
			for _, w := range p.Writes {
				writes = append(writes, eval.Write{Key: w.Key, Value: w.Value, Lease: ids.LeaseID(w.Lease), Delete: w.Delete, Sub: uint32(w.Sub)})
			}
		}
		rev := f.apply(writes...)
		return order.Result{Committed: true, Revision: rev, Position: f.view.Position}
	}
	f.t.Fatalf("command %T", cmd.Kind)
	return order.Result{}
}

// answer codes a refusal of the next n requests of a kind; after that they are carried out.
func (f *fake) refuse(n int, resp *ranges.Response) {
	f.submit = func(_ ids.RangeID, req *ranges.Request) bool {
		if n == 0 {
			return false
		}
		n--
		f.describe("refused %v", resp.Code)
		f.w.later(func() { r := *resp; req.Done(&r) })
		return true
	}
}

// rig is a server on a fake node.
type rig struct {
	*fake
	s *Server
}

func newRig(t testing.TB, splits ...string) *rig {
	t.Helper()
	w := &world{}
	f := newFake(t, w, splits...)
	return &rig{fake: f, s: New(f, Config{Await: w.Await, Version: "3.7.3"})}
}

// call runs fn as a client's request, which must not have to wait for anything that does not come by itself.
func (g *rig) call(fn func()) {
	g.t.Helper()
	g.finished(g.start(fn))
}

// start runs fn as a client's request until it waits for something that does not come by itself.
func (g *rig) start(fn func()) *coroutine {
	c := g.w.spawn(fn)
	g.w.run()
	return c
}

// run runs what can run.
func (g *rig) run() { g.w.run() }

// ticks lets ticks pass.
func (g *rig) ticks(n int) {
	for range n {
		g.s.Tick()
		g.w.run()
	}
}

func (g *rig) finished(c *coroutine) {
	g.t.Helper()
	if !c.ended {
		g.t.Fatal("the request still waits")
	}
}

func (g *rig) waits(c *coroutine) {
	g.t.Helper()
	if c.ended {
		g.t.Fatal("the request does not wait")
	}
}

// wantErr compares errors as clients see them.
func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if g, w := status.Convert(got), status.Convert(want); g.Code() != w.Code() || g.Message() != w.Message() {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// rangeOK is a range request that must succeed.
func (g *rig) rangeOK(r *pb.RangeRequest) *pb.RangeResponse {
	g.t.Helper()
	var resp *pb.RangeResponse
	var err error
	g.call(func() { resp, err = g.s.Range(context.Background(), r) })
	if err != nil {
		g.t.Fatalf("%v: %v", r, err)
	}
	return resp
}
