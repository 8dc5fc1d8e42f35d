package node

import "sync"

// background runs what must not hold up a worker (flushing the data engine, compaction walks,
// reading state for another node): one job at a time, first in, first out. Jobs are bounded by who
// posts them: each kind has at most one job a group in the queue.
type background struct {
	mu     sync.Mutex
	jobs   []func()
	wake   chan struct{}
	closed bool
}

func newBackground() *background { return &background{wake: make(chan struct{}, 1)} }

// post adds a job; after close it is dropped.
func (b *background) post(job func()) {
	b.mu.Lock()
	if !b.closed {
		b.jobs = append(b.jobs, job)
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *background) pending() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.jobs) > 0
}

// pump runs the oldest job and reports whether there was one.
func (b *background) pump() bool {
	b.mu.Lock()
	if len(b.jobs) == 0 {
		b.mu.Unlock()
		return false
	}
	job := b.jobs[0]
	b.jobs[0] = nil
	b.jobs = b.jobs[1:]
	b.mu.Unlock()
	job()
	return true
}

// run pumps until stop is closed.
func (b *background) run(stop <-chan struct{}) {
	for {
		for b.pump() {
			select {
			case <-stop:
				return
			default:
			}
		}
		select {
		case <-b.wake:
		case <-stop:
			return
		}
	}
}

// close drops all jobs that have not begun.
func (b *background) close() {
	b.mu.Lock()
	b.closed, b.jobs = true, nil
	b.mu.Unlock()
}
