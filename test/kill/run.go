package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/braidkv/braid/sim/check"
	"github.com/braidkv/braid/test/servers"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
)

// run is one run of the program.
type run struct {
	o       options
	cl      *servers.Cluster
	dir     string
	began   time.Time
	conns   []*clientv3.Client // one per client, to node client % nodes
	clients []*client
	// life counts, per node, the starts and ends of its processes: a request that began and ended at one
	// count was answered by one process.
	life     []atomic.Int64
	newest   atomic.Int64 // highest revision seen in any answer
	base     int64
	compacts []check.Op // by compactions, which only one goroutine sends
	final    *collector
	faults   map[string]int
}

func newRun(o options, cl *servers.Cluster, dir string) *run {
	r := &run{o: o, cl: cl, dir: dir, began: time.Now(), life: make([]atomic.Int64, o.nodes), faults: map[string]int{}}
	for i := range o.clients {
		r.clients = append(r.clients, &client{r: r, id: i, node: i % o.nodes, rand: rand.New(rand.NewPCG(o.seed, uint64(i))), seen: map[string]int64{}})
	}
	return r
}

// now is the time of the histories.
func (r *run) now() int64 { return int64(time.Since(r.began)) }

func (r *run) seconds() float64 { return time.Since(r.began).Seconds() }

func dial(endpoint string) (*clientv3.Client, error) {
	const most = 256 << 20
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(), MaxCallRecvMsgSize: most,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", endpoint, err)
	}
	return c, nil
}

func (r *run) connect(context.Context) error {
	for _, c := range r.clients {
		k, err := dial(r.cl.Nodes[c.node].Client)
		if err != nil {
			return err
		}
		c.conn, c.kv = k.ActiveConnection(), pb.NewKVClient(k.ActiveConnection())
		r.conns = append(r.conns, k)
	}
	return nil
}

func (r *run) disconnect() {
	for _, k := range r.conns {
		_ = k.Close() // the run is over
	}
}

// waitReady waits until a connection can carry a request, so that requests are not refused before they are sent, which
// would count as ambiguous and weaken the verdict.
func waitReady(ctx context.Context, conn *grpc.ClientConn) bool {
	for {
		s := conn.GetState()
		if s == connectivity.Ready {
			return true
		}
		conn.Connect()
		if !conn.WaitForStateChange(ctx, s) {
			return false
		}
	}
}

// firstRevision reads where the history begins; the store must be fresh.
func (r *run) firstRevision(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.liveLimit)
	defer cancel()
	c := r.clients[0]
	if !waitReady(ctx, c.conn) {
		return errors.New("the first node cannot be reached")
	}
	resp, err := c.kv.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		return fmt.Errorf("reading the first revision: %w", err)
	}
	if resp.Count != 0 || resp.Header.Revision != 1 {
		return fmt.Errorf("%w: a fresh store has %d keys at revision %d", errViolation, resp.Count, resp.Header.Revision)
	}
	r.base = resp.Header.Revision
	r.final = newCollector(r)
	return nil
}

// load runs the clients and the nemesis for the run's duration. All faults are healed when it returns.
func (r *run) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.duration)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range r.clients {
		wg.Go(func() { c.work(ctx) })
	}
	wg.Go(func() { r.show(ctx) })
	var compactErr error
	if r.o.compactEvery > 0 {
		wg.Go(func() { compactErr = r.compact(ctx) })
	}
	n := &nemesis{r: r, rand: rand.New(rand.NewPCG(r.o.seed, 1<<32))}
	err := n.work(ctx)
	if err != nil {
		cancel()
	}
	wg.Wait()
	return errors.Join(err, compactErr)
}

// show prints a line every ten seconds.
func (r *run) show(ctx context.Context) {
	t := time.NewTicker(10 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			ok, open := int64(0), int64(0)
			for _, c := range r.clients {
				ok += c.answered.Load()
				open += c.open.Load()
			}
			fmt.Printf("%5.1fs: %d requests answered, %d ambiguous, revision %d\n", r.seconds(), ok, open, r.newest.Load())
		}
	}
}

// alive demands that every node serves a linearizable write again.
func (r *run) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.liveLimit)
	defer cancel()
	for node := range r.cl.Nodes {
		c := &client{r: r, id: len(r.clients), node: node, rand: rand.New(rand.NewPCG(r.o.seed, uint64(1000+node))), seen: map[string]int64{}}
		r.clients = append(r.clients, c)
		k, err := dial(r.cl.Nodes[node].Client)
		if err != nil {
			return err
		}
		r.conns = append(r.conns, k)
		c.conn, c.kv = k.ActiveConnection(), pb.NewKVClient(k.ActiveConnection())
		for c.answered.Load() == 0 {
			if ctx.Err() != nil {
				return fmt.Errorf("%w: %s does not serve writes %v after all faults were healed", errViolation, r.cl.Nodes[node].Name, r.o.liveLimit)
			}
			if waitReady(ctx, c.conn) {
				c.send(ctx, &pb.PutRequest{Key: []byte(c.key()), Value: []byte(c.value())})
			}
		}
	}
	return nil
}

// compact collects the history from all nodes now and then, and compacts below what all have given.
func (r *run) compact(ctx context.Context) error {
	c := &client{r: r, id: len(r.clients), rand: rand.New(rand.NewPCG(r.o.seed, 1<<33)), seen: map[string]int64{}}
	last := r.base
	for {
		select {
		case <-ctx.Done():
			r.compacts = c.ops
			return nil
		case <-time.After(r.o.compactEvery):
		}
		have, err := r.final.gather(ctx)
		if err != nil {
			return err
		}
		const margin = 50 // so that reads of the near past succeed
		if rev := have - margin; rev > last {
			other := r.clients[c.rand.IntN(len(r.clients))]
			c.node, c.conn, c.kv = other.node, other.conn, other.kv
			c.send(ctx, &pb.CompactionRequest{Revision: rev, Physical: c.rand.IntN(2) == 0})
			last = rev
		}
	}
}
