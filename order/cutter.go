package order

import (
	"slices"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// cutter is what the order leader knows from the reports of its term, and which cuts it has proposed.
type cutter struct {
	mutation Mutation
	covers   []*cover // ascending range
	wanted   bool     // some cover has more than was proposed
	marks    bool     // some cover has flush marks
}

// cover is about one range. Invariant: runs.base <= proposed <= runs.through, and runs.base is what is ordered in the applied
// order state: a cut describes everything above, because those in flight may be lost.
type cover struct {
	id       ids.RangeID
	runs     runs
	proposed ids.Seq // what cuts of this term go through

	// held is a report that begins above what is known: the reporter has applied more of the log than we have. It
	// is looked at again when we have applied more, which saves waiting for its repetition.
	held *braidpb.Segment

	flushed []flushMark // ascending node
}

// flushMark is how far a replica is flushed; to go with the next cut.
type flushMark struct {
	node ids.NodeID
	at   ids.Position
}

// reset forgets everything: a new term begins.
func (c *cutter) reset() { *c = cutter{mutation: c.mutation} }

// cover is the one of a range; nil if there is no such range.
func (c *cutter) cover(id ids.RangeID, s *State) *cover {
	i, ok := slices.BinarySearchFunc(c.covers, id, func(x *cover, id ids.RangeID) int {
		switch {
		case x.id < id:
			return -1
		case x.id > id:
			return 1
		}
		return 0
	})
	if ok {
		return c.covers[i]
	}
	r := s.find(id)
	if r == nil {
		return nil
	}
	x := &cover{id: id, runs: runs{base: r.ordered, through: r.ordered}, proposed: r.ordered}
	c.covers = slices.Insert(c.covers, i, x)
	return x
}

// report takes a segment of another node's report: only if it leaves no gap to what is ordered here, or covered by reports of this
// term.
func (c *cutter) report(g *braidpb.Segment, s *State) {
	if x := c.cover(ids.RangeID(g.GetRange()), s); x != nil {
		c.take(x, g)
	}
}

func (c *cutter) take(x *cover, g *braidpb.Segment) {
	if ids.Seq(g.GetBase()) > x.runs.through && !c.mutation.has(AcceptGap) {
		if x.held == nil || x.held.GetThrough() <= g.GetThrough() {
			x.held = g
		}
		return
	}
	x.runs.addSegment(g)
	c.look(x)
}

// local takes what a local range has committed above base.
func (c *cutter) local(id ids.RangeID, base ids.Seq, list []run, s *State) {
	x := c.cover(id, s)
	if x == nil {
		return
	}
	if base > x.runs.through { // rare: our replica is ahead of our order state
		var mem segments
		mem.add(id, base, list[len(list)-1].through, list)
		c.take(x, mem.list()[0])
		return
	}
	x.runs.addAll(list)
	c.look(x)
}

func (c *cutter) look(x *cover) {
	if x.runs.through > x.proposed {
		c.wanted = true
	}
}

// ordered says what the applied order state has ordered.
func (c *cutter) ordered(id ids.RangeID, seq ids.Seq, s *State) {
	x := c.cover(id, s)
	if x == nil {
		return
	}
	x.runs.trim(seq)
	x.proposed = max(x.proposed, seq)
	if g := x.held; g != nil && ids.Seq(g.GetBase()) <= x.runs.through {
		x.held = nil
		c.take(x, g)
	}
}

// mark takes a flush mark.
func (c *cutter) mark(id ids.RangeID, m flushMark, s *State) {
	x := c.cover(id, s)
	if x == nil || m.at <= s.find(id).flushedOn(m.node) {
		return
	}
	c.marks = true
	i := slices.IndexFunc(x.flushed, func(y flushMark) bool { return y.node >= m.node })
	switch {
	case i < 0:
		x.flushed = append(x.flushed, m)
	case x.flushed[i].node == m.node:
		x.flushed[i].at = max(x.flushed[i].at, m.at)
	default:
		x.flushed = slices.Insert(x.flushed, i, m)
	}
}

// build fills in a cut over everything reported and not proposed; done must be called if it is proposed.
func (c *cutter) build(cut *braidpb.Cut, mem *segments) {
	mem.reset()
	cut.Flushed = cut.Flushed[:0]
	for _, x := range c.covers {
		if x.runs.through > x.proposed {
			list := x.runs.list
			if c.mutation.has(ThinRuns) {
				list = x.runs.above(x.proposed)
			}
			mem.add(x.id, x.runs.base, x.runs.through, list)
		}
		for _, m := range x.flushed {
			cut.Flushed = append(cut.Flushed, &braidpb.Flushed{Range: uint64(x.id), Node: uint64(m.node), Position: uint64(m.at)})
		}
	}
	cut.Segments = mem.list()
}

// done says that the last cut built was proposed.
func (c *cutter) done() {
	c.wanted, c.marks = false, false
	for _, x := range c.covers {
		x.proposed = x.runs.through
		x.flushed = x.flushed[:0]
	}
}
