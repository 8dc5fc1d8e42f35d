package order

import (
	"container/heap"
	"sync"
	"sync/atomic"

	"github.com/braidkv/braid/internal/ids"
)

// publisher shows the applied state to other goroutines.
type publisher struct {
	view atomic.Pointer[View]

	mu      sync.Mutex
	waiters waiterHeap // guarded by mu; all above the published position
	nwait   uint64     // guarded by mu

	// ring holds the revision after each of the last positions: ring[p % len] for p in (oldest, newest].
	ring           []ids.Revision // guarded by mu
	oldest, newest ids.Position   // guarded by mu
}

// waiter waits for a position. One per request that waits: that is what bounds them. A request that gives up leaves its
// waiter until the position, which is committed, is applied.
type waiter struct {
	at ids.Position
	n  uint64 // order of arrival
	fn func(ids.Position, ids.Revision)
}

type waiterHeap []waiter

func (h waiterHeap) Len() int { return len(h) }
func (h waiterHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].n < h[j].n
}
func (h waiterHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *waiterHeap) Push(x any)   { *h = append(*h, x.(waiter)) }
func (h *waiterHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = waiter{}
	*h = old[:len(old)-1]
	return x
}

func (p *publisher) init(v *View, history int) {
	p.ring = make([]ids.Revision, history)
	p.oldest = v.Position
	p.newest = v.Position
	p.view.Store(v)
	if v.Position > 0 {
		p.oldest--
		p.ring[int(v.Position)%len(p.ring)] = v.Revision
	}
}

// note remembers the revision after a position, before it is published.
func (p *publisher) note(at ids.Position, rev ids.Revision) {
	if at != p.newest+1 { // a snapshot was installed
		p.oldest = at - 1
	}
	p.newest = at
	p.ring[int(at)%len(p.ring)] = rev
	if n := ids.Position(len(p.ring)); p.newest-p.oldest > n {
		p.oldest = p.newest - n
	}
}

// publish shows a view, with the revisions after the positions that led to it, and calls those who waited for it.
func (p *publisher) publish(v *View, steps []step) {
	p.mu.Lock()
	for _, s := range steps {
		p.note(s.at, s.revision)
	}
	p.view.Store(v)
	var run []waiter
	for len(p.waiters) > 0 && p.waiters[0].at <= v.Position {
		run = append(run, heap.Pop(&p.waiters).(waiter))
	}
	p.mu.Unlock()
	for _, w := range run {
		w.fn(v.Position, v.Revision)
	}
}

// step is a position with the revision after it.
type step struct {
	at       ids.Position
	revision ids.Revision
}

func (p *publisher) wait(at ids.Position, fn func(ids.Position, ids.Revision)) {
	v := p.view.Load()
	if v.Position < at {
		p.mu.Lock()
		if v = p.view.Load(); v.Position < at {
			p.nwait++
			heap.Push(&p.waiters, waiter{at: at, n: p.nwait, fn: fn})
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
	fn(v.Position, v.Revision)
}

func (p *publisher) revisionAt(at ids.Position) (ids.Revision, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at <= p.oldest || at > p.newest {
		return 0, false
	}
	return p.ring[int(at)%len(p.ring)], true
}
