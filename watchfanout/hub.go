package watchfanout

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
)

// Source is the node's state. Any goroutine may call it.
type Source interface {
	// Now is the store's revision and that of its last compaction, as last published.
	Now() (rev, compacted ids.Revision)
	// Through is the highest revision at or below Now's through which the node has every event of a span; zero if it cannot tell.
	Through(start, end []byte) ids.Revision
	// Removed is the highest revision for which the node may have begun to remove compacted versions.
	Removed() ids.Revision
	// Reader reads the node's data.
	Reader() mvcc.Reader
}

// Limits.
const (
	// streamBytes is what may wait in a stream's queue: above it, watches fall behind.
	streamBytes = 8 << 20
	// eventOverhead is what an event takes besides its bytes.
	eventOverhead = 200
	// roundRevisions is how many revisions Pump and CatchUp read at a time.
	roundRevisions = 4096
	// roundBytes is about how much Pump and CatchUp read at a time. A revision is never cut in two.
	roundBytes = 4 << 20
	// roundWatches is how many watches that are behind share one reading.
	roundWatches = 1024
)

type spanKey struct{ start, end string }

// group is a watched span.
type group struct {
	start, end []byte // an empty end: to the last key
	done, to   ids.Revision
	members    int
	prev       int // of the members, how many want previous values
	synced     map[*watch]struct{}
	batch      []*event
	size       int
}

func (g *group) contains(key []byte) bool {
	return bytes.Compare(key, g.start) >= 0 && (len(g.end) == 0 || bytes.Compare(key, g.end) < 0)
}

// event is shared by all streams that send it.
type event struct {
	full *mvccpb.Event
	bare *mvccpb.Event // without the previous value
	size int
}

func newEvent(ev *mvccpb.Event) *event {
	e := &event{full: ev, bare: ev, size: eventOverhead + len(ev.Kv.Key) + len(ev.Kv.Value)}
	if ev.PrevKv != nil {
		e.bare = &mvccpb.Event{Type: ev.Type, Kv: ev.Kv}
		e.size += len(ev.PrevKv.Key) + len(ev.PrevKv.Value)
	}
	return e
}

func (e *event) rev() ids.Revision { return ids.Revision(e.full.Kv.ModRevision) }

// Hub is a node's fan-out. See the package comment.
type Hub struct {
	src  Source
	wake func()

	active atomic.Bool // there are groups, or somebody asks

	mu      sync.Mutex
	groups  map[spanKey]*group
	index   *spans // nil: groups have changed
	behind  map[*watch]struct{}
	streams map[*Stream]struct{}
	asking  map[*Stream]ids.Revision // want progress, at this revision at least
}

// New makes a hub. wake is called, from anywhere, when Pump and CatchUp have something to do that they do not know of; it must not block.
func New(src Source, wake func()) *Hub {
	return &Hub{
		src: src, wake: wake, groups: map[spanKey]*group{}, behind: map[*watch]struct{}{},
		streams: map[*Stream]struct{}{}, asking: map[*Stream]ids.Revision{},
	}
}

// Active tells whether Pump may have anything to do.
func (h *Hub) Active() bool { return h.active.Load() }

// Pump hands out what has been applied since the last call. It reports whether to call it again at once.
func (h *Hub) Pump() (more bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.groups) == 0 {
		h.tellProgressLocked()
		h.active.Store(false)
		return false, nil
	}
	rev, _ := h.src.Now()
	all := h.src.Through(nil, nil)
	rounds := map[ids.Revision]ids.Revision{} // from which mark to which
	for _, g := range h.groups {
		to := all
		if all < rev {
			to = max(all, h.src.Through(g.start, g.end)) // other ranges may lag, not these
		}
		if to > g.done+roundRevisions {
			to, more = g.done+roundRevisions, true
		}
		if g.to = max(to, g.done); g.to > g.done {
			rounds[g.done] = max(rounds[g.done], g.to)
		}
	}
	for from, to := range rounds {
		cut, err := h.roundLocked(from, to)
		if err != nil {
			return false, err
		}
		more = more || cut
	}
	h.tellProgressLocked()
	return more, nil
}

// roundLocked moves the groups whose mark is at from on to where they are to go, or less far if that is much: then it reports that there is more.
func (h *Hub) roundLocked(from, to ids.Revision) (cut bool, err error) {
	if h.index == nil {
		h.index = newSpans(h.groups)
	}
	prev := false
	for _, g := range h.index.groups {
		prev = prev || g.prev > 0
	}
	start, end := h.index.hull()
	read, last := 0, ids.Revision(0)
	err = mvcc.Changes(h.src.Reader(), from+1, to, start, end, prev, func(ev *mvccpb.Event) (bool, error) {
		rev := ids.Revision(ev.Kv.ModRevision)
		if read > roundBytes && rev > last {
			cut, to = true, rev-1
			return false, nil
		}
		var e *event
		h.index.visit(ev.Kv.Key, func(g *group) {
			if g.done != from || rev > g.to {
				return
			}
			if e == nil {
				e = newEvent(ev)
				read, last = read+e.size, rev
			}
			g.batch = append(g.batch, e)
			g.size += e.size
		})
		return true, nil
	})
	// Events whose versions were removed before they were read are missing. Nobody must take what is left for the whole.
	torn := h.src.Removed() > from+1
	for _, g := range h.index.groups {
		if g.done != from {
			continue
		}
		batch, size := g.batch, g.size
		g.batch, g.size = nil, 0
		if err != nil {
			continue
		}
		for w := range g.synced {
			switch {
			case torn:
				h.fallBehindLocked(w, max(w.next, from+1))
			case len(batch) > 0 && !w.deliverLocked(batch, size):
				h.fallBehindLocked(w, max(w.next, batch[0].rev()))
			}
		}
		g.to = min(g.to, to)
		g.done = g.to
	}
	if err != nil {
		return false, fmt.Errorf("watchfanout: reading events %d to %d: %w", from+1, to, err)
	}
	return cut, nil
}

func (h *Hub) fallBehindLocked(w *watch, next ids.Revision) {
	delete(w.group.synced, w)
	w.next = next
	h.behind[w] = struct{}{}
	h.wake()
}

// tellProgressLocked answers the streams that ask how far they are, as far as all their watches are synced.
func (h *Hub) tellProgressLocked() {
	for st, least := range h.asking {
		rev, ok := st.syncedLocked()
		if !ok || rev > 0 && rev < least {
			continue
		}
		delete(h.asking, st)
		if rev > 0 {
			st.pushLocked(response(rev, allWatches), 0)
		}
	}
}

// CatchUp reads a part of the history that watches lack, and reports whether there is more to do at once. Only one goroutine may call it.
func (h *Hub) CatchUp() (more bool, err error) {
	ws, index, from, to := h.chooseBehind()
	if len(ws) == 0 {
		return false, nil
	}
	prev := false
	for _, w := range ws {
		prev = prev || w.prev
	}
	start, end := index.hull()
	events, last, size := []*event(nil), to, 0
	err = mvcc.Changes(h.src.Reader(), from, to, start, end, prev, func(ev *mvccpb.Event) (bool, error) {
		if rev := ids.Revision(ev.Kv.ModRevision); size > roundBytes && rev > events[len(events)-1].rev() {
			last = rev - 1
			return false, nil
		}
		wanted := false
		index.visit(ev.Kv.Key, func(*group) { wanted = true })
		if wanted {
			e := newEvent(ev)
			events, size = append(events, e), size+e.size
		}
		return true, nil
	})
	if err != nil {
		return false, fmt.Errorf("watchfanout: reading history %d to %d: %w", from, to, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	removed := h.src.Removed()
	for _, w := range ws {
		if _, ok := h.behind[w]; ok && h.advanceLocked(w, events, last, removed) {
			more = true
		}
	}
	h.tellProgressLocked()
	return more, nil
}

// chooseBehind picks watches that are behind and have room, and what to read for them.
func (h *Hub) chooseBehind() (ws []*watch, index *spans, from, to ids.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, compacted := h.src.Now()
	groups := map[spanKey]*group{}
	for w := range h.behind {
		switch {
		case w.next < compacted:
			h.compactedLocked(w, compacted)
			continue
		case w.next > w.group.done:
			h.syncLocked(w)
			continue
		case w.stream.stuck || w.stream.bytes > streamBytes/2 || len(ws) == roundWatches:
			continue
		}
		if len(ws) == 0 || w.next < from {
			from = w.next
		}
		to = max(to, w.group.done)
		ws = append(ws, w)
		groups[spanKey{string(w.group.start), string(w.group.end)}] = w.group
	}
	return ws, newSpans(groups), from, min(to, from+roundRevisions)
}

// advanceLocked gives a watch what was read for it through a revision, and reports whether that has changed anything.
func (h *Hub) advanceLocked(w *watch, events []*event, last, removed ids.Revision) bool {
	if w.next < removed {
		if _, compacted := h.src.Now(); w.next < compacted {
			h.compactedLocked(w, compacted)
			return true
		}
		return false // the compaction is published in a moment
	}
	last = min(last, w.group.done) // what is behind the mark, Pump will bring
	if last < w.next {
		return false
	}
	var mine []*event
	size := 0
	for _, e := range events {
		if e.rev() <= last && e.rev() >= w.next && w.group.contains(e.full.Kv.Key) {
			mine, size = append(mine, e), size+e.size
		}
	}
	if len(mine) > 0 && !w.deliverLocked(mine, size) {
		w.stream.stuck = true // tried again when that was read; until then it must not hold those ahead of it
		return false
	}
	if w.next = last + 1; w.next > w.group.done {
		h.syncLocked(w)
	}
	return true
}

func (h *Hub) syncLocked(w *watch) {
	delete(h.behind, w)
	w.group.synced[w] = struct{}{}
}

// compactedLocked ends a watch whose next events are compacted away.
func (h *Hub) compactedLocked(w *watch, compacted ids.Revision) {
	rev, _ := h.src.Now()
	resp := response(rev, w.id)
	resp.Canceled, resp.CompactRevision = true, int64(compacted)
	w.stream.removeLocked(w)
	w.stream.pushLocked(resp, 0)
}

// Breaker tells whether a stream has to end, and why.
type Breaker func(st *Stream) error

// Tick looks at every stream: those which breaker gives an error end with it. With progress set, the watches that asked for it
// and have had nothing since the last such call are told how far they are.
func (h *Hub) Tick(progress bool, breaker Breaker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.behind) > 0 {
		h.wake() // some wait for what tells nobody
	}
	for st := range h.streams {
		if err := breaker(st); err != nil && st.err == nil {
			st.err = err
			st.notify()
		}
		if !progress {
			continue
		}
		for _, w := range st.watches {
			_, behind := h.behind[w]
			if w.notify && w.idle && !behind && w.group.done >= w.start {
				st.pushLocked(response(w.group.done, w.id), 0)
			}
			w.idle = true
		}
	}
}
