package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/braidkv/braid/sim/check"
	"github.com/braidkv/braid/test/servers"
)

// options are the flags.
type options struct {
	kind, binary, flags, dir string
	nodes, ranges, keys      int
	clients                  int
	rate                     float64
	duration, every          time.Duration
	requestLimit, liveLimit  time.Duration
	compactEvery             time.Duration
	faults                   []string
	seed                     uint64
	keep                     bool
}

var (
	errViolation = errors.New("a guarantee is broken")
	errTooLittle = errors.New("too little happened to show anything")
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:])
	cancel()
	switch {
	case err == nil:
		fmt.Println("PASS")
	case errors.Is(err, errViolation):
		fmt.Println("FAIL:", err)
		os.Exit(1)
	case errors.Is(err, errTooLittle):
		fmt.Println("NO VERDICT:", err)
		os.Exit(3)
	default:
		fmt.Fprintln(os.Stderr, "kill:", err)
		os.Exit(2)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("kill", flag.ContinueOnError)
	f.StringVar(&o.kind, "kind", "braid", "what the servers are: braid or etcd")
	f.StringVar(&o.binary, "binary", "", "the server's program (default: built from this checkout)")
	f.StringVar(&o.flags, "flags", "", "more flags for every node, separated by spaces")
	f.StringVar(&o.dir, "dir", "", "folder for the data folders (default: temporary)")
	f.IntVar(&o.nodes, "nodes", 3, "nodes")
	f.IntVar(&o.ranges, "ranges", 16, "ranges (braid)")
	f.IntVar(&o.keys, "keys", 24, "keys in use")
	f.IntVar(&o.clients, "clients", 12, "clients")
	f.Float64Var(&o.rate, "rate", 400, "requests per second of all clients together, at most; 0: no limit")
	f.DurationVar(&o.duration, "duration", time.Minute, "time under load and faults")
	f.DurationVar(&o.every, "every", 5*time.Second, "time between the starts of two faults")
	f.DurationVar(&o.requestLimit, "request-limit", 2*time.Second, "time for one request")
	f.DurationVar(&o.liveLimit, "live-limit", time.Minute, "time to serve again when all faults are healed")
	f.DurationVar(&o.compactEvery, "compact-every", 0, "compact the history now and then; 0: never")
	faults := f.String("faults", "kill,pause,all", "faults to draw from, comma-separated: "+strings.Join(faultNames(), ", ")+"; none: no faults")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the load and the faults; 0: a new one")
	f.BoolVar(&o.keep, "keep", false, "keep the data folders and logs of a clean run too")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.nodes < 1 || o.keys < 1 || o.ranges < 1 || o.clients < 1 || o.keys < o.ranges {
		return o, errors.New("--nodes, --clients and --ranges must be above 0, --keys at least --ranges")
	}
	if *faults != "none" {
		o.faults = strings.Split(*faults, ",")
	}
	for _, n := range o.faults {
		if !slices.Contains(faultNames(), n) {
			return o, fmt.Errorf("--faults: unknown fault %q", n)
		}
	}
	if o.seed == 0 {
		o.seed = rand.Uint64() >> 32
	}
	return o, nil
}

func start(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	fmt.Printf("seed %d: %s, %d nodes, %d ranges, %d keys, %d clients, %v, faults %v\n", o.seed, o.kind, o.nodes, o.ranges, o.keys, o.clients, o.duration, o.faults)
	binary, err := servers.Binary(ctx, servers.Kind(o.kind), o.binary)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "braid-kill-")
	if err != nil {
		return fmt.Errorf("making a data folder: %w", err)
	}
	cl, err := servers.New(servers.Config{
		Kind: servers.Kind(o.kind), Binary: binary, Nodes: o.nodes, Dir: dir, SplitKeys: splitKeys(o.keys, o.ranges), Flags: strings.Fields(o.flags),
	})
	if err != nil {
		return err
	}
	r := newRun(o, cl, dir)
	report, err := r.whole(ctx)
	if stopErr := cl.Stop(10 * time.Second); stopErr != nil {
		fmt.Println("stopping:", stopErr)
	}
	cl.Close()
	if report != nil {
		r.print(report)
		err = errors.Join(err, verdict(report))
	}
	if err == nil && !o.keep {
		return os.RemoveAll(dir)
	}
	if werr := r.writeHistory(); werr != nil {
		err = errors.Join(err, werr)
	}
	fmt.Println("data folders, logs and history:", dir)
	return err
}

func verdict(r *check.Report) error {
	if err := r.Err(); err != nil {
		return fmt.Errorf("%w: %w", errViolation, err)
	}
	if r.Writes < 100 || r.Reads < 100 {
		return fmt.Errorf("%w: %d writes, %d reads", errTooLittle, r.Writes, r.Reads)
	}
	return nil
}

// whole is the run: load and faults, all killed at once, final history, verdict. It returns a report
// whenever there is something to judge.
func (r *run) whole(ctx context.Context) (*check.Report, error) {
	startCtx, cancel := context.WithTimeout(ctx, r.o.liveLimit)
	err := r.cl.Start(startCtx)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("starting the cluster: %w", err)
	}
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	defer r.disconnect()
	if err := r.firstRevision(ctx); err != nil {
		return nil, err
	}
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	fmt.Println("killing all nodes at once")
	if err := r.killAll(ctx, nil); err != nil {
		return nil, err
	}
	if err := r.alive(ctx); err != nil {
		return nil, err
	}
	fmt.Println("reading the final history from every node")
	return r.judge(ctx)
}
