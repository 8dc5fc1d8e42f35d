package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/node"
	"github.com/braidkv/braid/sim/check"
)

// RunOptions say what one run does.
type RunOptions struct {
	Seed     uint64
	Mutation node.Mutation
	// Calm runs have no faults.
	Calm bool
	// Length is how long clients and faults go on (default drawn, 3 to 8 s of virtual time).
	Length Time
	Log    io.Writer
}

// Result is the outcome of a run.
type Result struct {
	Err     error // nil: every check passed
	Trace   uint64
	Steps   uint64
	Report  *check.Report
	Nodes   int
	Ranges  int
	Virtual Time
}

// run is one run under way.
type run struct {
	c       *Cluster
	o       RunOptions
	ops     []check.Op
	events  map[int64][]check.Event // harvested before compactions
	through int64                   // harvested through this revision
	open    int                     // clients that have not ended
	until   Time
	faults  []string
	watches []*watcher
}

// Budgets: a run that needs more is stuck or spins.
const (
	requestPatience = 9 * Second
	settleTime      = 60 * Second
	maxSteps        = 3_000_000
)

// Run runs one seed.
func Run(o RunOptions) (res Result) {
	w := NewWorld(o.Seed) // only to draw the shape; the cluster has a world of its own
	shape := Options{Seed: o.Seed, Mutation: o.Mutation, Log: o.Log, Nodes: []int{1, 3, 3, 3, 5}[w.Rand.IntN(5)]}
	for _, k := range splits {
		if w.Chance(0.6) {
			shape.SplitKeys = append(shape.SplitKeys, k)
		}
	}
	if !o.Calm && w.Chance(0.5) {
		shape.LossRate, shape.DuplicateRate = 0.05*w.Rand.Float64(), 0.05*w.Rand.Float64()
	}
	r := &run{c: NewCluster(shape), o: o, events: map[int64][]check.Event{}, through: 1}
	r.until = o.Length
	if r.until == 0 {
		r.until = r.c.World.Between(3*Second, 8*Second)
	}
	res.Nodes, res.Ranges = shape.Nodes, len(shape.SplitKeys)+1
	defer func() {
		if p := recover(); p != nil {
			res.Err = fmt.Errorf("%d nodes, %d ranges, faults %v, at %d µs: panic: %v\n%s", res.Nodes, res.Ranges, r.faults, r.c.World.Now, p, debug.Stack())
		}
		res.Trace, res.Steps, res.Virtual = r.c.World.Trace(), r.c.World.Steps(), r.c.World.Now
		for _, m := range r.c.members {
			if m.core != nil {
				m.core.Abandon()
				m.core = nil
			}
		}
	}()
	res.Report, res.Err = r.all()
	if res.Err != nil {
		res.Err = fmt.Errorf("%d nodes, %d ranges, faults %v: %w", res.Nodes, res.Ranges, r.faults, res.Err)
	}
	return res
}

func (r *run) all() (*check.Report, error) {
	c := r.c
	c.Start()
	for i := range 2 + c.World.Rand.IntN(6) {
		r.startClient(i)
	}
	for range c.World.Rand.IntN(4) {
		r.startWatcher()
	}
	if !r.o.Calm {
		r.startNemesis()
	}
	if err := r.runUntil(r.until, nil); err != nil {
		return nil, err
	}
	c.heal()
	done := func() bool { return r.open == 0 && r.settled() }
	if err := r.runUntil(c.World.Now+settleTime, done); err != nil {
		return nil, err
	}
	if !done() {
		return nil, fmt.Errorf("not settled %d s after the last fault: %d clients still wait, %s", settleTime/Second, r.open, r.describe())
	}
	if err := r.probe(); err != nil {
		return nil, err
	}
	if err := r.finishWatchers(); err != nil {
		return nil, err
	}
	return r.judge()
}

func (r *run) runUntil(t Time, done func() bool) error {
	stop := func() bool { return r.c.err != nil || done != nil && done() }
	if err := r.c.World.RunUntil(t, maxSteps, stop); err != nil {
		return fmt.Errorf("%w: %s", err, r.describe())
	}
	return r.c.err
}

// settled tells whether all nodes have applied everything.
func (r *run) settled() bool {
	var at ids.Position
	for i, m := range r.c.members {
		if m.core == nil || !m.core.Settled() {
			return false
		}
		if p := m.core.View().Position; i == 0 {
			at = p
		} else if p != at {
			return false
		}
	}
	return true
}

func (r *run) describe() string {
	out := ""
	for _, m := range r.c.members {
		if m.core == nil {
			out += fmt.Sprintf("node %v down; ", m.id)
			continue
		}
		v := m.core.View()
		out += fmt.Sprintf("node %v at position %d revision %d leader %v settled %v: %s; ", m.id, v.Position, v.Revision, v.Leader, m.core.Settled(), m.core.Describe())
	}
	return out
}

// startClient starts a closed loop of requests.
func (r *run) startClient(id int) {
	cl := &client{c: r.c, id: id, seen: map[string]int64{}}
	r.open++
	r.c.World.Go(func(p *Proc) {
		defer func() { r.open-- }()
		for r.c.World.Now < r.until && r.c.err == nil {
			p.Sleep(r.c.World.Between(0, 40*Millisecond))
			m := r.c.nodeAt()
			if m == nil {
				continue
			}
			req := cl.next()
			if x, ok := req.(*pb.CompactionRequest); ok {
				if x.Revision = r.harvestable(p, m); x.Revision == 0 {
					continue
				}
			}
			resp, err := r.request(p, m, id, req)
			if err == nil {
				cl.learn(resp)
			}
		}
	})
}

// request sends one request to a node and records it.
func (r *run) request(p *Proc, m *member, client int, req any) (any, error) {
	w := r.c.World
	op := check.Op{Client: client, Node: fmt.Sprintf("%v.%d", m.id, m.incarnation), Invoke: int64(w.Now), Request: req}
	k := &call{p: p, node: m.id}
	r.c.calls = append(r.c.calls, k)
	over := false
	w.After(requestPatience, "patience", func() {
		if !over {
			p.Break(context.DeadlineExceeded)
		}
	})
	resp, err := sendTo(m, req)
	over = true
	r.c.calls = slices.DeleteFunc(r.c.calls, func(x *call) bool { return x == k })
	op.Return = int64(w.Now)
	op.Outcome, op.Refusal = check.Classify(err)
	if err == nil {
		op.Response = resp
	}
	r.ops = append(r.ops, op)
	if r.o.Log != nil {
		fmt.Fprintf(r.o.Log, "%d client %d node %v: %v -> %v %v\n", w.Now, client, m.id, req, resp, err)
	}
	return resp, err
}

// sendTo sends to the process that now is the node. If it dies, so does whatever of the request still runs in it.
func sendTo(m *member, req any) (resp any, err error) {
	core := m.core
	defer func() {
		if m.core == core {
			return
		}
		if p := recover(); p != nil {
			if e, ok := p.(error); !ok || !errors.Is(e, pebble.ErrClosed) {
				panic(p)
			}
		}
		resp, err = nil, errNodeDied
	}()
	return send(core, req)
}

func send(core *node.Core, req any) (any, error) {
	s, ctx := core.Server(), context.Background()
	switch x := req.(type) {
	case *pb.PutRequest:
		return s.Put(ctx, x)
	case *pb.DeleteRangeRequest:
		return s.DeleteRange(ctx, x)
	case *pb.TxnRequest:
		return s.Txn(ctx, x)
	case *pb.RangeRequest:
		return s.Range(ctx, x)
	case *pb.CompactionRequest:
		return s.Compact(ctx, x)
	}
	return nil, fmt.Errorf("sim: unknown request %T", req)
}

// harvestable reads the whole key space at a node and takes over the events that it then surely has; a compaction up to there
// loses nothing that the judgement needs.
func (r *run) harvestable(p *Proc, m *member) int64 {
	resp, err := r.request(p, m, -1, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil || m.core == nil {
		return 0
	}
	rev := resp.(*pb.RangeResponse).Header.Revision
	if rev > r.through {
		evs, err := eventsOf(m.core, ids.Revision(r.through+1), ids.Revision(rev))
		if err != nil {
			r.c.fail(err)
			return 0
		}
		for _, e := range evs {
			r.events[e.Revision] = append(r.events[e.Revision], e)
		}
		r.through = rev
	}
	return max(1, rev-int64(r.c.World.Rand.IntN(6)))
}

// eventsOf reads a node's history from a revision on, through another.
func eventsOf(core *node.Core, from, to ids.Revision) (out []check.Event, err error) {
	err = mvcc.Events(core.Reader(), from, to, nil, nil, func(e mvcc.Event) (bool, error) {
		x := check.Event{Revision: int64(e.Rev), Sub: int64(e.Sub), Key: string(e.Key), Delete: e.Deletion}
		if !e.Deletion {
			kv, err := mvcc.Get(core.Reader(), e.Key, e.Rev)
			if err != nil {
				return false, err
			}
			if kv == nil || kv.ModRevision != int64(e.Rev) {
				return false, fmt.Errorf("event %d.%d of %q has no version", e.Rev, e.Sub, e.Key)
			}
			x.Value, x.Lease, x.Create, x.Version = string(kv.Value), kv.Lease, kv.CreateRevision, kv.Version
		}
		out = append(out, x)
		return true, nil
	})
	return out, err
}

// probe writes to every range through every node: after the faults everything must work again.
func (r *run) probe() error {
	left := 0
	var failed error
	for _, m := range r.c.members {
		for _, k := range keys {
			left++
			r.c.World.Go(func(p *Proc) {
				defer func() { left-- }()
				if _, err := r.request(p, m, 1000+int(m.id), &pb.PutRequest{Key: []byte(k), Value: []byte("probe")}); err != nil && failed == nil {
					failed = fmt.Errorf("a write of %q at node %v after the faults: %w", k, m.id, err)
				}
			})
		}
	}
	done := func() bool { return left == 0 && r.settled() }
	if err := r.runUntil(r.c.World.Now+settleTime, done); err != nil {
		return err
	}
	if failed == nil && !done() {
		failed = errors.New("writes after the faults do not settle: " + r.describe())
	}
	return failed
}

// judge compares the nodes and checks the history.
func (r *run) judge() (*check.Report, error) {
	var contents []check.Content
	var hashes []uint32
	for _, m := range r.c.members {
		v := m.core.View()
		evs, err := eventsOf(m.core, ids.Revision(r.through+1), v.Revision)
		if err != nil {
			return nil, fmt.Errorf("node %v: %w", m.id, err)
		}
		contents = append(contents, check.Content{Node: m.id.String(), Revision: int64(v.Revision), Events: evs})
		h, err := mvcc.Hash(m.core.Reader(), nil, nil, v.CompactRevision, v.Revision)
		if err != nil {
			return nil, fmt.Errorf("node %v: %w", m.id, err)
		}
		hashes = append(hashes, h)
	}
	if f := check.SameContent(contents); len(f) > 0 {
		return nil, fmt.Errorf("nodes differ: %v", f[0])
	}
	for i := range hashes {
		if hashes[i] != hashes[0] {
			return nil, fmt.Errorf("nodes differ: hash %x of node %v, %x of node %v", hashes[i], r.c.members[i].id, hashes[0], r.c.members[0].id)
		}
	}
	h := check.History{Base: 1, Ops: r.ops, Events: contents[0].Events, Final: contents[0].Revision}
	for rev := int64(2); rev <= r.through; rev++ {
		h.Events = append(h.Events, r.events[rev]...)
	}
	report := check.Check(h)
	if err := report.Err(); err != nil {
		return report, err
	}
	return report, r.judgeWatchers(h.Events, h.Final)
}
