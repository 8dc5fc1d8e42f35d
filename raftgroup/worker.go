package raftgroup

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/braidkv/braid/internal/ids"
)

// worker owns the groups whose ID falls to it.
type worker struct {
	s *Store

	mu    sync.Mutex
	queue []*Group // with something in their inboxes, first come first served; guarded by mu
	spare []*Group

	wake chan struct{}

	beats []beatLetter // heartbeats of this pass, in order of first use; the worker's
}

// beatLetter gathers the heartbeats to one node.
type beatLetter struct {
	node ids.NodeID
	body []byte
}

// maxBeatLetter is when a letter of heartbeats is sent before the pass ends.
const maxBeatLetter = 32 << 10

func newWorker(s *Store) *worker {
	return &worker{s: s, wake: make(chan struct{}, 1)}
}

// push puts a group at the end of the queue. A channel of one place remembers that there is work, so no wake-up is lost between
// an empty queue and the wait.
func (w *worker) push(g *Group) {
	w.mu.Lock()
	w.queue = append(w.queue, g)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) addBeat(node ids.NodeID, b beat) {
	for i := range w.beats {
		if l := &w.beats[i]; l.node == node {
			l.body = appendBeat(l.body, b)
			if len(l.body) > maxBeatLetter {
				w.s.out.SendRaft(node, ids.OrderGroup, l.body)
				l.body = []byte{kindBeats}
			}
			return
		}
	}
	w.beats = append(w.beats, beatLetter{node, appendBeat(append(make([]byte, 0, 64), kindBeats), b)})
}

func (w *worker) sendBeats() {
	for i, l := range w.beats {
		if len(l.body) > 1 {
			w.s.counters.MessagesSent.Add(1)
			w.s.out.SendRaft(l.node, ids.OrderGroup, l.body)
		}
		w.beats[i] = beatLetter{}
	}
	w.beats = w.beats[:0]
}

// Pump does the work that waits for a worker's groups, each group once, in the order in which they
// got it, and reports whether there was any. Only one goroutine at a time may pump a worker. What the log was given
// waits for its Write or Pump, unless Run is at work.
func (s *Store) Pump(worker int) bool {
	w := s.workers[worker]
	w.mu.Lock()
	batch := w.queue
	w.queue, w.spare = w.spare[:0], nil
	w.mu.Unlock()
	s.counters.Passes.Add(uint64(len(batch)))
	for _, g := range batch {
		s.guard(g, (*Group).firstHalf)
	}
	if s.live {
		// The batch is on its way to the disk without waiting for the log's goroutine to wake up.
		s.log.Write()
	}
	w.sendBeats() // followers need not wait for what is applied here
	for i, g := range batch {
		batch[i] = nil
		s.guard(g, (*Group).secondHalf)
	}
	w.sendBeats()
	w.mu.Lock()
	w.spare = batch[:0]
	w.mu.Unlock()
	return len(batch) > 0
}

// guard runs half a pass. When the log cannot be read, Raft has no other way out than a panic; the error has been reported and the
// node is stopping.
func (s *Store) guard(g *Group, half func(*Group)) {
	defer func() {
		if s.log.Err() == nil {
			return
		}
		if r := recover(); r != nil {
			g.dead = true
		}
	}()
	half(g)
}

// running is one call of Run.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
}

// Run starts a goroutine per worker and the log's, and waits for them. It ends when ctx does, or after Stop, or with the
// log's fatal error. What was given to the log is written before it returns. It may be called once.
func (s *Store) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &running{cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	if s.run != nil || s.stopped {
		s.mu.Unlock()
		return ErrStopped
	}
	s.run = r
	s.mu.Unlock()
	s.live = true

	var workers, logger sync.WaitGroup
	var stopping atomic.Bool
	context.AfterFunc(ctx, func() { stopping.Store(true) })
	logCtx, stopLog := context.WithCancel(context.Background())
	logger.Go(func() {
		r.err = s.log.Run(logCtx)
		cancel() // after an error the workers have nobody to wait for
	})
	for i := range s.workers {
		workers.Go(func() { s.runWorker(ctx, i, &stopping) })
	}
	workers.Wait()
	stopLog()
	logger.Wait()
	s.mu.Lock()
	s.stopped = true
	if r.err == nil {
		r.err = s.err
	}
	s.mu.Unlock()
	close(r.done)
	return r.err
}

func (s *Store) runWorker(ctx context.Context, i int, stopping *atomic.Bool) {
	w := s.workers[i]
	for !stopping.Load() {
		// Whoever is about to enqueue something does so first: fewer and larger passes, batches and letters under load; alone, it returns at once.
		runtime.Gosched()
		worked := s.Pump(i)
		if s.log.Write() || worked {
			continue
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
	}
}
