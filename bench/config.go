package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/braidkv/braid/test/servers"
)

// side is one of the two stores that are compared.
type side struct {
	Name   string // "a" or "b"
	Kind   servers.Kind
	Binary string
	Flags  []string
}

// config is what both modes share.
type config struct {
	sides     []side
	nodes     []int
	ranges    []int
	dir       string
	valueSize int
	conns     int
	target    string
	diskStats string
	jsonFile  string
	keep      bool

	a, b                  string
	braidPath, etcdPath   string
	braidFlags, etcdFlags string
	nodesText, rangesText string
	startLimit, stopLimit time.Duration
	operationLimit        time.Duration
	objects               int
	serverFlags           []string // of the mode, for both kinds
}

// register adds the shared flags to a set.
func (c *config) register(f *flag.FlagSet, nodes, ranges string, valueSize int) {
	f.StringVar(&c.a, "a", "etcd", "first side: etcd or braid; the ratios are b to a")
	f.StringVar(&c.b, "b", "braid", "second side; none measures the first alone")
	f.StringVar(&c.braidPath, "braid", "", "braid's program (default: built from this checkout)")
	f.StringVar(&c.etcdPath, "etcd", "", "etcd's program (default: built from its module, 3.7.3)")
	f.StringVar(&c.braidFlags, "braid-flags", "", "more flags for braid's nodes, separated by spaces")
	f.StringVar(&c.etcdFlags, "etcd-flags", "", "more flags for etcd's nodes, separated by spaces")
	f.StringVar(&c.nodesText, "nodes", nodes, "numbers of nodes, comma-separated")
	f.StringVar(&c.rangesText, "ranges", ranges, "numbers of ranges (braid), comma-separated")
	f.StringVar(&c.dir, "dir", "", "folders for the data, comma-separated, the nodes in turn: such as the mount points of slow file systems (default: temporary)")
	f.StringVar(&c.diskStats, "disk-stats", "", "URLs of slow disks' /stats, comma-separated, to print fsyncs per operation")
	f.IntVar(&c.valueSize, "value-size", valueSize, "bytes of a value")
	f.IntVar(&c.conns, "conns", 2, "connections to each node")
	f.StringVar(&c.target, "target", "spread", "where requests go: spread (all nodes in turn), leader, or first")
	f.StringVar(&c.jsonFile, "json", "", "write every measurement to this file")
	f.BoolVar(&c.keep, "keep", false, "keep the data folders and logs")
	f.DurationVar(&c.startLimit, "start-limit", 2*time.Minute, "time for a cluster to start")
	f.DurationVar(&c.stopLimit, "stop-limit", 20*time.Second, "time for a cluster to stop")
	f.DurationVar(&c.operationLimit, "operation-limit", 30*time.Second, "time for one operation")
}

// resolve checks the flags and builds what has to be built.
func (c *config) resolve(ctx context.Context) error {
	var err error
	if c.nodes, err = numbers(c.nodesText); err != nil {
		return fmt.Errorf("--nodes: %w", err)
	}
	if c.ranges, err = numbers(c.rangesText); err != nil {
		return fmt.Errorf("--ranges: %w", err)
	}
	if slices.Max(c.ranges) > groups {
		return fmt.Errorf("--ranges: the workloads' keys can be cut into %d ranges at most", groups)
	}
	if c.valueSize < 0 || c.valueSize > 1<<20 || c.conns < 1 {
		return fmt.Errorf("--value-size must be 0 to 1 MiB, --conns at least 1")
	}
	if !slices.Contains([]string{"spread", "leader", "first"}, c.target) {
		return fmt.Errorf("--target: %q is none of spread, leader, first", c.target)
	}
	built := map[servers.Kind]string{}
	for i, kind := range []string{c.a, c.b} {
		s := side{Name: string(rune('a' + i)), Kind: servers.Kind(kind)}
		given := c.etcdPath
		switch s.Kind {
		case servers.Etcd:
			s.Flags = strings.Fields(c.etcdFlags)
		case servers.Braid:
			given = c.braidPath
			s.Flags = strings.Fields(c.braidFlags)
		case "none":
			if i == 1 {
				continue
			}
			fallthrough
		default:
			return fmt.Errorf("--%s: %q is neither braid nor etcd", s.Name, kind)
		}
		if built[s.Kind] == "" {
			if built[s.Kind], err = servers.Binary(ctx, s.Kind, given); err != nil {
				return err
			}
		}
		s.Binary = built[s.Kind]
		c.sides = append(c.sides, s)
	}
	return nil
}

// numbers reads a list of positive numbers.
func numbers(text string) ([]int, error) {
	var out []int
	for _, f := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a positive number", f)
		}
		out = append(out, n)
	}
	return out, nil
}

// start starts a fresh cluster of a side. The function that it returns stops the cluster and removes its data.
func (c *config) start(ctx context.Context, s side, nodes, ranges int) (*servers.Cluster, func(), error) {
	dirs, err := c.folders()
	if err != nil {
		return nil, nil, err
	}
	cl, err := servers.New(servers.Config{
		Kind: s.Kind, Binary: s.Binary, Nodes: nodes, Dir: dirs[0], DataDirs: dirs, SplitKeys: splitKeys(ranges),
		Flags: slices.Concat(c.serverFlags, s.Flags),
	})
	if err != nil {
		return nil, nil, err
	}
	stop := func() {
		if err := cl.Stop(c.stopLimit); err != nil {
			fmt.Fprintf(os.Stderr, "stopping %s: %v\n", s.Kind, err)
		}
		cl.Close()
		for _, d := range dirs {
			if c.keep {
				fmt.Fprintf(os.Stderr, "kept: %s\n", d)
			} else {
				_ = os.RemoveAll(d) // a folder of ours; what cannot be removed is only space
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.startLimit)
	defer cancel()
	if err := cl.Start(ctx); err != nil {
		stop()
		return nil, nil, fmt.Errorf("starting %s: %w", s.Kind, err)
	}
	return cl, stop, nil
}

// folders makes a fresh folder in each folder of --dir.
func (c *config) folders() ([]string, error) {
	var dirs []string
	for _, d := range strings.Split(c.dir, ",") { // an empty one is the system's temporary folder
		made, err := os.MkdirTemp(d, "braid-bench-")
		if err != nil {
			return nil, fmt.Errorf("making a data folder: %w", err)
		}
		dirs = append(dirs, made)
	}
	return dirs, nil
}
