package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"github.com/braidkv/braid/sim/check"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// history is everything that the clients recorded, by time.
func (r *run) history() []check.Op {
	ops := slices.Clone(r.compacts)
	for _, c := range r.clients {
		ops = append(ops, c.ops...)
	}
	sort.SliceStable(ops, func(i, j int) bool { return ops[i].Invoke < ops[j].Invoke })
	return ops
}

// judge reads the final history and checks everything.
func (r *run) judge(ctx context.Context) (*check.Report, error) {
	err := r.final.finish(ctx)
	if err != nil && !errors.Is(err, errViolation) {
		return nil, err
	}
	first := r.final.nodes[0]
	if err != nil { // a store that lost its end still has a history to judge
		for _, h := range r.final.nodes {
			if h.rev > first.rev {
				first = h
			}
		}
	}
	report := check.Check(check.History{Base: r.base, Ops: r.history(), Events: first.events, Final: first.rev})
	var contents []check.Content
	for _, h := range r.final.nodes {
		contents = append(contents, check.Content{Node: h.name, Revision: h.rev, Events: h.events})
	}
	report.Faults = append(report.Faults, check.SameContent(contents)...)
	return report, err
}

func (r *run) print(report *check.Report) {
	var faults []string
	for name, n := range r.faults {
		faults = append(faults, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(faults)
	fmt.Printf("seed %d: %d writes and %d reads answered, %d refused, %d writes ambiguous of which %d happened, %d revisions, faults: %v\n",
		r.o.seed, report.Writes, report.Reads, report.Refused, report.Ambiguous, report.Happened, report.Revisions, faults)
	key, from, length := silence(r.history())
	fmt.Printf("longest time without an answered put of one key: %.1f s, of %s from %.1f s on\n", length, key, from)
}

// silence is the longest time between two answered puts of one key, in seconds, and when it began. It is no verdict: it
// shows how long faults are felt, and whether one range is felt longer than the others.
func silence(ops []check.Op) (key string, from, length float64) {
	ends := map[string][]int64{}
	for _, op := range ops {
		if p, ok := op.Request.(*pb.PutRequest); ok && op.Outcome == check.OK {
			ends[string(p.Key)] = append(ends[string(p.Key)], op.Return)
		}
	}
	for k, e := range ends {
		slices.Sort(e)
		for i := 1; i < len(e); i++ {
			if d := float64(e[i]-e[i-1]) / 1e9; d > length || d == length && k < key {
				key, from, length = k, float64(e[i-1])/1e9, d
			}
		}
	}
	return key, from, length
}

// writeHistory writes what was recorded into the run's folder, a line per request and per event.
func (r *run) writeHistory() error {
	f, err := os.Create(filepath.Join(r.dir, "history.txt"))
	if err != nil {
		return fmt.Errorf("writing the history: %w", err)
	}
	w := bufio.NewWriter(f)
	for i, op := range r.history() {
		fmt.Fprintf(w, "%d client %d node %s [%d, %d] %v %v: %v -> %v\n", i, op.Client, op.Node, op.Invoke, op.Return, op.Outcome, op.Refusal, op.Request, op.Response)
	}
	if r.final != nil {
		for _, h := range r.final.nodes {
			for _, e := range h.events {
				fmt.Fprintf(w, "%s %v\n", h.name, e)
			}
		}
	}
	if err := w.Flush(); err != nil {
		f.Close()
		return fmt.Errorf("writing the history: %w", err)
	}
	return f.Close()
}
