package router

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
)

// Await blocks its caller: it calls start with a function to be called (at most once, from anywhere, possibly within start) when what is
// waited for has come, and returns then, or when the context ends. In production it waits on a channel, in the simulation it
// switches to another coroutine. All waiting in this package goes through it.
type Await func(ctx context.Context, start func(done func())) error

// signals are channels that nobody can send to any more.
var signals = sync.Pool{New: func() any { return make(chan struct{}, 1) }}

// Block is the Await of production.
func Block(ctx context.Context, start func(done func())) error {
	ch := signals.Get().(chan struct{})
	start(func() { ch <- struct{}{} })
	select {
	case <-ch:
		signals.Put(ch)
		return nil
	case <-ctx.Done():
		return ctx.Err() // the channel may still be sent to: not to be used again
	}
}

// errTimedOut says that the time of a request is over while it waited. If it was handed to somebody who may
// write, what became of it is not known.
var errTimedOut = errors.New("router: request timed out")

// forever is the deadline of what only its client's patience bounds.
const forever = math.MaxUint64

// call is a request being served. It belongs to one goroutine.
type call struct {
	s        *Server
	ctx      context.Context
	deadline uint64 // tick
}

// begin starts the time of a request.
func (s *Server) begin(ctx context.Context) *call {
	return &call{s: s, ctx: ctx, deadline: s.clock.now.Load() + uint64(s.cfg.RequestTicks)}
}

// ticksLeft is how long the request may still take, at least one tick.
func (c *call) ticksLeft() int {
	if now := c.s.clock.now.Load(); c.deadline > now {
		return int(c.deadline - now)
	}
	return 1
}

// wait calls start and waits until done is called: then, and only then, it returns nil. Otherwise done may be called
// later still, and what it would have told must not be looked at.
func (c *call) wait(start func(done func())) error { return c.waitUntil(c.deadline, start) }

// waitUntil is wait with an earlier deadline; errTimedOut says that it has passed.
func (c *call) waitUntil(deadline uint64, start func(done func())) error {
	w := &waiter{deadline: min(deadline, c.deadline)}
	err := c.s.await(c.ctx, func(done func()) {
		w.done = done
		start(w.finish)
		c.s.clock.add(w)
	})
	switch w.leave(&c.s.clock) {
	case waiterFinished:
		return nil
	case waiterExpired:
		return errTimedOut
	}
	if err == nil {
		err = context.Canceled // an Await that gave up by itself
	}
	return err
}

// pause lets ticks pass.
func (c *call) pause(ticks uint64) error {
	err := c.waitUntil(c.s.clock.now.Load()+ticks, func(func()) {})
	if errors.Is(err, errTimedOut) && c.s.clock.now.Load() < c.deadline {
		return nil
	}
	return err
}

// over tells whether the request may not be tried once more, and why.
func (c *call) over() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if c.s.clock.now.Load() >= c.deadline {
		return errTimedOut
	}
	return nil
}

// ready waits until the cluster has its ranges.
func (c *call) ready() (*order.View, error) {
	v := c.s.b.View()
	for !v.Initialised {
		if err := c.nextPosition(v, c.deadline); err != nil {
			return nil, err
		}
		v = c.s.b.View()
	}
	return v, nil
}

// nextPosition waits until the order state has moved on from a view.
func (c *call) nextPosition(v *order.View, deadline uint64) error {
	return c.waitUntil(deadline, func(done func()) {
		c.s.b.WaitApplied(v.Position+1, func(ids.Position, ids.Revision) { done() })
	})
}

// A waiter is new, then pending if what it waits for did not come at once, and ends as one of the others.
const (
	waiterNew int32 = iota
	waiterPending
	waiterFinished
	waiterExpired
	waiterLeft
)

// waiter is one wait. Exactly one of finish, expire and leave ends it.
type waiter struct {
	done       func()
	deadline   uint64
	state      atomic.Int32
	prev, next *waiter // guarded by clock.mu
	linked     bool    // guarded by clock.mu
	added      bool    // it was linked; belongs to the one who waits
}

// finish says that what is waited for has come.
func (w *waiter) finish() {
	if w.state.CompareAndSwap(waiterNew, waiterFinished) || w.state.CompareAndSwap(waiterPending, waiterFinished) {
		w.done()
	}
}

// leave ends the wait on the side of the one who waited, if nothing else has, and tells what has.
func (w *waiter) leave(c *clock) int32 {
	if w.state.CompareAndSwap(waiterNew, waiterLeft) {
		return waiterLeft
	}
	w.state.CompareAndSwap(waiterPending, waiterLeft)
	if w.added {
		c.remove(w)
	}
	return w.state.Load()
}

// clock counts ticks and ends waits. It holds one waiter for each request that waits, in the bucket of its
// deadline.
type clock struct {
	now atomic.Uint64

	mu      sync.Mutex
	buckets []waiter // heads of rings, guarded by mu
}

// init makes room for waits of up to ticks.
func (c *clock) init(ticks int) {
	c.buckets = make([]waiter, ticks+2)
	for i := range c.buckets {
		h := &c.buckets[i]
		h.prev, h.next = h, h
	}
}

// add makes a waiter expire at its deadline, unless it has ended already.
func (c *clock) add(w *waiter) {
	if w.deadline == forever || w.state.Load() != waiterNew {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.state.CompareAndSwap(waiterNew, waiterPending) {
		return
	}
	at := max(w.deadline, c.now.Load()+1)
	h := &c.buckets[at%uint64(len(c.buckets))]
	w.linked, w.added, w.prev, w.next = true, true, h.prev, h
	h.prev.next, h.prev = w, w
}

func (c *clock) remove(w *waiter) {
	c.mu.Lock()
	c.unlinkLocked(w)
	c.mu.Unlock()
}

func (c *clock) unlinkLocked(w *waiter) {
	if w.linked {
		w.prev.next, w.next.prev = w.next, w.prev
		w.linked, w.prev, w.next = false, nil, nil
	}
}

// Tick lets a tick pass: requests whose time is over stop waiting. Any goroutine may call it, at the pace of the node's Raft
// ticks.
func (s *Server) Tick() {
	c := &s.clock
	var run []*waiter
	c.mu.Lock()
	now := c.now.Add(1)
	h := &c.buckets[now%uint64(len(c.buckets))]
	for h.next != h {
		w := h.next
		c.unlinkLocked(w)
		if w.state.CompareAndSwap(waiterPending, waiterExpired) {
			run = append(run, w)
		}
	}
	c.mu.Unlock()
	for _, w := range run {
		w.done()
	}
	s.tickWatches()
}
