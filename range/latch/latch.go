// Package latch keeps requests of one range apart that must not be evaluated at the same time.
//
// A request takes all its latches at once: on spans that its evaluation reads (R) and on spans that it writes (W). R conflicts with
// W; R-R and W-W do not: the order of two blind writes is the order of their seqs. What cannot be granted waits, and who comes later and
// conflicts with someone who waits, waits behind him, so nobody starves.
//
// A held latch becomes visible (Show) when its write has a seq and can be read by later evaluations. From then on it does not stand in
// the way of requests of the same kind (Pipelined): their evaluation reads the unordered write, and their seq
// comes later. It does stand in the way of all others: of range reads, which are evaluated on ordered state, and of locks, whose
// transaction may be ordered before the write.
//
//	             | held by a plain request   | visible                    | of a lock
//	Pipelined    | R x W                     | never, and its R not at all | R x W
//	Single       | R x W                     | its R x W of the other     | R x W      (its R x W of the visible one conflicts, its W x R does not)
//	Lock         | R x W                     | R x W                      | R x W
//
// A Set has no goroutines and is used by one. Keys and spans are kept, not copied: they must not change while the latch exists.
package latch

import (
	"bytes"
	"slices"
)

// ID names a latch in a Set; zero is none.
type ID uint64

// Kind says what the visibility of other latches means to a request.
type Kind uint8

// The kinds.
const (
	// Pipelined requests may be evaluated on visible writes.
	Pipelined Kind = iota
	// Single requests belong to one range and are evaluated on ordered state only.
	Single
	// Lock is for the parts of transactions over several ranges.
	Lock
)

// Span is [Start, End). A nil End means the single key Start; an empty, non-nil End the end of the key space.
type Span struct {
	Start, End []byte
}

// Point tells whether the span is a single key.
func (s Span) Point() bool { return s.End == nil }

// contains tells whether a key lies in the span.
func (s Span) contains(k []byte) bool {
	if s.Point() {
		return bytes.Equal(s.Start, k)
	}
	return bytes.Compare(s.Start, k) <= 0 && (len(s.End) == 0 || bytes.Compare(k, s.End) < 0)
}

// Overlaps tells whether two spans have a key in common.
func (s Span) Overlaps(t Span) bool {
	switch {
	case s.Point():
		return t.contains(s.Start)
	case t.Point():
		return s.contains(t.Start)
	}
	return (len(t.End) == 0 || bytes.Compare(s.Start, t.End) < 0) && (len(s.End) == 0 || bytes.Compare(t.Start, s.End) < 0)
}

// Request is what a request latches.
type Request struct {
	Reads, Writes []Span
	Kind          Kind
}

// latch is one request's.
type latch struct {
	id      ID
	req     Request
	held    bool
	visible bool
	blocks  int      // for a waiting latch: how many others stand in its way
	waiters []*latch // who waits for this one, in order of arrival; may hold latches that are gone
	gone    bool
}

// Set holds the latches of a range. The zero Set is not ready; use New.
type Set struct {
	last   ID
	all    map[ID]*latch
	points map[string][]*latch // latches by the single keys they name, in order of arrival
	spans  []*latch            // latches that name a span, in order of arrival
}

// New makes an empty set.
func New() *Set {
	return &Set{all: map[ID]*latch{}, points: map[string][]*latch{}}
}

// Len is the number of latches, waiting ones included.
func (s *Set) Len() int { return len(s.all) }

// Acquire takes latches. If not granted, they wait; Release and Show tell when they are.
func (s *Set) Acquire(req Request) (id ID, granted bool) {
	l := s.add(req)
	s.conflicts(l, func(o *latch) {
		l.blocks++
		o.waiters = append(o.waiters, l)
	})
	l.held = l.blocks == 0
	return l.id, l.held
}

// Inherit takes latches whatever others there are: for prepares that a new leader finds.
func (s *Set) Inherit(req Request) ID {
	l := s.add(req)
	l.held = true
	return l.id
}

func (s *Set) add(req Request) *latch {
	s.last++
	l := &latch{id: s.last, req: req}
	s.all[l.id] = l
	span := false
	for _, list := range [2][]Span{req.Reads, req.Writes} {
		for _, sp := range list {
			if !sp.Point() {
				span = true
				continue
			}
			at := s.points[string(sp.Start)]
			if n := len(at); n == 0 || at[n-1] != l {
				s.points[string(sp.Start)] = append(at, l)
			}
		}
	}
	if span {
		s.spans = append(s.spans, l)
	}
	return l
}

// conflicts visits every older latch that stands in l's way, each once, in order of arrival.
func (s *Set) conflicts(l *latch, visit func(*latch)) {
	var found []*latch
	consider := func(o *latch) {
		if o.id < l.id && stands(o, l) && !slices.Contains(found, o) {
			found = append(found, o)
		}
	}
	for _, list := range [2][]Span{l.req.Reads, l.req.Writes} {
		for _, sp := range list {
			if sp.Point() {
				for _, o := range s.points[string(sp.Start)] {
					consider(o)
				}
				continue
			}
			// A span may meet any point: spans are rare, so all latches are looked at.
			for _, at := range s.points {
				for _, o := range at {
					consider(o)
				}
			}
		}
	}
	for _, o := range s.spans {
		consider(o)
	}
	slices.SortFunc(found, func(a, b *latch) int { return int(a.id) - int(b.id) })
	for _, o := range found {
		visit(o)
	}
}

// stands tells whether an older latch stands in the way of a younger one.
func stands(older, younger *latch) bool {
	if older.held && older.visible {
		switch younger.req.Kind {
		case Pipelined:
			return false
		case Single:
			return meet(older.req.Writes, younger.req.Reads)
		}
	}
	return meet(older.req.Writes, younger.req.Reads) || meet(older.req.Reads, younger.req.Writes)
}

func meet(a, b []Span) bool {
	for _, x := range a {
		for _, y := range b {
			if x.Overlaps(y) {
				return true
			}
		}
	}
	return false
}

// Show marks a held latch as visible, and returns who is granted by that, in order of arrival.
func (s *Set) Show(id ID) []ID {
	l := s.all[id]
	if l == nil || !l.held || l.visible {
		return nil
	}
	before := *l
	l.visible = true
	return s.recheck(l, func(w *latch) bool { return stands(&before, w) && !stands(l, w) })
}

// Release lets a latch go, held or waiting, and returns who is granted by that, in order of arrival. An unknown ID does nothing.
func (s *Set) Release(id ID) []ID {
	l := s.all[id]
	if l == nil {
		return nil
	}
	delete(s.all, id)
	l.gone = true
	for _, list := range [2][]Span{l.req.Reads, l.req.Writes} {
		for _, sp := range list {
			if !sp.Point() {
				continue
			}
			at := s.points[string(sp.Start)]
			if i := slices.Index(at, l); i >= 0 {
				if len(at) == 1 {
					delete(s.points, string(sp.Start))
				} else {
					s.points[string(sp.Start)] = slices.Delete(at, i, i+1)
				}
			}
		}
	}
	if i := slices.Index(s.spans, l); i >= 0 {
		s.spans = slices.Delete(s.spans, i, i+1)
	}
	return s.recheck(l, func(*latch) bool { return true })
}

// recheck takes l out of the way of those of its waiters for which it is.
func (s *Set) recheck(l *latch, out func(*latch) bool) (granted []ID) {
	kept := l.waiters[:0]
	for _, w := range l.waiters {
		if w.gone {
			continue
		}
		if !out(w) {
			kept = append(kept, w)
			continue
		}
		if w.blocks--; w.blocks == 0 {
			w.held = true
			granted = append(granted, w.id)
		}
	}
	clear(l.waiters[len(kept):])
	l.waiters = kept
	return granted
}

// Held tells whether a latch is held.
func (s *Set) Held(id ID) bool {
	l := s.all[id]
	return l != nil && l.held
}

// Reset forgets all latches.
func (s *Set) Reset() {
	clear(s.all)
	clear(s.points)
	s.spans = nil
}
