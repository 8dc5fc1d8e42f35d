package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Config describes a cluster.
type Config struct {
	Kind   Kind
	Binary string // path of the program, as Binary returns it
	Nodes  int
	// Dir is the folder that holds the nodes' data folders and logs. The caller removes it.
	Dir string
	// DataDirs, if there are any, hold the data folders in place of Dir, node after node in turn: one disk for each. They
	// must be empty or new; the caller removes them too.
	DataDirs []string
	// SplitKeys cut the key space into ranges at the first start; etcd ignores them.
	SplitKeys []string
	// Flags are added to every node's command line.
	Flags []string
}

// Cluster is a set of nodes that form one store.
type Cluster struct {
	Config Config
	Nodes  []*Node
}

// New chooses ports and command lines; nothing runs yet.
func New(cfg Config) (*Cluster, error) {
	ports, err := freePorts(2 * cfg.Nodes)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Config: cfg}
	var initial []string
	for i := range cfg.Nodes {
		n := &Node{
			Name: fmt.Sprintf("n%d", i+1), Client: ports[2*i], Peer: ports[2*i+1],
			Data: filepath.Join(cfg.Dir, fmt.Sprintf("n%d.data", i+1)), Log: filepath.Join(cfg.Dir, fmt.Sprintf("n%d.log", i+1)),
			binary: cfg.Binary,
		}
		if len(cfg.DataDirs) > 0 {
			n.Data = filepath.Join(cfg.DataDirs[i%len(cfg.DataDirs)], n.Name+".data")
		}
		if err := os.MkdirAll(n.Data, 0o700); err != nil {
			return nil, fmt.Errorf("making the data folder of %s: %w", n.Name, err)
		}
		c.Nodes = append(c.Nodes, n)
		initial = append(initial, n.Name+"=http://"+n.Peer)
	}
	for _, n := range c.Nodes {
		n.args = []string{
			"--name", n.Name, "--data-dir", n.Data,
			"--listen-client-urls", "http://" + n.Client, "--advertise-client-urls", "http://" + n.Client,
			"--listen-peer-urls", "http://" + n.Peer, "--initial-advertise-peer-urls", "http://" + n.Peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", "new",
			"--initial-cluster-token", "servers",
		}
		if cfg.Kind == Braid && len(cfg.SplitKeys) > 0 {
			n.args = append(n.args, "--initial-split-keys", strings.Join(cfg.SplitKeys, ","))
		}
		n.args = append(n.args, cfg.Flags...)
	}
	return c, nil
}

// freePorts finds loopback addresses that nobody listens on. Another process may take one before it is used;
// the node's start then fails.
func freePorts(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// Start starts all nodes that do not run and waits until each serves clients.
func (c *Cluster) Start(ctx context.Context) error {
	for _, n := range c.Nodes {
		if n.Running() {
			continue
		}
		if err := n.Start(); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Endpoints lists the client addresses.
func (c *Cluster) Endpoints() []string {
	var out []string
	for _, n := range c.Nodes {
		out = append(out, n.Client)
	}
	return out
}

// Stop asks all nodes to end (SIGTERM), and kills those that still run after the limit, which it reports.
func (c *Cluster) Stop(limit time.Duration) error {
	var errs []error
	for _, n := range c.Nodes {
		if n.Running() {
			errs = append(errs, n.Resume(), n.Terminate())
		}
	}
	deadline := time.Now().Add(limit)
	for _, n := range c.Nodes {
		if n.Running() && !n.waitExit(time.Until(deadline)) {
			errs = append(errs, fmt.Errorf("%s did not end within %v and was killed", n.Name, limit), n.Kill())
		}
	}
	return errors.Join(errs...)
}

// Close kills every node that runs. The data folders stay.
func (c *Cluster) Close() {
	for _, n := range c.Nodes {
		if n.Running() {
			_ = n.Kill() // it can only fail if the process has just ended
		}
	}
}

// Usage is what the running nodes together use.
func (c *Cluster) Usage() (Usage, error) {
	var sum Usage
	for _, n := range c.Nodes {
		u, err := n.Usage()
		if err != nil {
			return sum, err
		}
		sum.CPU += u.CPU
		sum.RSS += u.RSS
		sum.PeakRSS += u.PeakRSS
		sum.Written += u.Written
	}
	return sum, nil
}

// ResetPeaks makes the nodes' peak memory start again from what they hold now.
func (c *Cluster) ResetPeaks() {
	for _, n := range c.Nodes {
		n.resetPeak()
	}
}

// DiskBytes is the disk space of all data folders.
func (c *Cluster) DiskBytes() (int64, error) {
	var sum int64
	for _, n := range c.Nodes {
		b, err := diskBytes(n.Data)
		if err != nil {
			return 0, err
		}
		sum += b
	}
	return sum, nil
}
