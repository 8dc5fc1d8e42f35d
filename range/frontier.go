package ranges

import (
	"sync"

	"github.com/braidkv/braid/internal/ids"
)

// Frontier tells how far a replica has applied the order log. Anybody may use it.
//
// It knows which positions have items for the range that are not applied. Since the order machine calls Enqueue
// before it publishes a position, a replica has passed a published position p if no item at or below p is left; so a range to which
// the order log has nothing to say never lags.
type Frontier struct {
	mu      sync.Mutex
	applied ids.Position   // position of the last item applied
	pending []ids.Position // ascending, all above applied
	waiters []waiter
}

type waiter struct {
	at ids.Position
	fn func()
}

// NewFrontier makes a frontier for a replica that has applied the items through a position.
func NewFrontier(applied ids.Position) *Frontier { return &Frontier{applied: applied} }

// Enqueue says that the order log has an item for the range at p, or that the replica lacks dropped items through p.
func (f *Frontier) Enqueue(p ids.Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p <= f.applied || len(f.pending) > 0 && p == f.pending[len(f.pending)-1] {
		return
	}
	f.pending = append(f.pending, p)
	for i := len(f.pending) - 1; i > 0 && f.pending[i-1] > p; i-- { // a late Refill
		f.pending[i-1], f.pending[i] = f.pending[i], f.pending[i-1]
	}
}

// Advance says that the items through p are applied.
func (f *Frontier) Advance(p ids.Position) {
	f.mu.Lock()
	if p > f.applied {
		f.applied = p
	}
	n := 0
	for n < len(f.pending) && f.pending[n] <= p {
		n++
	}
	f.pending = append(f.pending[:0], f.pending[n:]...)
	var run []func()
	if len(f.waiters) > 0 {
		kept := f.waiters[:0]
		for _, w := range f.waiters {
			if f.passedLocked(w.at) {
				run = append(run, w.fn)
			} else {
				kept = append(kept, w)
			}
		}
		clear(f.waiters[len(kept):])
		f.waiters = kept
	}
	f.mu.Unlock()
	for _, fn := range run {
		fn()
	}
}

func (f *Frontier) passedLocked(p ids.Position) bool {
	return len(f.pending) == 0 || f.pending[0] > p
}

// Passed tells whether all items at or below p, a published position, are applied.
func (f *Frontier) Passed(p ids.Position) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.passedLocked(p)
}

// Through is the highest position at or below p, a published position, that is passed.
func (f *Frontier) Through(p ids.Position) ids.Position {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.passedLocked(p) {
		return p
	}
	return f.pending[0] - 1
}

// Newest is the position of the last item applied.
func (f *Frontier) Newest() ids.Position {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied
}

// Wait calls fn, at once or on the replica's worker, when p is passed. There is no way to call it off: who stops waiting
// ignores the call. Waiters are bounded by the requests that wait.
func (f *Frontier) Wait(p ids.Position, fn func()) {
	f.mu.Lock()
	if !f.passedLocked(p) {
		f.waiters = append(f.waiters, waiter{p, fn})
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	fn()
}
