package sim

import (
	"container/heap"
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"runtime/debug"
)

// Time is virtual time in microseconds since the start of a run.
type Time int64

// Units of virtual time.
const (
	Microsecond Time = 1
	Millisecond Time = 1000
	Second      Time = 1000000
)

type event struct {
	at  Time
	n   uint64 // order of insertion: equal times run first in, first out
	fn  func()
	tag string
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}

// World is the event queue, the virtual clock and the seeded choices of one run. It is
// used from one goroutine.
type World struct {
	Now     Time
	Rand    *rand.Rand
	queue   eventQueue
	next    uint64
	steps   uint64
	trace   uint64 // running hash of what ran when: equal for equal seeds
	current *Proc
}

// NewWorld makes the world of a seed.
func NewWorld(seed uint64) *World {
	return &World{Rand: rand.New(rand.NewPCG(seed, 0x627261696473696d))}
}

// After runs fn when d has passed. The tag goes into the trace.
func (w *World) After(d Time, tag string, fn func()) {
	if d < 0 {
		d = 0
	}
	w.next++
	heap.Push(&w.queue, event{at: w.Now + d, n: w.next, fn: fn, tag: tag})
}

// Step runs the next event and reports whether there was one.
func (w *World) Step() bool {
	if len(w.queue) == 0 {
		return false
	}
	e := heap.Pop(&w.queue).(event)
	w.Now = e.at
	w.steps++
	w.mix(e.tag)
	e.fn()
	return true
}

// RunUntil runs events until the clock has passed t, done says so, or the budget of
// steps is spent, which is an error: a run must not spin.
func (w *World) RunUntil(t Time, budget uint64, done func() bool) error {
	limit := w.steps + budget
	for len(w.queue) > 0 && w.queue[0].at <= t {
		if done != nil && done() {
			return nil
		}
		if w.steps >= limit {
			return fmt.Errorf("%d steps spent at virtual time %d µs", budget, w.Now)
		}
		w.Step()
	}
	w.Now = max(w.Now, t)
	return nil
}

func (w *World) mix(tag string) {
	h := fnv.New64a()
	var b [16]byte
	for i := range 8 {
		b[i] = byte(w.trace >> (8 * i))
		b[8+i] = byte(uint64(w.Now) >> (8 * i))
	}
	h.Write(b[:])
	h.Write([]byte(tag))
	w.trace = h.Sum64()
}

// Trace is a hash of all that has run and when. Two runs of one seed must agree on it.
func (w *World) Trace() uint64 { return w.trace }

// Steps counts the events that have run.
func (w *World) Steps() uint64 { return w.steps }

// Between draws a time in [lo, hi].
func (w *World) Between(lo, hi Time) Time {
	if hi <= lo {
		return lo
	}
	return lo + Time(w.Rand.Int64N(int64(hi-lo+1)))
}

// Chance is true with probability p.
func (w *World) Chance(p float64) bool { return w.Rand.Float64() < p }

// A Proc is a coroutine of the simulated world: code in blocking style whose waits hand
// control back to the event queue.
type Proc struct {
	w     *World
	yield func(struct{}) bool
	next  func() (struct{}, bool)
	stop  func()
	done  bool

	wait   uint64 // number of the wait that the coroutine is in; odd while it waits
	broken error  // why the wait was broken off
}

// Go starts a coroutine now. body runs until its first wait before Go returns.
func (w *World) Go(body func(p *Proc)) *Proc {
	p := &Proc{w: w}
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		p.yield = yield
		defer p.explain()
		body(p)
		p.done = true
	})
	p.resume()
	return p
}

// explain adds the coroutine's stack to a panic, which would be lost on the way to the event queue.
func (p *Proc) explain() {
	if r := recover(); r != nil {
		if _, ok := r.(stopped); !ok {
			r = fmt.Sprintf("%v\n\ncoroutine:\n%s", r, debug.Stack())
		}
		panic(r)
	}
}

func (p *Proc) resume() {
	if p.done {
		return
	}
	before := p.w.current
	p.w.current = p
	p.next()
	p.w.current = before
}

// Await waits on behalf of the coroutine that runs; it is what the routers of all nodes are given. Real time, and so the context, plays no
// part.
func (w *World) Await(_ context.Context, start func(done func())) error {
	return w.current.Await(start)
}

// Await starts something and waits until done was called, or the wait is broken off. done may be called at once,
// later, or never.
func (p *Proc) Await(start func(done func())) error {
	p.wait++
	n := p.wait
	finished, waiting := false, false
	start(func() {
		if finished {
			return
		}
		finished = true
		if waiting {
			p.w.After(0, "resume", func() {
				if p.wait == n {
					p.resume()
				}
			})
		}
	})
	if finished {
		return nil
	}
	waiting = true
	if !p.yield(struct{}{}) {
		panic(stopped{})
	}
	p.wait++
	err := p.broken
	p.broken = nil
	return err
}

// stopped is panicked through a coroutine that is ended while it waits.
type stopped struct{}

// Break ends the wait that the coroutine is in, with an error.
func (p *Proc) Break(err error) {
	if p.done {
		return
	}
	n := p.wait
	p.broken = err // also if what it waits for comes first
	p.w.After(0, "break", func() {
		if p.wait == n && !p.done {
			p.resume()
		}
	})
}

// End stops the coroutine where it waits; its deferred calls run.
func (p *Proc) End() {
	if p.done {
		return
	}
	p.done = true
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(stopped); !ok {
				panic(r)
			}
		}
	}()
	p.stop()
}

// Sleep waits for virtual time to pass.
func (p *Proc) Sleep(d Time) {
	_ = p.Await(func(done func()) { p.w.After(d, "wake", done) })
}
