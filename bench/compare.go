package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// compare is the mode that measures workloads.
type compare struct {
	config
	workloads []workload
	clients   []int
	rounds    int
	window    time.Duration
	warmUp    time.Duration
	page      int
	plotFile  string
	rows      []measurement
}

func runCompare(ctx context.Context, args []string) error {
	c := &compare{}
	f := flag.NewFlagSet("bench compare", flag.ContinueOnError)
	c.register(f, "1,3", "1,16", 256)
	names := f.String("workloads", "put,update,get,sget,list,page,create", "workloads, comma-separated: "+workloadNames())
	clients := f.String("clients", "1,64,256", "numbers of clients, comma-separated")
	seconds := f.Float64("seconds", 10, "length of a measurement")
	warm := f.Float64("warm-up", 1, "seconds before each measurement")
	f.IntVar(&c.rounds, "rounds", 3, "how often each side is measured, in turn: a b a b ..")
	f.IntVar(&c.objects, "objects", 10000, "objects that are there before the measurements")
	f.IntVar(&c.page, "page-size", 500, "limit of a page")
	f.StringVar(&c.plotFile, "plot", "", "draw throughput and server CPU into this PNG file")
	if err := f.Parse(args); err != nil {
		return err
	}
	var err error
	if c.clients, err = numbers(*clients); err != nil {
		return fmt.Errorf("--clients: %w", err)
	}
	if *seconds <= 0 || *warm < 0 || c.rounds < 1 || c.objects < groups || c.page < 1 {
		return fmt.Errorf("--seconds, --rounds and --page-size must be above 0, --objects at least %d", groups)
	}
	c.window, c.warmUp = time.Duration(*seconds*float64(time.Second)), time.Duration(*warm*float64(time.Second))
	asked := strings.Split(*names, ",")
	for _, n := range asked {
		if _, err := findWorkload(n); err != nil {
			return err
		}
	}
	for _, w := range workloads {
		if slices.Contains(asked, w.name) {
			c.workloads = append(c.workloads, w)
		}
	}
	if err := c.resolve(ctx); err != nil {
		return err
	}
	runErr := c.run(ctx)
	return finish(c, runErr)
}

// finish reports what there is, also after an interruption.
func finish(c *compare, runErr error) error {
	if len(c.rows) > 0 {
		summary := summarise(c.rows)
		writeTable(os.Stdout, c, summary)
		if c.plotFile != "" {
			if err := plotSummary(c.plotFile, summary); err != nil {
				return err
			}
		}
	}
	if c.jsonFile != "" {
		if err := writeJSON(c.jsonFile, c.rows); err != nil {
			return err
		}
	}
	return runErr
}

func workloadNames() string {
	var n []string
	for _, w := range workloads {
		n = append(n, w.name)
	}
	return strings.Join(n, ", ")
}

// clientCounts are the numbers of clients for one workload.
func (c *compare) clientCounts(w workload) []int {
	var out []int
	for _, n := range c.clients {
		if w.mostClients > 0 {
			n = min(n, w.mostClients)
		}
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// run measures every setting, round after round, the sides in turn.
func (c *compare) run(ctx context.Context) error {
	perCluster := 0
	for _, w := range c.workloads {
		perCluster += len(c.clientCounts(w))
	}
	total := perCluster * len(c.nodes) * len(c.ranges) * c.rounds * len(c.sides)
	p := newProgress(total, time.Duration(total)*(c.window+c.warmUp))
	defer p.close()
	for _, nodes := range c.nodes {
		for _, ranges := range c.ranges {
			for round := range c.rounds {
				for _, s := range c.sides {
					if err := c.runCluster(ctx, p, s, nodes, ranges, round); err != nil {
						return fmt.Errorf("%s, %d nodes, %d ranges, round %d: %w", s.Kind, nodes, ranges, round+1, err)
					}
				}
			}
		}
	}
	return nil
}

// runCluster measures all workloads on one fresh cluster.
func (c *compare) runCluster(ctx context.Context, p *progress, s side, nodes, ranges, round int) error {
	cl, stop, err := c.start(ctx, s, nodes, ranges)
	if err != nil {
		return err
	}
	defer stop()
	conns, err := c.connect(ctx, cl)
	if err != nil {
		return err
	}
	defer conns.close()
	l := &loadState{objects: c.objects, valueSize: c.valueSize, page: int64(c.page)}
	if err := l.fill(ctx, conns); err != nil {
		return err
	}
	written := int64(c.objects * (len(object(0)) + c.valueSize))
	for _, w := range c.workloads {
		for _, n := range c.clientCounts(w) {
			p.describe(fmt.Sprintf("%s %d nodes %d ranges, %s x %d", s.Kind, nodes, ranges, w.name, n))
			m, err := c.measure(ctx, cl, conns, l, w, n)
			if err != nil {
				return fmt.Errorf("%s with %d clients: %w", w.name, n, err)
			}
			written += m.UserBytes
			m.Side, m.Kind, m.Ranges, m.Round, m.TotalUserBytes = s.Name, string(s.Kind), ranges, round, written
			c.rows = append(c.rows, m)
			p.done(m)
		}
	}
	return nil
}
