package node

import (
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
	ranges "github.com/braidkv/braid/range"
)

// When the data engine is flushed: its log-less batches are what a restart applies again, and the Raft logs can only be truncated
// below what is flushed.
const (
	flushTicks    = 150      // by age
	flushLogBytes = 64 << 20 // by the size of the Raft logs since the last flush
)

// flusher flushes the data engine by age and by the size of the Raft logs, and tells the machines what is durable then.
type flusher struct {
	c       *Core
	every   int // ticks
	running atomic.Bool
	ticks   int    // since the last flush; the ticker's
	log     int64  // size of the Raft logs after the last flush; the ticker's
	batches uint64 // order position at the last flush: nothing to do while it stands
	cut     ids.Revision
}

// tick is called by the one who ticks.
func (f *flusher) tick() {
	f.ticks++
	bytes := f.c.log.TotalBytes()
	if f.ticks < f.every && bytes-f.log < flushLogBytes {
		return
	}
	if f.running.Load() {
		return
	}
	at := uint64(f.c.order.View().Position)
	if at == f.batches {
		f.ticks = 0
		return
	}
	f.running.Store(true)
	f.ticks, f.log, f.batches = 0, bytes, at
	f.c.background.post(f.flush)
}

// flush reads the marks, flushes, and hands the marks back.
func (f *flusher) flush() {
	defer f.running.Store(false)
	locals := f.c.locals()
	marks := make([]ranges.FlushMark, len(locals))
	told := order.Flushed{Order: f.c.order.View().Position}
	for i, l := range locals {
		marks[i] = l.replica.FlushMark()
		told.Ranges = append(told.Ranges, order.RangeFlushed{Range: l.id, Position: marks[i].Frontier})
	}
	if err := f.c.engines.FlushData(); err != nil {
		f.c.fatal(err)
		return
	}
	for i, l := range locals {
		f.c.store.Enqueue(ids.GroupOf(l.id), ranges.Flushed{Mark: marks[i]})
	}
	f.c.store.Enqueue(ids.OrderGroup, told)
	if err := f.cutEvents(marks); err != nil {
		f.c.fatal(err)
	}
}

// cutEvents removes the events below what all local replicas have durably compacted.
func (f *flusher) cutEvents(marks []ranges.FlushMark) error {
	if len(marks) == 0 {
		return nil
	}
	rev := marks[0].Compacted
	for _, m := range marks {
		rev = min(rev, m.Compacted)
	}
	if rev <= f.cut {
		return nil
	}
	b := f.c.engines.Data.NewBatch()
	defer b.Close()
	if err := mvcc.CutEvents(b, rev); err != nil {
		return err
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("cutting events below %d: %w", rev, err)
	}
	f.cut = rev
	return nil
}
