package router

import (
	"errors"
	"sync/atomic"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	"github.com/braidkv/braid/range/eval"
)

// span is a span of user keys to be read: [start, end), an empty end being the end of the key space.
type span struct{ start, end []byte }

func spanOf(key, rangeEnd []byte) span { return span{key, eval.Bound(key, rangeEnd)} }

// errNoReplica says that a range has no replica on this node.
var errNoReplica = errors.New("router: a range has no replica on this node")

// point finds a revision to read the spans at, here.
func (c *call) point(serializable bool, spans []span) (ids.Revision, error) {
	if serializable {
		return c.serializable(spans)
	}
	if _, err := c.ready(); err != nil {
		return 0, err
	}
	return c.linearizable(spans)
}

// linearizable finds a revision that contains everything answered before the call, at which the spans can be read here. It
// costs one wait.
func (c *call) linearizable(spans []span) (ids.Revision, error) {
	var (
		rev     ids.Revision
		failure error
		b       = c.s.b
	)
	err := c.wait(func(done func()) {
		b.ReadIndex(func(p ids.Position, err error) {
			if err != nil {
				failure = err
				done()
				return
			}
			b.WaitApplied(p, func(at ids.Position, r ids.Revision) {
				rev = r
				c.s.whenPassed(b.View(), spans, at, func(err error) {
					failure = err
					done()
				})
			})
		})
	})
	if err != nil {
		return 0, err
	}
	return rev, failure
}

// whenPassed calls fn when the local replicas of all ranges that the spans touch have passed a published position.
func (s *Server) whenPassed(v *order.View, spans []span, p ids.Position, fn func(error)) {
	var left *atomic.Int32 // the ranges that are waited for, and one
	var arrived func()
	for _, sp := range spans {
		for _, d := range v.Routing.Overlapping(sp.start, sp.end) {
			f := s.b.Frontier(ids.RangeID(d.GetId()))
			if f == nil {
				fn(errNoReplica) // and never again: the one of left stays
				return
			}
			if f.Passed(p) {
				continue
			}
			if left == nil {
				left = &atomic.Int32{}
				left.Store(1)
				arrived = func() {
					if left.Add(-1) == 0 {
						fn(nil)
					}
				}
			}
			left.Add(1)
			f.Wait(p, arrived)
		}
	}
	if left == nil {
		fn(nil)
		return
	}
	arrived()
}

// serializable finds the newest revision at which the spans can be read here, asking nobody: never below one that the node has put into a
// header, nor below the compaction. A replica that lags behind the order state is waited for a little, if what it has would do.
func (c *call) serializable(spans []span) (ids.Revision, error) {
	s := c.s
	if !s.caughtUp.Load() {
		if err := c.wait(s.b.CaughtUp); err != nil {
			return 0, err
		}
		s.caughtUp.Store(true)
	}
	floor := ids.Revision(s.shown.Load())
	v, err := c.ready()
	if err != nil {
		return 0, err
	}
	for v.Revision < floor { // the leader of a range has answered a write, and its cut is still on the way to here
		if err := c.nextPosition(v, c.deadline); err != nil {
			return 0, err
		}
		v = s.b.View()
	}
	floor = max(floor, v.CompactRevision)
	err = c.passed(v, spans, c.s.clock.now.Load()+uint64(s.cfg.LagTicks))
	if !errors.Is(err, errTimedOut) {
		return v.Revision, err
	}
	if p, err := s.through(v, spans); err != nil {
		return 0, err
	} else if rev, ok := s.b.RevisionAt(p); ok && rev >= floor {
		return rev, nil
	}
	return v.Revision, c.passed(v, spans, c.deadline)
}

// passed waits until the spans can be read here at a view.
func (c *call) passed(v *order.View, spans []span, deadline uint64) error {
	var failure error
	err := c.waitUntil(deadline, func(done func()) {
		c.s.whenPassed(v, spans, v.Position, func(err error) {
			failure = err
			done()
		})
	})
	if err != nil {
		return err
	}
	return failure
}

// through is the highest position, at most the view's, that all replicas concerned have passed.
func (s *Server) through(v *order.View, spans []span) (ids.Position, error) {
	p := v.Position
	for _, sp := range spans {
		for _, d := range v.Routing.Overlapping(sp.start, sp.end) {
			f := s.b.Frontier(ids.RangeID(d.GetId()))
			if f == nil {
				return 0, errNoReplica
			}
			p = min(p, f.Through(v.Position))
		}
	}
	return p, nil
}

// compacted is the revision below which versions may have been missing from the data engine at the time of the call. A replica
// compacts when it applies the order log's item, which may be before the position is published: then the publication is
// waited for.
func (c *call) compacted(spans []span) (ids.Revision, error) {
	s := c.s
	v := s.b.View()
	newest := ids.Position(0)
	for _, sp := range spans {
		for _, d := range v.Routing.Overlapping(sp.start, sp.end) {
			if f := s.b.Frontier(ids.RangeID(d.GetId())); f != nil {
				newest = max(newest, f.Newest())
			}
		}
	}
	if newest > v.Position {
		err := c.wait(func(done func()) {
			s.b.WaitApplied(newest, func(ids.Position, ids.Revision) { done() })
		})
		if err != nil {
			return 0, err
		}
		v = s.b.View()
	}
	return v.CompactRevision, nil
}
