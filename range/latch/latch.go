// Package latch keeps requests of one range apart that must not be evaluated at the same time.
//
// A request takes all its latches at once: on spans that its evaluation reads (R) and on spans that it writes (W). R conflicts with
// W; R-R and W-W do not: the order of two blind writes is the order of their seqs. What cannot be granted waits, and who comes later and
// conflicts with someone who waits, waits behind him, so nobody starves.
//
// A held latch becomes visible (Show) when its write has a seq and can be read by later evaluations. From then on it stands in the way of less: a
// Pipelined request is evaluated on top of the unordered write, and whatever belongs to this range alone gets a later seq, so nothing that was
// read is changed too early. Range reads (Single) are evaluated on ordered state, so they wait for the write. Locks are not helped at all: their
// transaction may be ordered before the write.
//
//	the younger is | the older waits, or is held | the older is visible
//	Pipelined      | R x W                       | nothing
//	Single         | R x W                       | W of the older x R of the younger
//	Lock           | R x W                       | R x W
//
// Locks and prepares are never shown.
//
// Single keys are what most requests latch: they cost a look into a hash table. A request that latches a span of keys is held against every
// latch there is, and every request against those that latch spans; these are few.
//
// A Set has no goroutines and is used by one. Its answers are a function of the calls made. Keys and spans are kept, not copied: they must not
// change while the latch exists. It has no limit of its own: its user bounds the requests.
package latch

import (
	"bytes"
	"cmp"
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
	visible bool     // implies held
	gone    bool     // released; who waited for it, or it for, may still know it
	blocks  int      // how many others stand in the way; zero exactly if held
	found   ID       // the last request in whose way it was found to stand
	waiters []*latch // in whose way it stands, in order of arrival
}

// modes is what a latch does somewhere.
type modes struct{ r, w bool }

// stands tells whether an older latch stands in the way of a younger one, given what they do at a place that they have in common.
func (o *latch) stands(does modes, younger *latch, y modes) bool {
	if o.visible {
		switch younger.req.Kind {
		case Pipelined:
			return false
		case Single:
			return does.w && y.r
		}
	}
	return does.w && y.r || does.r && y.w
}

// standsAnywhere is stands over all places.
func (o *latch) standsAnywhere(younger *latch) bool {
	return meet(o.req.Writes, younger.req.Reads) && o.stands(modes{w: true}, younger, modes{r: true}) ||
		meet(o.req.Reads, younger.req.Writes) && o.stands(modes{r: true}, younger, modes{w: true})
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

// Set holds the latches of a range. Use New.
type Set struct {
	last   ID
	all    map[ID]*latch
	points points
	spans  []*latch // those that name a span, in order of arrival
	found  []*latch // scratch
}

// New makes an empty set.
func New() *Set {
	return &Set{all: map[ID]*latch{}, points: newPoints()}
}

// Len is the number of latches, waiting ones included.
func (s *Set) Len() int { return len(s.all) }

// Acquire takes latches. If they are not granted, they wait; Release and Show tell when they are.
func (s *Set) Acquire(req Request) (id ID, granted bool) {
	l := s.enter(req)
	for _, o := range s.inTheWay(l) {
		l.blocks++
		o.waiters = append(o.waiters, l)
	}
	clear(s.found)
	s.add(l)
	l.held = l.blocks == 0
	return l.id, l.held
}

// Inherit takes latches whatever others there are: for prepares that a new leader finds.
func (s *Set) Inherit(req Request) ID {
	l := s.enter(req)
	s.add(l)
	l.held = true
	return l.id
}

func (s *Set) enter(req Request) *latch {
	s.last++
	l := &latch{id: s.last, req: req}
	s.all[l.id] = l
	return l
}

// add makes the latch known at its keys.
func (s *Set) add(l *latch) {
	span := false
	for w, list := range [2][]Span{l.req.Reads, l.req.Writes} {
		for i := range list {
			if list[i].Point() {
				s.points.add(list[i].Start, l, modes{r: w == 0, w: w == 1})
			} else {
				span = true
			}
		}
	}
	if span {
		s.spans = append(s.spans, l)
	}
}

// inTheWay finds the latches that stand in the way of one that is not yet added: each once, in order of arrival. They are valid until
// the next call.
func (s *Set) inTheWay(l *latch) []*latch {
	s.found = s.found[:0]
	find := func(o *latch) {
		if o.found != l.id {
			o.found = l.id
			s.found = append(s.found, o)
		}
	}
	for w, list := range [2][]Span{l.req.Reads, l.req.Writes} {
		does := modes{r: w == 0, w: w == 1}
		for i := range list {
			if list[i].Point() {
				if p := s.points.get(list[i].Start); p != nil {
					p.each(l, does, find)
				}
				continue
			}
			for _, p := range s.points.table {
				for ; p != nil; p = p.next {
					if list[i].contains(p.key()) {
						p.each(l, does, find)
					}
				}
			}
		}
	}
	for _, o := range s.spans {
		if o.standsAnywhere(l) {
			find(o)
		}
	}
	if len(s.found) > 1 { // the table has no order
		slices.SortFunc(s.found, func(a, b *latch) int { return cmp.Compare(a.id, b.id) })
	}
	return s.found
}

// Show marks a held latch as visible, and returns who is granted by that, in order of arrival.
func (s *Set) Show(id ID) []ID {
	l := s.all[id]
	if l == nil || !l.held || l.visible {
		return nil
	}
	l.visible = true
	if len(l.waiters) == 0 {
		return nil
	}
	return l.letPass(func(w *latch) bool { return !l.standsAnywhere(w) })
}

// Release lets a latch go, held or waiting, and returns who is granted by that, in order of arrival. An unknown ID does nothing.
func (s *Set) Release(id ID) []ID {
	l := s.all[id]
	if l == nil {
		return nil
	}
	delete(s.all, id)
	l.gone = true
	span := false
	for _, list := range [2][]Span{l.req.Reads, l.req.Writes} {
		for i := range list {
			if list[i].Point() {
				s.points.remove(list[i].Start, l)
			} else {
				span = true
			}
		}
	}
	if span {
		i := slices.Index(s.spans, l)
		s.spans = slices.Delete(s.spans, i, i+1)
	}
	return l.letPass(func(*latch) bool { return true })
}

// letPass takes l out of the way of some of those who wait for it.
func (l *latch) letPass(which func(*latch) bool) (granted []ID) {
	kept := l.waiters[:0]
	for _, w := range l.waiters {
		switch {
		case w.gone:
		case !which(w):
			kept = append(kept, w)
		default:
			if w.blocks--; w.blocks == 0 {
				w.held = true
				granted = append(granted, w.id)
			}
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

// Reset forgets all latches. IDs are not used again.
func (s *Set) Reset() {
	clear(s.all)
	s.points.reset()
	clear(s.spans)
	s.spans = s.spans[:0]
}
