package watchfanout

import (
	"bytes"
	"slices"
)

// spans finds the groups whose spans contain a key: a balanced tree in a slice ordered by the spans' starts, where each node knows the greatest end
// below it. It is made anew when groups have come or gone.
type spans struct {
	groups []*group
	ends   [][]byte // of the subtree whose root is at the same place; nil: the end of the key space
}

func newSpans(groups map[spanKey]*group) *spans {
	s := &spans{groups: make([]*group, 0, len(groups)), ends: make([][]byte, len(groups))}
	for _, g := range groups {
		s.groups = append(s.groups, g)
	}
	slices.SortFunc(s.groups, func(a, b *group) int {
		if c := bytes.Compare(a.start, b.start); c != 0 {
			return c
		}
		return bytes.Compare(a.end, b.end)
	})
	s.build(0, len(s.groups))
	return s
}

// build fills in the ends of the subtree over [lo, hi).
func (s *spans) build(lo, hi int) (end []byte, unbounded bool) {
	if lo >= hi {
		return []byte{}, false
	}
	mid := (lo + hi) / 2
	end, unbounded = s.groups[mid].end, len(s.groups[mid].end) == 0
	for _, half := range [2][2]int{{lo, mid}, {mid + 1, hi}} {
		e, u := s.build(half[0], half[1])
		unbounded = unbounded || u
		if bytes.Compare(e, end) > 0 {
			end = e
		}
	}
	if unbounded {
		end = nil
	}
	s.ends[mid] = end
	return end, unbounded
}

// visit calls fn with every group whose span contains the key.
func (s *spans) visit(key []byte, fn func(*group)) { s.visitIn(0, len(s.groups), key, fn) }

func (s *spans) visitIn(lo, hi int, key []byte, fn func(*group)) {
	for lo < hi {
		mid := (lo + hi) / 2
		if e := s.ends[mid]; e != nil && bytes.Compare(key, e) >= 0 {
			return // all of them end before
		}
		s.visitIn(lo, mid, key, fn)
		g := s.groups[mid]
		if bytes.Compare(key, g.start) < 0 {
			return // this one and all to the right start behind
		}
		if len(g.end) == 0 || bytes.Compare(key, g.end) < 0 {
			fn(g)
		}
		lo = mid + 1
	}
}

// hull is the least span that contains all groups.
func (s *spans) hull() (start, end []byte) {
	if len(s.groups) == 0 {
		return nil, nil
	}
	return s.groups[0].start, s.ends[len(s.groups)/2]
}
