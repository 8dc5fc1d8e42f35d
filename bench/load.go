package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/braidkv/braid/test/servers"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// load is the mode that fills a store with many keys and restarts it.
type load struct {
	config
	keys, clients, batch, rounds int
}

// loadResult is one store in one round.
type loadResult struct {
	Side    string  `json:"side"`
	Kind    string  `json:"kind"`
	Nodes   int     `json:"nodes"`
	Ranges  int     `json:"ranges"`
	Round   int     `json:"round"`
	Keys    int     `json:"keys"`
	Seconds float64 `json:"seconds"`

	ServerCPU float64 `json:"server_cpu_seconds"`
	RSS       int64   `json:"rss_bytes"` // after the load, of the largest node
	PeakRSS   int64   `json:"peak_rss_bytes"`
	DiskBytes int64   `json:"disk_bytes"` // of all nodes
	UserBytes int64   `json:"user_bytes"`

	// After SIGTERM, and after SIGKILL, of all nodes: seconds from the start of the processes to the ready lines of all, to a
	// linearizable read, and memory of the largest node then.
	Clean, Killed restart
	Count         int64 `json:"count"` // keys found at the end
}

type restart struct {
	Stop, Ready, Read float64
	RSS               int64
}

func runLoad(ctx context.Context, args []string) error {
	l := &load{}
	f := flag.NewFlagSet("bench load", flag.ContinueOnError)
	l.register(f, "3", "1", 100)
	f.IntVar(&l.keys, "keys", 1_000_000, "keys to write")
	f.IntVar(&l.clients, "clients", 256, "clients that write them")
	f.IntVar(&l.batch, "batch", 1, "puts in one transaction; 1: plain puts")
	f.IntVar(&l.rounds, "rounds", 1, "how often, the sides in turn")
	if err := f.Parse(args); err != nil {
		return err
	}
	if l.keys < 1 || l.clients < 1 || l.batch < 1 || l.batch > 128 || l.rounds < 1 {
		return fmt.Errorf("--keys, --clients and --rounds must be above 0, --batch 1 to 128")
	}
	l.serverFlags = []string{"--quota-backend-bytes", fmt.Sprint(8 << 30)}
	if err := l.resolve(ctx); err != nil {
		return err
	}
	var results []loadResult
	err := l.run(ctx, &results)
	if len(results) > 0 {
		writeLoads(os.Stdout, l, results)
	}
	if l.jsonFile != "" {
		if jerr := writeJSON(l.jsonFile, results); jerr != nil {
			return jerr
		}
	}
	return err
}

func (l *load) run(ctx context.Context, results *[]loadResult) error {
	for _, nodes := range l.nodes {
		for _, ranges := range l.ranges {
			for round := range l.rounds {
				for _, s := range l.sides {
					r, err := l.one(ctx, s, nodes, ranges, round)
					if err != nil {
						return fmt.Errorf("%s, %d nodes, %d ranges: %w", s.Kind, nodes, ranges, err)
					}
					*results = append(*results, r)
				}
			}
		}
	}
	return nil
}

func (l *load) one(ctx context.Context, s side, nodes, ranges, round int) (loadResult, error) {
	r := loadResult{Side: s.Name, Kind: string(s.Kind), Nodes: nodes, Ranges: ranges, Round: round, Keys: l.keys}
	r.UserBytes = int64(l.keys * (len(object(0)) + l.valueSize))
	cl, stop, err := l.start(ctx, s, nodes, ranges)
	if err != nil {
		return r, err
	}
	defer stop()
	begin := time.Now()
	if err := l.write(ctx, cl, string(s.Kind)); err != nil {
		return r, err
	}
	r.Seconds = time.Since(begin).Seconds()
	if r.ServerCPU, r.RSS, r.PeakRSS, err = largest(cl); err != nil {
		return r, err
	}
	if r.Clean, err = l.restart(ctx, cl, func() error { return cl.Stop(l.stopLimit) }); err != nil {
		return r, err
	}
	if r.Killed, err = l.restart(ctx, cl, func() error { cl.Close(); return nil }); err != nil {
		return r, err
	}
	if r.DiskBytes, err = cl.DiskBytes(); err != nil {
		return r, err
	}
	k, err := dial(cl.Nodes[0].Client)
	if err != nil {
		return r, err
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(ctx, l.operationLimit)
	defer cancel()
	resp, err := k.Get(ctx, prefix, clientv3.WithRange(prefixEnd), clientv3.WithCountOnly())
	if err != nil {
		return r, fmt.Errorf("counting the keys: %w", err)
	}
	if r.Count = resp.Count; r.Count != int64(l.keys) {
		return r, fmt.Errorf("%w: %d of %d keys are left", errWrongAnswer, r.Count, l.keys)
	}
	return r, nil
}

// write puts all keys with all clients.
func (l *load) write(ctx context.Context, cl *servers.Cluster, what string) error {
	conns, err := l.connect(ctx, cl)
	if err != nil {
		return err
	}
	defer conns.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for id := range l.clients {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(id), 6))
			for ctx.Err() == nil {
				from := int(next.Add(int64(l.batch))) - l.batch
				if from >= l.keys {
					return
				}
				n := min(l.batch, l.keys-from)
				if err := l.put(ctx, conns.nth(id+from), r, from, n); err != nil {
					cancel(fmt.Errorf("writing keys: %w", err))
					return
				}
				done.Add(int64(n))
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	l.watch(finished, &done, what)
	return context.Cause(ctx)
}

func (l *load) put(ctx context.Context, k *clientv3.Client, r *rand.Rand, from, n int) error {
	ctx, cancel := context.WithTimeout(ctx, l.operationLimit)
	defer cancel()
	if l.batch == 1 {
		_, err := k.Put(ctx, object(from), value(r, l.valueSize))
		return err
	}
	ops := make([]clientv3.Op, 0, n)
	for i := range n {
		ops = append(ops, clientv3.OpPut(object(from+i), value(r, l.valueSize)))
	}
	_, err := k.Txn(ctx).Then(ops...).Commit()
	return err
}

// watch shows how many keys are written until they all are.
func (l *load) watch(finished <-chan struct{}, done *atomic.Int64, what string) {
	p := newCounter(int64(l.keys), "loading "+what)
	defer p.close()
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-finished:
			return
		case <-every.C:
			p.set(done.Load())
		}
	}
}

// largest sums the CPU of all nodes, and returns the memory of the largest one.
func largest(cl *servers.Cluster) (cpu float64, rss, peak int64, err error) {
	for _, n := range cl.Nodes {
		u, err := n.Usage()
		if err != nil {
			return 0, 0, 0, err
		}
		cpu += u.CPU.Seconds()
		rss, peak = max(rss, u.RSS), max(peak, u.PeakRSS)
	}
	return cpu, rss, peak, nil
}

// restart ends all nodes, starts them again and times that.
func (l *load) restart(ctx context.Context, cl *servers.Cluster, end func() error) (restart, error) {
	var r restart
	begin := time.Now()
	if err := end(); err != nil {
		return r, err
	}
	r.Stop = time.Since(begin).Seconds()
	ctx, cancel := context.WithTimeout(ctx, l.startLimit)
	defer cancel()
	begin = time.Now()
	if err := cl.Start(ctx); err != nil {
		return r, fmt.Errorf("restarting: %w", err)
	}
	r.Ready = time.Since(begin).Seconds()
	k, err := dial(cl.Nodes[0].Client)
	if err != nil {
		return r, err
	}
	defer k.Close()
	for {
		once, cancel := context.WithTimeout(ctx, time.Second)
		resp, err := k.Get(once, object(0))
		cancel()
		if err == nil {
			if len(resp.Kvs) != 1 {
				return r, fmt.Errorf("%w: a key is gone after a restart", errWrongAnswer)
			}
			break
		}
		if ctx.Err() != nil {
			return r, fmt.Errorf("reading after a restart: %w", err)
		}
		pause(ctx, 5*time.Millisecond)
	}
	r.Read = time.Since(begin).Seconds()
	_, r.RSS, _, err = largest(cl)
	return r, err
}

func writeLoads(out io.Writer, l *load, rs []loadResult) {
	fmt.Fprintf(out, "%d CPUs shared by the nodes and the load generator; %d keys, values of %d bytes, %d clients, %d puts in a request\n\n",
		runtime.NumCPU(), l.keys, l.valueSize, l.clients, l.batch)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "nodes\tranges\tside\tkeys/s\tCPU/key\tRSS\tpeak RSS\tdisk/B\tstop\tready\tread\tRSS then\tafter kill -9: ready\tread\tRSS then\t")
	for _, r := range rs {
		mib := func(b int64) string { return fmt.Sprintf("%.0fM", float64(b)/(1<<20)) }
		fmt.Fprintf(w, "%d\t%d\t%s:%s\t%.0f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Nodes, r.Ranges, r.Side, r.Kind, float64(r.Keys)/r.Seconds,
			short(r.ServerCPU/float64(r.Keys)), mib(r.RSS), mib(r.PeakRSS), per(r.DiskBytes, r.UserBytes), short(r.Clean.Stop), short(r.Clean.Ready),
			short(r.Clean.Read), mib(r.Clean.RSS), short(r.Killed.Ready), short(r.Killed.Read), mib(r.Killed.RSS))
	}
	w.Flush()
	fmt.Fprintln(out, "\nRSS: the largest node. disk/B: space of all nodes at the end per byte of key and value. ready, read: from the start of the processes to the"+
		"\nready lines of all nodes, and to a linearizable read.")
}
