package raftlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
)

// Options are the limits of a Log.
type Options struct {
	// CacheBytes bounds the entries kept in memory by all groups together (default 64 MiB), shared
	// out evenly; a group always keeps minCachePerGroup and what is not yet durable.
	CacheBytes int64
	// NoSync writes without waiting for the disk: a crash of the machine may lose acknowledged data.
	NoSync bool
}

const (
	defaultCacheBytes = 64 << 20
	minCachePerGroup  = 256 << 10
	maxCachePerGroup  = 16 << 20
)

// Log writes the logs of all groups of a node. See the package comment. Its methods may be called from
// any goroutine, but only one of Pump and Run may be in use.
type Log struct {
	db      *pebble.DB
	onFatal func(error)
	opts    Options

	bytes         atomic.Int64
	cachePerGroup atomic.Int64
	counters      counters

	mu      sync.Mutex
	groups  map[ids.GroupID]*GroupLog
	queue   []job       // submitted; bounded by what Raft lets be in flight per group
	lazy    []*GroupLog // groups with something lazy
	flush   bool        // lazy state wants to be written without waiting for a job
	writing bool        // somebody is in Write
	flight  []*flight   // handed to the engine, oldest first
	spare   []*flight   // for reuse, at most maxSpare
	err     error       // first fatal error (L3)

	failed atomic.Bool   // err is set
	wake   chan struct{} // for Run
}

const maxSpare = 8

type job struct {
	g       *GroupLog
	hs      HardState
	setHS   bool
	entries []*raftpb.Entry
	// entries [cutFrom, cutTo] go away (L2)
	cutFrom, cutTo uint64
	reset          *Reset
	remove         bool
	sync           bool
	done           Done
}

// lazyWrite is a copy of a group's lazyState.
type lazyWrite struct {
	g *GroupLog
	lazyState
}

// flight is a batch on its way to the disk.
type flight struct {
	batch *pebble.Batch
	jobs  []job
	lazy  []lazyWrite
	sync  bool
	start time.Time
}

// Open makes a Log on an open engine, which stays the caller's. onFatal is called at most once, when a write or read has failed;
// the node must stop then.
func Open(db *pebble.DB, onFatal func(error), opts Options) (*Log, error) {
	if opts.CacheBytes == 0 {
		opts.CacheBytes = defaultCacheBytes
	}
	if opts.CacheBytes < 0 {
		return nil, errors.New("raftlog: CacheBytes is negative")
	}
	l := &Log{db: db, onFatal: onFatal, opts: opts, groups: map[ids.GroupID]*GroupLog{}, wake: make(chan struct{}, 1)}
	l.shareCache()
	return l, nil
}

func (l *Log) shareCache() {
	share := l.opts.CacheBytes / int64(max(1, len(l.groups)))
	l.cachePerGroup.Store(min(max(share, minCachePerGroup), maxCachePerGroup))
}

// Group returns the log of a group, reading it from the engine at the first call.
func (l *Log) Group(id ids.GroupID) (*GroupLog, error) {
	l.mu.Lock()
	g := l.groups[id]
	l.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g = &GroupLog{l: l, id: id}
	if err := g.load(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.groups[id]; other != nil {
		l.bytes.Add(-g.bytes.Load())
		return other, nil
	}
	l.groups[id] = g
	l.shareCache()
	return g, nil
}

// Bytes is the size of a group's log, zero if the group has not been asked for.
func (l *Log) Bytes(id ids.GroupID) int64 {
	l.mu.Lock()
	g := l.groups[id]
	l.mu.Unlock()
	if g == nil {
		return 0
	}
	return g.Bytes()
}

// TotalBytes is the size of the logs of all groups asked for.
func (l *Log) TotalBytes() int64 { return l.bytes.Load() }

// Err is the fatal error, if there was one.
func (l *Log) Err() error {
	if !l.failed.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *Log) submit(j job) {
	l.mu.Lock()
	l.queue = append(l.queue, j)
	l.mu.Unlock()
}

func (l *Log) markLazyLocked(g *GroupLog) {
	if !g.lazy.queued {
		g.lazy.queued = true
		l.lazy = append(l.lazy, g)
	}
}

func (l *Log) setLazyHardState(g *GroupLog, hs HardState) {
	l.mu.Lock()
	l.markLazyLocked(g)
	g.lazy.hs, g.lazy.setHS = hs, true
	l.mu.Unlock()
}

func (l *Log) setLazyTruncation(g *GroupLog, from, through, term uint64) {
	l.mu.Lock()
	l.markLazyLocked(g)
	if !g.lazy.setTrunc {
		g.lazy.truncFrom, g.lazy.setTrunc = from, true
	}
	g.lazy.truncIndex, g.lazy.truncTerm = through, term
	l.mu.Unlock()
}

// FlushLazy lets commit indexes and truncations be written (not synced) even if no append comes.
// A tick is a good time.
func (l *Log) FlushLazy() {
	l.mu.Lock()
	wake := len(l.lazy) > 0 && !l.flush
	l.flush = l.flush || wake
	l.mu.Unlock()
	if wake {
		l.signal()
	}
}

func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Write hands everything submitted to the engine as one batch, without waiting for the disk. If somebody else is at
// it, that one writes these jobs too. It reports whether it wrote.
func (l *Log) Write() bool {
	l.mu.Lock()
	if l.writing || !l.workLocked() {
		l.mu.Unlock()
		return false
	}
	l.writing = true
	for l.workLocked() {
		f := l.takeLocked()
		l.mu.Unlock()
		err := l.apply(f)
		l.mu.Lock()
		if err != nil {
			l.writing = false
			l.mu.Unlock()
			l.fail(err)
			return true
		}
		l.flight = append(l.flight, f)
	}
	l.writing = false
	l.mu.Unlock()
	l.signal()
	return true
}

func (l *Log) workLocked() bool { return l.err == nil && (len(l.queue) > 0 || l.flush) }

// takeLocked moves what waits into a flight. What is lazy is older than any job of its group that
// waits with it, so it is written first.
func (l *Log) takeLocked() *flight {
	var f *flight
	if n := len(l.spare); n > 0 {
		f, l.spare = l.spare[n-1], l.spare[:n-1]
	} else {
		f = &flight{}
	}
	f.jobs, l.queue = l.queue, f.jobs[:0]
	f.lazy = f.lazy[:0]
	for i, g := range l.lazy {
		f.lazy = append(f.lazy, lazyWrite{g, g.lazy})
		g.lazy = lazyState{}
		l.lazy[i] = nil
	}
	l.lazy, l.flush = l.lazy[:0], false
	return f
}

func (l *Log) apply(f *flight) error {
	f.batch, f.sync, f.start = l.db.NewBatch(), false, time.Now()
	for i := range f.lazy {
		if err := l.encodeLazy(f.batch, &f.lazy[i]); err != nil {
			return err
		}
	}
	for i := range f.jobs {
		if err := l.encode(f.batch, &f.jobs[i]); err != nil {
			return err
		}
		f.sync = f.sync || f.jobs[i].sync
	}
	f.sync = f.sync && !l.opts.NoSync
	l.counters.Batches.Add(1)
	l.counters.Jobs.Add(uint64(len(f.jobs)))
	l.counters.BytesWritten.Add(uint64(f.batch.Len()))
	var err error
	switch {
	case f.batch.Empty():
		f.sync = false
	case f.sync:
		err = l.db.ApplyNoSyncWait(f.batch, pebble.Sync)
	default:
		err = l.db.Apply(f.batch, pebble.NoSync)
	}
	if err != nil {
		return fmt.Errorf("raftlog: writing a batch of %d appends: %w", len(f.jobs), err)
	}
	return nil
}

// settle waits for the oldest flight and completes its jobs. It reports whether there was one.
func (l *Log) settle() (bool, error) {
	l.mu.Lock()
	if l.err != nil || len(l.flight) == 0 {
		err := l.err
		l.mu.Unlock()
		return false, err
	}
	f := l.flight[0]
	l.mu.Unlock()

	if f.sync {
		if err := f.batch.SyncWait(); err != nil {
			err = fmt.Errorf("raftlog: syncing a batch of %d appends: %w", len(f.jobs), err)
			l.fail(err)
			return false, l.Err()
		}
		l.counters.sync(time.Since(f.start))
	}
	if err := l.Err(); err != nil {
		return false, err // L3: a read has failed meanwhile
	}
	if err := f.batch.Close(); err != nil {
		l.fail(fmt.Errorf("raftlog: closing a batch: %w", err))
		return false, l.Err()
	}
	l.mu.Lock()
	for i := range f.jobs {
		if f.jobs[i].remove {
			delete(l.groups, f.jobs[i].g.id)
			l.shareCache()
		}
	}
	n := copy(l.flight, l.flight[1:])
	l.flight[n] = nil
	l.flight = l.flight[:n]
	l.mu.Unlock()
	for i := range f.jobs {
		if d := f.jobs[i].done; d != nil {
			d.Durable()
		}
	}
	clear(f.jobs)
	clear(f.lazy)
	f.batch = nil
	l.mu.Lock()
	if len(l.spare) < maxSpare {
		l.spare = append(l.spare, f)
	}
	l.mu.Unlock()
	return true, nil
}

// Pump writes everything submitted in one batch, waits until it is durable and completes the jobs. After an error nothing is completed
// any more.
func (l *Log) Pump() (worked bool, err error) {
	worked = l.Write()
	for {
		more, err := l.settle()
		if err != nil {
			return worked, err
		}
		if !more {
			return worked, nil
		}
		worked = true
	}
}

// Run is Pump in a loop until ctx ends; then it finishes what is submitted and returns. It returns early with the fatal error.
// Others may call Write meanwhile, which saves this goroutine a wake-up before the disk can start.
func (l *Log) Run(ctx context.Context) error {
	for {
		worked, err := l.Pump()
		if err != nil {
			return err
		}
		if worked {
			continue
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			_, err := l.Pump()
			return err
		}
	}
}

// applyNow writes one batch and waits for the disk.
func (l *Log) applyNow(b *pebble.Batch) error {
	err := l.Err()
	switch {
	case err != nil:
	case l.opts.NoSync:
		err = l.db.Apply(b, pebble.NoSync)
	default:
		if err = l.db.ApplyNoSyncWait(b, pebble.Sync); err == nil {
			err = b.SyncWait()
		}
	}
	if err != nil {
		err = fmt.Errorf("raftlog: writing: %w", err)
		l.fail(err)
		return err
	}
	return b.Close()
}

// fail notes the first fatal error (L3).
func (l *Log) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
		l.failed.Store(true)
	}
	l.mu.Unlock()
	l.signal()
	if first && l.onFatal != nil {
		l.onFatal(err)
	}
}

func (l *Log) encodeLazy(b *pebble.Batch, w *lazyWrite) error {
	g := w.g.id
	if w.setTrunc {
		if err := b.DeleteRange(appendEntryKey(nil, g, w.truncFrom), appendEntryKey(nil, g, w.truncIndex+1), nil); err != nil {
			return fmt.Errorf("raftlog: truncating group %d: %w", g, err)
		}
		if err := b.Set(appendGroupKey(nil, g, kindTruncated), appendNumbers(nil, w.truncIndex, w.truncTerm), nil); err != nil {
			return fmt.Errorf("raftlog: truncating group %d: %w", g, err)
		}
	}
	if w.setHS {
		return putHardState(b, g, w.hs)
	}
	return nil
}

// encode puts a job's writes into a batch (L2: all of them or none).
func (l *Log) encode(b *pebble.Batch, j *job) error {
	g := j.g.id
	if j.remove {
		if err := b.DeleteRange(appendGroupKey(nil, g, 0), appendGroupKey(nil, g, kindEnd), nil); err != nil {
			return fmt.Errorf("raftlog: removing group %d: %w", g, err)
		}
		return nil
	}
	if r := j.reset; r != nil {
		if err := encodeReset(b, g, r); err != nil {
			return fmt.Errorf("raftlog: resetting group %d to entry %d: %w", g, r.Index, err)
		}
	}
	if j.setHS {
		if err := putHardState(b, g, j.hs); err != nil {
			return err
		}
	}
	if len(j.entries) == 0 {
		return nil
	}
	if j.cutFrom <= j.cutTo {
		if err := b.DeleteRange(appendEntryKey(nil, g, j.cutFrom), appendEntryKey(nil, g, j.cutTo+1), nil); err != nil {
			return fmt.Errorf("raftlog: cutting group %d from entry %d: %w", g, j.cutFrom, err)
		}
	}
	for _, e := range j.entries {
		term, data := e.GetTerm(), e.GetData()
		n := entryHeaderLen(term)
		op := b.SetDeferred(entryKeyLen, n+len(data))
		putEntryKey(op.Key, g, e.GetIndex())
		putEntryHeader(op.Value, e.GetType(), term)
		copy(op.Value[n:], data)
		if err := op.Finish(); err != nil {
			return fmt.Errorf("raftlog: group %d, writing entry %d: %w", g, e.GetIndex(), err)
		}
	}
	l.counters.EntriesWritten.Add(uint64(len(j.entries)))
	return nil
}

func encodeReset(b *pebble.Batch, g ids.GroupID, r *Reset) error {
	if err := b.DeleteRange(appendGroupKey(nil, g, kindEntry), appendGroupKey(nil, g, kindEntry+1), nil); err != nil {
		return err
	}
	if err := b.Set(appendGroupKey(nil, g, kindTruncated), appendNumbers(nil, r.Index, r.Term), nil); err != nil {
		return err
	}
	return b.Set(appendGroupKey(nil, g, kindConf), appendConf(nil, r.Index, r.Conf), nil)
}

func putHardState(b *pebble.Batch, g ids.GroupID, hs HardState) error {
	op := b.SetDeferred(groupKeyLen, 1+uvarintLen(hs.Term)+uvarintLen(hs.Vote)+uvarintLen(hs.Commit))
	appendGroupKey(op.Key[:0], g, kindHardState)
	v := append(op.Value[:0], valueVersion)
	v = binary.AppendUvarint(v, hs.Term)
	v = binary.AppendUvarint(v, hs.Vote)
	binary.AppendUvarint(v, hs.Commit)
	if err := op.Finish(); err != nil {
		return fmt.Errorf("raftlog: hard state of group %d: %w", g, err)
	}
	return nil
}
