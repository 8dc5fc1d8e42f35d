package raftlog

import (
	"sync/atomic"
	"time"
)

// Counters are totals since the log was opened.
type Counters struct {
	Batches, Syncs, Jobs, EntriesWritten, EntriesRead, BytesWritten uint64
	SyncTime, MaxSyncTime                                           time.Duration // from handing a batch to the engine until it is durable
}

type counters struct {
	Batches, Syncs, Jobs, EntriesWritten, EntriesRead, BytesWritten atomic.Uint64
	syncNanos, maxSyncNanos                                         atomic.Int64
}

func (c *counters) sync(d time.Duration) {
	c.Syncs.Add(1)
	c.syncNanos.Add(int64(d))
	for {
		old := c.maxSyncNanos.Load()
		if int64(d) <= old || c.maxSyncNanos.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// Counters returns the totals.
func (l *Log) Counters() Counters {
	c := &l.counters
	return Counters{
		Batches: c.Batches.Load(), Syncs: c.Syncs.Load(), Jobs: c.Jobs.Load(),
		EntriesWritten: c.EntriesWritten.Load(), EntriesRead: c.EntriesRead.Load(), BytesWritten: c.BytesWritten.Load(),
		SyncTime: time.Duration(c.syncNanos.Load()), MaxSyncTime: time.Duration(c.maxSyncNanos.Load()),
	}
}
