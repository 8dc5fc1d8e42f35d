package router

import (
	"context"
	"iter"
)

// world runs coroutines in one goroutine: code in blocking style whose waits hand control back.
type world struct {
	now     bool     // later runs things at once: for servers that wait on channels
	ready   []func() // first in, first out
	current *coroutine
}

type coroutine struct {
	next  func() (struct{}, bool)
	yield func(struct{}) bool
	ended bool

	err       error  // of the context
	cancelled func() // ends the wait it is in
}

// spawn runs body until its first wait; run goes on with it.
func (w *world) spawn(body func()) *coroutine {
	c := &coroutine{}
	c.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		c.yield = yield
		body()
		c.ended = true
	})
	w.resume(c)
	return c
}

func (w *world) resume(c *coroutine) {
	before := w.current
	w.current = c
	c.next()
	w.current = before
}

// later has fn run by run.
func (w *world) later(fn func()) {
	if w.now {
		fn()
		return
	}
	w.ready = append(w.ready, fn)
}

// run runs everything that can run.
func (w *world) run() {
	for n := 0; len(w.ready) > 0; n++ {
		if n > 1_000_000 {
			panic("the world spins")
		}
		fn := w.ready[0]
		w.ready = w.ready[1:]
		fn()
	}
}

// Await waits on behalf of the coroutine that runs.
func (w *world) Await(ctx context.Context, start func(done func())) error {
	c := w.current
	if c == nil {
		panic("a wait outside of a coroutine")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	finished, waiting := false, false
	finish := func() {
		if finished {
			return
		}
		finished = true
		if waiting {
			w.later(func() { w.resume(c) })
		}
	}
	defer context.AfterFunc(ctx, func() { panic("a test's context ended in a wait: end it with world.cancel") })()
	c.cancelled = finish
	start(finish)
	if !finished {
		waiting = true
		c.yield(struct{}{})
	}
	c.cancelled = nil
	return c.err
}

// cancel ends the wait that a coroutine is in as the end of its context does.
func (w *world) cancel(c *coroutine, err error) {
	c.err = err
	c.cancelled()
	w.run()
}
