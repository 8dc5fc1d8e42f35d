package raftlog

import (
	"fmt"
	"math"
	"sync/atomic"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
)

// HardState is what Raft must not forget, besides the entries.
type HardState struct{ Term, Vote, Commit uint64 }

// GroupLog is the log of one group. It answers raft.Storage's questions except Snapshot, which is the group's business. Its methods
// belong to one goroutine at a time (the group's worker), except Bytes.
type GroupLog struct {
	l  *Log
	id ids.GroupID

	hs        HardState
	conf      *raftpb.ConfState
	confIndex uint64

	// The log holds entries (truncated, last]; the term of truncated is known too. Invariant: terms[0].index <= truncated <= last.
	truncated, last uint64
	terms           termRuns
	sizes           []uint32 // of the entries, len = last-truncated
	bytes           atomic.Int64
	cache           entryCache

	// For each job not yet acknowledged by Durable, oldest first: the lowest index it writes.
	outstanding []uint64

	lazy lazyState // guarded by l.mu
}

// lazyState is what waits to ride with the next batch.
type lazyState struct {
	queued bool
	hs     HardState
	setHS  bool

	truncFrom, truncIndex, truncTerm uint64 // remove entries [truncFrom, truncIndex]
	setTrunc                         bool
}

// Done is told, on the goroutine that completes jobs, that an append is durable. It must
// not block.
type Done interface{ Durable() }

// Append is what Raft wants written at once.
type Append struct {
	HardState *HardState      // nil: as it was
	Entries   []*raftpb.Entry // ascending; they replace what is at and above the first one's index
	Reset     *Reset          // start the log anew, before the entries
	MustSync  bool            // entries, a vote or a term are among it; implied by Entries and Reset
	Done      Done            // may be nil
}

// Reset says that everything up to Index is in the machine's state and the log shall start behind it.
type Reset struct {
	Index, Term uint64
	Conf        *raftpb.ConfState
}

// ID is the group's.
func (g *GroupLog) ID() ids.GroupID { return g.id }

// InitialState is part of raft.Storage.
func (g *GroupLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	hs := &raftpb.HardState{Term: new(g.hs.Term), Vote: new(g.hs.Vote), Commit: new(g.hs.Commit)}
	return hs, raftpb.EnsureConfState(g.conf), nil
}

// HardState is the newest one, durable or not.
func (g *GroupLog) HardState() HardState { return g.hs }

// Conf is the newest configuration and the index it is in force from.
func (g *GroupLog) Conf() (*raftpb.ConfState, uint64) { return g.conf, g.confIndex }

// FirstIndex is part of raft.Storage.
func (g *GroupLog) FirstIndex() (uint64, error) { return g.truncated + 1, nil }

// LastIndex is part of raft.Storage.
func (g *GroupLog) LastIndex() (uint64, error) { return g.last, nil }

// Term is part of raft.Storage.
func (g *GroupLog) Term(i uint64) (uint64, error) {
	switch {
	case i < g.truncated:
		return 0, raft.ErrCompacted
	case i > g.last:
		return 0, raft.ErrUnavailable
	}
	return g.terms.at(i), nil
}

// Entries is part of raft.Storage.
func (g *GroupLog) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	switch {
	case lo <= g.truncated:
		return nil, raft.ErrCompacted
	case hi > g.last+1:
		return nil, raft.ErrUnavailable
	case lo >= hi:
		return nil, nil
	}
	if len(g.cache.ents) > 0 && lo >= g.cache.lo {
		return g.cache.slice(lo, hi, maxSize), nil
	}
	end := hi
	if len(g.cache.ents) > 0 {
		end = min(end, g.cache.lo)
	}
	ents, size, err := g.l.read(g.id, lo, end, maxSize)
	if err != nil {
		g.l.fail(err)
		return nil, err
	}
	if lo+uint64(len(ents)) == end && end < hi && size < maxSize {
		rest := g.cache.slice(end, hi, maxSize-size)
		if entrySize(rest[0])+int64(size) <= int64(min(maxSize, math.MaxInt64)) {
			ents = append(ents, rest...)
		}
	}
	return ents, nil
}

// Append takes an append over and reports whether there is nothing to wait for: then Done is not called. Otherwise Done is
// called when it is durable, after those of earlier appends, and the worker then calls Durable. Somebody must call Log.Write
// (or Pump) afterwards.
func (g *GroupLog) Append(a Append) (done bool) {
	j := job{g: g, done: a.Done, sync: a.MustSync}
	if a.HardState != nil {
		g.hs, j.hs, j.setHS = *a.HardState, *a.HardState, true
	}
	low := uint64(math.MaxUint64)
	if a.Reset != nil {
		j.reset, j.sync = a.Reset, true
		g.applyReset(a.Reset)
		low = a.Reset.Index + 1
	}
	if n := len(a.Entries); n > 0 {
		first := a.Entries[0].GetIndex()
		low = min(low, first)
		j.entries, j.sync = a.Entries, true
		j.cutFrom, j.cutTo = g.applyEntries(a.Entries)
	}
	if !j.sync && len(g.outstanding) == 0 {
		if j.setHS {
			g.l.setLazyHardState(g, j.hs)
		}
		return true
	}
	g.outstanding = append(g.outstanding, low)
	g.trim()
	g.l.submit(j)
	return false
}

// applyEntries takes entries into memory and returns the indexes above them that go away (from > to: none).
func (g *GroupLog) applyEntries(ents []*raftpb.Entry) (cutFrom, cutTo uint64) {
	first, last := ents[0].GetIndex(), ents[len(ents)-1].GetIndex()
	if first <= g.truncated || first > g.last+1 {
		invariant.Fail("L1", "group %d: append at %d to log (%d, %d]", g.id, first, g.truncated, g.last)
	}
	cutFrom, cutTo = last+1, g.last
	if first <= g.last {
		kept := first - g.truncated - 1
		var gone int64
		for _, s := range g.sizes[kept:] {
			gone += int64(s)
		}
		g.sizes = g.sizes[:kept]
		g.addBytes(-gone)
	}
	var added int64
	for _, e := range ents {
		g.terms = g.terms.put(e.GetIndex(), e.GetTerm())
		s := entrySize(e)
		added += s
		g.sizes = append(g.sizes, uint32(min(s, math.MaxUint32)))
	}
	g.addBytes(added)
	g.last = last
	g.cache.add(ents)
	return cutFrom, cutTo
}

func (g *GroupLog) applyReset(r *Reset) {
	g.truncated, g.last = r.Index, r.Index
	g.terms = append(g.terms[:0], termRun{r.Index, r.Term})
	g.sizes = nil
	g.addBytes(-g.bytes.Load())
	g.cache = entryCache{}
	g.conf, g.confIndex = r.Conf, r.Index
}

// Durable acknowledges, on the worker, the oldest append that Done was told of.
func (g *GroupLog) Durable() {
	if len(g.outstanding) == 0 {
		invariant.Fail("L1", "group %d: more completions than appends", g.id)
	}
	n := copy(g.outstanding, g.outstanding[1:])
	g.outstanding = g.outstanding[:n]
	g.trim()
}

// Outstanding counts the appends that are not yet durable.
func (g *GroupLog) Outstanding() int { return len(g.outstanding) }

// trim keeps the cache within its bound. What is not durable stays: the engine cannot answer for it.
func (g *GroupLog) trim() {
	g.cache.trim(g.l.cachePerGroup.Load(), g.durable())
}

// durable is the last entry up to which the engine has what memory has.
func (g *GroupLog) durable() uint64 {
	durable := g.last
	for _, low := range g.outstanding {
		if low != math.MaxUint64 {
			durable = min(durable, low-1)
		}
	}
	return durable
}

// Truncate forgets entries up to through, which the machine's durable state must contain. It need
// not survive a crash and is written with a later batch.
func (g *GroupLog) Truncate(through uint64) {
	through = min(through, g.durable())
	if through <= g.truncated {
		return
	}
	n := through - g.truncated
	var gone int64
	for _, s := range g.sizes[:n] {
		gone += int64(s)
	}
	g.addBytes(-gone)
	if rest := g.sizes[n:]; uint64(len(rest)) < n {
		g.sizes = append([]uint32(nil), rest...)
	} else {
		g.sizes = rest
	}
	from := g.truncated + 1
	g.truncated = through
	term := g.terms.at(through)
	g.terms = g.terms.dropBefore(through)
	g.cache.dropThrough(through)
	g.l.setLazyTruncation(g, from, through, term)
}

// SetConf makes a configuration durable before it returns. Changes are rare; the worker waits for the disk here so that
// no state that already reflects the change can outlive it.
func (g *GroupLog) SetConf(index uint64, cs *raftpb.ConfState) error {
	g.conf, g.confIndex = cs, index
	b := g.l.db.NewBatch()
	if err := b.Set(appendGroupKey(nil, g.id, kindConf), appendConf(nil, index, cs), nil); err != nil {
		return fmt.Errorf("raftlog: configuration of group %d: %w", g.id, err)
	}
	return g.l.applyNow(b)
}

// Destroy removes the group's log and state and reports through done when that is durable. The GroupLog must not be used
// afterwards.
func (g *GroupLog) Destroy(done Done) {
	g.addBytes(-g.bytes.Load())
	g.outstanding = append(g.outstanding, 0)
	g.l.submit(job{g: g, remove: true, sync: true, done: done})
}

// Bytes is the size of the log's entries. Any goroutine may ask.
func (g *GroupLog) Bytes() int64 { return g.bytes.Load() }

func (g *GroupLog) addBytes(n int64) {
	g.bytes.Add(n)
	g.l.bytes.Add(n)
}
