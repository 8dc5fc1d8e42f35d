package router

import (
	"context"
	"errors"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	"github.com/braidkv/braid/range/eval"
)

// span is a span of user keys to be read: [start, end), an empty end being the end of the key space.
type span struct{ start, end []byte }

func spanOf(key, rangeEnd []byte) span { return span{key, eval.Bound(key, rangeEnd)} }

// errNoReplica says that a range has no replica on this node.
var errNoReplica = errors.New("router: a range has no replica on this node")

// linearizable finds a revision that contains everything answered before the call, at which the spans can be read here. It
// costs one wait.
func (s *Server) linearizable(ctx context.Context, spans []span) (ids.Revision, error) {
	var (
		rev     ids.Revision
		failure error
	)
	err := s.wait(ctx, func(done func()) {
		s.b.ReadIndex(func(p ids.Position, err error) {
			if err != nil {
				failure = err
				done()
				return
			}
			s.b.WaitApplied(p, func(at ids.Position, r ids.Revision) {
				rev = r
				s.whenPassed(s.b.View(), spans, at, func(err error) {
					failure = err
					done()
				})
			})
		})
	})
	if err != nil {
		return 0, err // the callbacks may still come
	}
	return rev, failure
}

// whenPassed calls fn when the local replicas of all ranges that the spans touch have passed a published position.
func (s *Server) whenPassed(v *order.View, spans []span, p ids.Position, fn func(error)) {
	left, single := 1, true
	var mu sync.Mutex
	arrived := func() {
		mu.Lock()
		left--
		last := left == 0
		mu.Unlock()
		if last {
			fn(nil)
		}
	}
	for _, sp := range spans {
		for _, d := range v.Routing.Overlapping(sp.start, sp.end) {
			f := s.b.Frontier(ids.RangeID(d.GetId()))
			if f == nil {
				// fn is called once only: what has been asked to call arrived never brings left to zero.
				fn(errNoReplica)
				return
			}
			if f.Passed(p) {
				continue
			}
			single = false
			mu.Lock()
			left++
			mu.Unlock()
			f.Wait(p, arrived)
		}
	}
	if single {
		fn(nil)
		return
	}
	arrived()
}

// serializable finds the newest revision at which the spans can be read here without asking anybody.
func (s *Server) serializable(ctx context.Context, spans []span) (ids.Revision, error) {
	if err := s.wait(ctx, s.b.CaughtUp); err != nil {
		return 0, err
	}
	v, err := s.ready(ctx)
	if err != nil {
		return 0, err
	}
	// A header may have shown a revision that another node's leader has answered with.
	for v.Revision < ids.Revision(s.shown.Load()) {
		if err := s.nextPosition(ctx, v); err != nil {
			return 0, err
		}
		v = s.b.View()
	}
	floor := ids.Revision(s.shown.Load())
	p := s.through(v, spans)
	if p == v.Position {
		return v.Revision, nil
	}
	// Somebody lags: wait a little, then go lower, but never below what was shown.
	patience, cancel := context.WithTimeout(ctx, s.cfg.LagPatience)
	defer cancel()
	var failure error
	err = s.await(patience, func(done func()) {
		s.whenPassed(v, spans, v.Position, func(err error) {
			failure = err
			done()
		})
	})
	if err == nil {
		return v.Revision, failure
	}
	p = s.through(v, spans)
	if rev, ok := s.b.RevisionAt(p); ok && rev >= floor {
		return rev, nil
	}
	err = s.wait(ctx, func(done func()) {
		s.whenPassed(v, spans, v.Position, func(err error) {
			failure = err
			done()
		})
	})
	if err != nil {
		return 0, err
	}
	return v.Revision, failure
}

// through is the highest position, at most the view's, that all replicas concerned have passed.
func (s *Server) through(v *order.View, spans []span) ids.Position {
	p := v.Position
	for _, sp := range spans {
		for _, d := range v.Routing.Overlapping(sp.start, sp.end) {
			if f := s.b.Frontier(ids.RangeID(d.GetId())); f != nil {
				p = min(p, f.Through(v.Position))
			}
		}
	}
	return p
}

// point finds a revision to read at.
func (s *Server) point(ctx context.Context, serializable bool, spans []span) (ids.Revision, error) {
	if serializable {
		return s.serializable(ctx, spans)
	}
	if _, err := s.ready(ctx); err != nil {
		return 0, err
	}
	return s.linearizable(ctx, spans)
}

// checkRevision tells whether a revision can be read at all.
func checkRevision(at, now, compacted ids.Revision) error {
	switch {
	case at > now:
		return rpctypes.ErrGRPCFutureRev
	case at < compacted:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}
