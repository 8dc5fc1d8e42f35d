package node

import (
	"context"
	"fmt"
	"time"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
)

// Version is the version of etcd whose API the node serves.
const Version = "3.7.3"

// requestTimeout is etcd's: 5 s and two election time-outs.
func requestTimeout(c *Config) time.Duration { return 5*time.Second + 2*c.ElectionTimeout }

// requestTicks is the same in ticks.
func requestTicks(c *Config) int {
	if c.HeartbeatInterval == 0 {
		return defaultRequestTicks
	}
	return int(requestTimeout(c) / c.HeartbeatInterval)
}

// progressTicks is the time between periodic progress responses of watches, in ticks.
func progressTicks(c *Config) int {
	if c.HeartbeatInterval == 0 || c.WatchProgressNotifyInterval == 0 {
		return 0
	}
	return max(1, int(c.WatchProgressNotifyInterval/c.HeartbeatInterval))
}

// backend is the node as the router sees it.
type backend struct{ c *Core }

func (b backend) NodeID() ids.NodeID  { return b.c.cfg.Self }
func (b backend) View() *order.View   { return b.c.order.View() }
func (b backend) Reader() mvcc.Reader { return b.c.engines.Data }

func (b backend) CaughtUp(fn func()) {
	if b.c.order.View().Position >= b.c.caughtUp {
		fn()
		return
	}
	b.c.order.WaitApplied(b.c.caughtUp, func(ids.Position, ids.Revision) { fn() })
}

func (b backend) ReadIndex(done func(ids.Position, error)) {
	b.c.store.Enqueue(ids.OrderGroup, order.Read{Done: done})
}

func (b backend) WaitApplied(p ids.Position, fn func(ids.Position, ids.Revision)) {
	b.c.order.WaitApplied(p, fn)
}

func (b backend) RevisionAt(p ids.Position) (ids.Revision, bool) { return b.c.order.RevisionAt(p) }

func (b backend) Frontier(r ids.RangeID) *ranges.Frontier {
	if l := b.c.local(r); l != nil {
		return l.replica.Frontier()
	}
	return nil
}

func (b backend) Submit(r ids.RangeID, req *ranges.Request) { b.c.submitter.submit(r, req) }

func (b backend) Propose(cmd *braidpb.OrderCommand, ticks int, done func(order.Result)) {
	b.c.Propose(cmd, ticks, done)
}

// Propose has a command put into the order log.
func (c *Core) Propose(cmd *braidpb.OrderCommand, ticks int, done func(order.Result)) {
	c.store.Enqueue(ids.OrderGroup, order.Propose{Cmd: cmd, TimeoutTicks: ticks, Done: done})
}

func (b backend) NewTxnID() ids.TxnID {
	return ids.TxnID{Node: b.c.cfg.Self, Incarnation: b.c.cfg.Incarnation, Counter: b.c.txns.Add(1)}
}

// compactWaiter waits for a compaction to be carried out here.
type compactWaiter struct {
	rev ids.Revision
	fn  func()
}

func (b backend) Compacted(rev ids.Revision, fn func()) {
	b.c.compactMu.Lock()
	b.c.waiting = append(b.c.waiting, compactWaiter{rev, fn})
	b.c.compactMu.Unlock()
	b.c.checkCompacted()
}

// compactedThrough is the revision through which all local replicas are compacted.
func (c *Core) compactedThrough() ids.Revision {
	rev := c.order.View().CompactRevision
	for _, l := range c.locals() {
		rev = min(rev, l.replica.FlushMark().Compacted)
	}
	return rev
}

// checkCompacted answers those whose compaction is done.
func (c *Core) checkCompacted() {
	c.compactMu.Lock()
	if len(c.waiting) == 0 {
		c.compactMu.Unlock()
		return
	}
	done := c.compactedThrough()
	var run []func()
	kept := c.waiting[:0]
	for _, w := range c.waiting {
		if w.rev <= done {
			run = append(run, w.fn)
		} else {
			kept = append(kept, w)
		}
	}
	clear(c.waiting[len(kept):])
	c.waiting = kept
	c.compactMu.Unlock()
	for _, fn := range run {
		fn()
	}
}

func (b backend) DBSize() (total, inUse int64) {
	log, data := b.c.engines.DiskUsage()
	return log + data, data
}

func (b backend) RaftIndex() (last, applied ids.Position) {
	v := b.c.order.View()
	return v.Position, v.Position
}

func (b backend) Defragment(ctx context.Context) error {
	if err := b.c.engines.Data.Compact(ctx, []byte{0}, []byte{0xff}, false); err != nil {
		return fmt.Errorf("compacting the data engine: %w", err)
	}
	return nil
}
