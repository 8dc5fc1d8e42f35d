package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/braidkv/braid/sim/check"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// client is one closed loop of requests to one node. Its goroutine alone touches it, but for the counters.
type client struct {
	r    *run
	id   int
	node int
	conn *grpc.ClientConn
	kv   pb.KVClient
	rand *rand.Rand
	n    int
	seen map[string]int64 // last mod revision that this client saw of a key
	ops  []check.Op

	answered, open atomic.Int64
}

// work sends requests until ctx ends. A request that is then under way is waited for.
func (c *client) work(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		if !waitReady(ctx, c.conn) {
			return
		}
		outcome := c.send(ctx, c.next())
		wait := time.Duration(0)
		if c.r.o.rate > 0 {
			mean := float64(len(c.r.clients)) / c.r.o.rate * float64(time.Second)
			wait = time.Duration(mean*(0.5+c.rand.Float64())) - time.Since(began)
		}
		if outcome == check.Ambiguous {
			wait = max(wait, 20*time.Millisecond)
		}
		pause(ctx, wait)
	}
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// send sends one request and records it.
func (c *client) send(ctx context.Context, req any) check.Outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.r.o.requestLimit)
	defer cancel()
	life := c.r.life[c.node].Load()
	op := check.Op{Client: c.id, Request: req, Invoke: c.r.now()}
	resp, err := c.call(ctx, req)
	op.Return = c.r.now()
	op.Outcome, op.Refusal = check.Classify(err)
	switch op.Outcome {
	case check.OK:
		op.Response = resp
		c.answered.Add(1)
		c.learn(resp)
		if c.r.life[c.node].Load() == life {
			op.Node = fmt.Sprintf("%s.%d", c.r.cl.Nodes[c.node].Name, life)
		}
	case check.Ambiguous:
		c.open.Add(1)
	}
	c.ops = append(c.ops, op)
	return op.Outcome
}

// call returns a nil answer as nil, not as a typed nil.
func (c *client) call(ctx context.Context, req any) (any, error) {
	switch r := req.(type) {
	case *pb.PutRequest:
		return c.kv.Put(ctx, r)
	case *pb.DeleteRangeRequest:
		return c.kv.DeleteRange(ctx, r)
	case *pb.RangeRequest:
		return c.kv.Range(ctx, r)
	case *pb.TxnRequest:
		return c.kv.Txn(ctx, r)
	case *pb.CompactionRequest:
		return c.kv.Compact(ctx, r)
	}
	return nil, fmt.Errorf("a request of type %T", req)
}

// learn remembers the revisions that an answer shows.
func (c *client) learn(resp any) {
	if h, ok := resp.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		for rev := h.GetHeader().GetRevision(); ; {
			old := c.r.newest.Load()
			if rev <= old || c.r.newest.CompareAndSwap(old, rev) {
				break
			}
		}
	}
	switch r := resp.(type) {
	case *pb.RangeResponse:
		for _, kv := range r.GetKvs() {
			c.seen[string(kv.Key)] = kv.ModRevision
		}
	case *pb.TxnResponse:
		for _, op := range r.Responses {
			if in := op.GetResponseRange(); in != nil {
				c.learn(in)
			}
		}
	}
}
