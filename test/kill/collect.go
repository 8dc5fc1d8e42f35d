package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/braidkv/braid/sim/check"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// collector reads the history of each node: the whole key set at every revision, many
// revisions to a request, serializable, so that it is that node's own copy. Two neighbouring contents
// differ by the events of one revision.
type collector struct {
	r     *run
	nodes []*nodeHistory
}

type nodeHistory struct {
	name   string
	events []check.Event
	rev    int64              // collected up to here
	state  []*mvccpb.KeyValue // the content at rev
}

func newCollector(r *run) *collector {
	c := &collector{r: r}
	for _, n := range r.cl.Nodes {
		c.nodes = append(c.nodes, &nodeHistory{name: n.Name, rev: r.base})
	}
	return c
}

// gather goes on reading from every node that answers, and returns up to where all have been read.
func (c *collector) gather(ctx context.Context) (int64, error) {
	for i, h := range c.nodes {
		k, err := dial(c.r.cl.Nodes[i].Client)
		if err != nil {
			return 0, err
		}
		err = c.gatherFrom(ctx, k, h)
		_ = k.Close() // nothing is in flight
		if errors.Is(err, errViolation) {
			return 0, err
		} // else it is down for now
	}
	least := c.nodes[0].rev
	for _, h := range c.nodes {
		least = min(least, h.rev)
	}
	return least, nil
}

// gatherFrom reads one node up to its present revision.
func (c *collector) gatherFrom(ctx context.Context, k *clientv3.Client, h *nodeHistory) error {
	kv := pb.NewKVClient(k.ActiveConnection())
	once, cancel := context.WithTimeout(ctx, c.r.o.requestLimit)
	defer cancel()
	resp, err := kv.Range(once, &pb.RangeRequest{Key: []byte(keyPrefix), Serializable: true, CountOnly: true})
	if err != nil {
		return err
	}
	for to := resp.Header.Revision; h.rev < to; {
		if err := c.batch(ctx, kv, h, min(h.rev+100, to)); err != nil {
			return err
		}
	}
	return nil
}

// batch reads the contents at the revisions after h.rev up to and including last.
func (c *collector) batch(ctx context.Context, kv pb.KVClient, h *nodeHistory, last int64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*c.r.o.requestLimit)
	defer cancel()
	t := &pb.TxnRequest{}
	for rev := h.rev + 1; rev <= last; rev++ {
		t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
			Key: []byte{0}, RangeEnd: []byte{0}, Revision: rev, Serializable: true,
		}}})
	}
	resp, err := kv.Txn(ctx, t)
	if err != nil {
		return fmt.Errorf("reading revisions %d to %d of %s: %w", h.rev+1, last, h.name, err)
	}
	if len(resp.Responses) != len(t.Success) {
		return fmt.Errorf("%w: %d answers to %d reads in a transaction", errViolation, len(resp.Responses), len(t.Success))
	}
	for _, r := range resp.Responses {
		state := r.GetResponseRange().GetKvs()
		events, err := check.Diff(h.state, state, h.rev+1)
		if err != nil {
			return fmt.Errorf("%w: content of %s: %w", errViolation, h.name, err)
		}
		h.events = append(h.events, events...)
		h.rev, h.state = h.rev+1, state
	}
	return nil
}

// finish reads the rest from all nodes, once all have reached one revision.
func (c *collector) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*c.r.o.liveLimit)
	defer cancel()
	began := time.Now()
	for {
		least, err := c.gather(ctx)
		if err != nil {
			return err
		}
		most := least
		for _, h := range c.nodes {
			most = max(most, h.rev)
		}
		if least == most && most >= c.r.newest.Load() {
			fmt.Printf("%d revisions read from each of %d nodes in %v\n", most-c.r.base, len(c.nodes), time.Since(began).Round(time.Millisecond))
			return nil
		}
		if time.Since(began) > 10*c.r.o.liveLimit || ctx.Err() != nil {
			return fmt.Errorf("%w: the nodes do not reach one revision: %s", errViolation, c.positions())
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func (c *collector) positions() string {
	s := fmt.Sprintf("newest answered %d", c.r.newest.Load())
	for _, h := range c.nodes {
		s += fmt.Sprintf(", %s at %d", h.name, h.rev)
	}
	return s
}
