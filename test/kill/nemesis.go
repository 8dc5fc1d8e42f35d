package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// fault injects one fault and heals it before it returns.
type fault struct {
	name string
	what string
	do   func(n *nemesis, ctx context.Context) error
}

var allFaults = []fault{
	{"kill", "kill -9 of one node", (*nemesis).kill},
	{"pause", "SIGSTOP of the leader for longer than an election", (*nemesis).pauseLeader},
	{"all", "kill -9 of all nodes at once", (*nemesis).all},
	{"term", "SIGTERM of one node", (*nemesis).term},
	{"flap", "kill -9 of one node again and again", (*nemesis).flap},
	{"rollback", "kill -9 of all nodes and their data put back: a fault no store survives, to test the test", (*nemesis).rollback},
}

func faultNames() []string {
	var out []string
	for _, f := range allFaults {
		out = append(out, f.name)
	}
	return out
}

// nemesis injects one fault at a time. It alone starts and ends processes.
type nemesis struct {
	r     *run
	rand  *rand.Rand
	saved string // copy of all data, for rollback
	// victim is the node that the last fault hit.
	victim string
}

// work injects faults until ctx ends; the last one is healed.
func (n *nemesis) work(ctx context.Context) error {
	var choice []fault
	for _, f := range allFaults {
		for _, name := range n.r.o.faults {
			if f.name == name {
				choice = append(choice, f)
			}
		}
	}
	for {
		next := time.Now().Add(n.between(n.r.o.every/2, n.r.o.every*3/2))
		pause(ctx, time.Until(next))
		if ctx.Err() != nil {
			return nil
		}
		if len(choice) == 0 {
			continue
		}
		f := choice[n.rand.IntN(len(choice))]
		n.r.faults[f.name]++
		began := n.r.seconds()
		// A fault is healed even if the time is over meanwhile.
		if err := f.do(n, context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("%s: %w", f.what, err)
		}
		fmt.Printf("%5.1fs to %5.1fs: %s (%s)\n", began, n.r.seconds(), f.what, n.victim)
	}
}

func (n *nemesis) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(n.rand.Int64N(int64(hi-lo)+1))
}

// start starts a node and waits until it is ready.
func (r *run) start(ctx context.Context, node int) error {
	r.life[node].Add(1)
	if err := r.cl.Nodes[node].Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.liveLimit)
	defer cancel()
	if err := r.cl.Nodes[node].WaitReady(ctx); err != nil {
		return fmt.Errorf("%w: after a kill: %w", errViolation, err)
	}
	return nil
}

func (r *run) kill(node int) error {
	r.life[node].Add(1)
	return r.cl.Nodes[node].Kill()
}

// draw draws a node to hit.
func (n *nemesis) draw() int {
	return n.hit(n.rand.IntN(len(n.r.cl.Nodes)))
}

func (n *nemesis) hit(node int) int {
	n.victim = n.r.cl.Nodes[node].Name
	return node
}

func (n *nemesis) kill(ctx context.Context) error {
	node := n.draw()
	if err := n.r.kill(node); err != nil {
		return err
	}
	pause(ctx, n.between(0, 3*time.Second))
	return n.r.start(ctx, node)
}

func (n *nemesis) flap(ctx context.Context) error {
	node := n.draw()
	for range 3 {
		if err := n.r.kill(node); err != nil {
			return err
		}
		n.r.life[node].Add(1)
		if err := n.r.cl.Nodes[node].Start(); err != nil {
			return err
		}
		pause(ctx, n.between(0, 700*time.Millisecond)) // it may or may not have come up by then
	}
	if err := n.r.kill(node); err != nil {
		return err
	}
	return n.r.start(ctx, node)
}

func (n *nemesis) term(ctx context.Context) error {
	node := n.draw()
	n.r.life[node].Add(1)
	if err := n.r.cl.Nodes[node].Terminate(); err != nil {
		return err
	}
	for i := 0; n.r.cl.Nodes[node].Running(); i++ {
		if i == 100 {
			return fmt.Errorf("%w: %s runs 10 s after SIGTERM", errViolation, n.r.cl.Nodes[node].Name)
		}
		pause(ctx, 100*time.Millisecond)
	}
	return n.r.start(ctx, node)
}

func (n *nemesis) pauseLeader(ctx context.Context) error {
	node := n.hit(n.leader(ctx))
	if err := n.r.cl.Nodes[node].Pause(); err != nil {
		return err
	}
	pause(ctx, n.between(time.Second, 6*time.Second))
	return n.r.cl.Nodes[node].Resume()
}

// leader asks the nodes who leads; a node drawn at random if none says so.
func (n *nemesis) leader(ctx context.Context) int {
	for i, k := range n.r.conns[:len(n.r.cl.Nodes)] { // client i speaks to node i
		once, cancel := context.WithTimeout(ctx, time.Second)
		st, err := k.Status(once, n.r.cl.Nodes[i].Client)
		cancel()
		if err == nil && st.Leader == st.Header.MemberId {
			return i
		}
	}
	return n.rand.IntN(len(n.r.cl.Nodes))
}

func (n *nemesis) all(ctx context.Context) error {
	n.victim = "all"
	return n.r.killAll(ctx, nil)
}

// killAll ends all nodes at once and starts them again; between may touch their data.
func (r *run) killAll(ctx context.Context, between func() error) error {
	for node := range r.cl.Nodes {
		if err := r.kill(node); err != nil {
			return err
		}
	}
	if between != nil {
		if err := between(); err != nil {
			return err
		}
	}
	for node, n := range r.cl.Nodes {
		r.life[node].Add(1)
		if err := n.Start(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.liveLimit)
	defer cancel()
	for _, n := range r.cl.Nodes {
		if err := n.WaitReady(ctx); err != nil {
			return fmt.Errorf("%w: after all nodes were killed: %w", errViolation, err)
		}
	}
	return nil
}

// rollback saves all data the first time and puts it back the next.
func (n *nemesis) rollback(ctx context.Context) error {
	n.victim = "all"
	return n.r.killAll(ctx, func() error {
		put := n.saved != ""
		if !put {
			n.saved = filepath.Join(n.r.dir, "saved")
		}
		for _, node := range n.r.cl.Nodes {
			from, to := node.Data, filepath.Join(n.saved, node.Name)
			if put {
				from, to = to, from
			}
			if err := os.RemoveAll(to); err != nil {
				return err
			}
			if err := os.CopyFS(to, os.DirFS(from)); err != nil {
				return err
			}
		}
		return nil
	})
}
