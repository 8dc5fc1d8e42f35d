package router

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// clocked is a server of which only the clock is used.
func clocked(ticks int) *Server {
	return New(nil, Config{RequestTicks: ticks})
}

// TestWaitOutcomes: done within start, done later, expired, and left by its client.
func TestWaitOutcomes(t *testing.T) {
	w := &world{}
	s := New(nil, Config{Await: w.Await, RequestTicks: 5})
	var err error
	wait := func(start func(done func())) *coroutine {
		return w.spawn(func() { err = s.begin(bg).wait(start) })
	}
	if c := wait(func(done func()) { done() }); !c.ended || err != nil {
		t.Errorf("done at once: %v", err)
	}
	var done func()
	c := wait(func(d func()) { done = d })
	done()
	done() // a second call is nothing
	w.run()
	if !c.ended || err != nil {
		t.Errorf("done later: %v", err)
	}
	c = wait(func(d func()) { done = d })
	for range 5 {
		if c.ended {
			t.Error("expired early")
		}
		s.Tick()
		w.run()
	}
	done()
	w.run()
	if !c.ended || !errors.Is(err, errTimedOut) {
		t.Errorf("expired: %v", err)
	}
	c = wait(func(d func()) { done = d })
	w.cancel(c, context.Canceled)
	done()
	if !c.ended || !errors.Is(err, context.Canceled) {
		t.Errorf("left: %v", err)
	}
	for i := range s.clock.buckets {
		if h := &s.clock.buckets[i]; h.next != h {
			t.Errorf("a waiter is left in bucket %d", i)
		}
	}
}

// TestPauseIsNotLongerThanTheRequest.
func TestPauseIsNotLongerThanTheRequest(t *testing.T) {
	w := &world{}
	s := New(nil, Config{Await: w.Await, RequestTicks: 3})
	var first, second error
	c := w.spawn(func() {
		k := s.begin(bg)
		first = k.pause(2)
		second = k.pause(2)
	})
	for range 3 {
		s.Tick()
		w.run()
	}
	if !c.ended || first != nil || !errors.Is(second, errTimedOut) {
		t.Errorf("%v, %v", first, second)
	}
}

// TestWaitsRace has waits end by all of done, ticks and contexts at once: each returns exactly once, and what done tells is complete
// when wait returns nil. It is meant for the race detector.
func TestWaitsRace(t *testing.T) {
	s := clocked(4)
	const seed = 7
	var stop atomic.Bool
	var ticker, waits, dones sync.WaitGroup
	ticker.Go(func() {
		for !stop.Load() {
			s.Tick()
		}
	})
	for i := range 8 {
		waits.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 500 {
				ctx, cancel := context.WithCancel(bg)
				told, how := 0, r.IntN(4)
				err := s.begin(ctx).wait(func(done func()) {
					tell := func() { told = 1; done() }
					switch how {
					case 0:
						tell()
					case 1:
						dones.Go(tell)
					case 2:
						dones.Go(cancel)
					}
				})
				switch {
				case err == nil && told != 1:
					t.Error("done, but nothing told")
				case err != nil && !errors.Is(err, errTimedOut) && !errors.Is(err, context.Canceled):
					t.Error(err)
				case err == nil && how >= 2:
					t.Error("done by nobody")
				}
				cancel()
			}
		})
	}
	waits.Wait()
	stop.Store(true)
	ticker.Wait()
	dones.Wait()
	for i := range s.clock.buckets {
		if h := &s.clock.buckets[i]; h.next != h {
			t.Errorf("a waiter is left in bucket %d", i)
		}
	}
}
