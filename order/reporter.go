package order

import (
	"slices"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	braidpb "github.com/braidkv/braid/proto"
)

// reporter knows what the replicas of this node have to tell the order leader: what the ranges led here have
// committed and no applied cut covers, and how far replicas are flushed.
//
// A report is due when there is news, when the order leader has changed, and every few ticks until a cut that covers it is applied here. It says
// everything above what is ordered here, so a lost one is made up for by the next.
type reporter struct {
	node     ids.NodeID
	timing   Timing
	mutation Mutation

	tracks  []*track // ranges with a replica here, ascending
	due     bool     // some track is due
	marks   bool     // some track may have a flush mark to tell
	marksAt uint64   // tick at which marks no longer wait for company
}

// track is what is known of one range with a replica here.
type track struct {
	id    ids.RangeID
	term  ids.Term // of the range's leader, that is, of the last Progress
	begun bool     // there was Progress in this term
	runs  runs     // base: what is ordered in the applied order state, or the replica's if that is ahead of it

	due      bool
	sent     uint64  // tick of the last report
	reported ids.Seq // only for ReportOnce

	flushed  ids.Position // durable frontier of the replica
	markedAs ids.Position // last mark sent to this leader
	markSent uint64       // tick of that
}

// find is the track of a range, nil if it has no replica here.
func (p *reporter) find(id ids.RangeID) *track {
	i, ok := slices.BinarySearchFunc(p.tracks, id, func(t *track, id ids.RangeID) int {
		switch {
		case t.id < id:
			return -1
		case t.id > id:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return p.tracks[i]
}

// sync makes tracks for the ranges that have a replica here, and returns the new ones.
func (p *reporter) sync(s *State) (added []*rangeState) {
	for _, r := range s.ranges {
		if p.find(r.id) != nil || !slices.ContainsFunc(r.descriptor.GetReplicas(), func(x *braidpb.Replica) bool { return x.GetNode() == uint64(p.node) }) {
			continue
		}
		added = append(added, r)
		p.tracks = append(p.tracks, &track{id: r.id, runs: runs{base: r.ordered, through: r.ordered}, reported: r.ordered})
		slices.SortFunc(p.tracks, func(a, b *track) int {
			if a.id < b.id {
				return -1
			}
			return 1
		})
	}
	return added
}

// progress takes what a local leader says.
func (p *reporter) progress(x *Progress) {
	t := p.find(x.Range)
	if t == nil || x.Term < t.term {
		return
	}
	if x.Term > t.term {
		p.reset(t)
		t.term = x.Term
	}
	if x.From > t.runs.through {
		if t.begun {
			invariant.Fail("O1", "range %d: progress from seq %d, but only through %d is known", x.Range, x.From, t.runs.through)
		}
		t.runs.trim(x.From) // the replica has got its state from a node that is ahead of our order state
	}
	t.begun = true
	if x.Through <= t.runs.through {
		return
	}
	t.runs.extend(run{through: x.Through, generation: x.Generation, auth: x.AuthRevision, leases: x.Leases})
	t.due, p.due = true, true
}

// reset forgets what is not ordered.
func (p *reporter) reset(t *track) {
	base := t.runs.base
	t.runs.trim(t.runs.through)
	t.runs.base, t.runs.through = base, base
	t.due, t.begun = false, false
	t.reported = base
}

// ordered says what the applied order state has ordered of a range.
func (p *reporter) ordered(id ids.RangeID, s ids.Seq) {
	if t := p.find(id); t != nil {
		t.runs.trim(s)
		if t.runs.through == s {
			t.due = false
		}
	}
}

// flushed takes a mark.
func (p *reporter) flushed(m RangeFlushed, now uint64) {
	t := p.find(m.Range)
	if t == nil || m.Position <= t.flushed {
		return
	}
	t.flushed = m.Position
	if !p.marks {
		p.marks, p.marksAt = true, now+uint64(p.timing.MarkTicks)
	}
}

// markNews tells whether the replica is flushed further than the order state knows, and whether there are items that it could drop
// for it. If there are none the mark is kept to itself, otherwise an idle cluster would go on telling itself that nothing
// has changed; there may be some later, if the replica has got its state from a node that is ahead of our order state.
func (p *reporter) markNews(t *track, s *State) (news, useful bool) {
	r := s.find(t.id)
	known := r.flushedOn(p.node)
	news = t.flushed > known
	return news, news && known < r.newestItem
}

// flushedOn is the durable frontier known of the replica on a node.
func (r *rangeState) flushedOn(n ids.NodeID) ids.Position {
	for i, x := range r.descriptor.GetReplicas() {
		if x.GetNode() == uint64(n) {
			return r.flushed[i]
		}
	}
	return 0
}

// tick makes due what no cut has covered for some ticks.
func (p *reporter) tick(now uint64) {
	if p.mutation.has(ReportOnce) {
		return
	}
	for _, t := range p.tracks {
		if t.runs.through > t.runs.base && now >= t.sent+uint64(p.timing.ReportTicks) {
			t.due, p.due = true, true
		}
	}
}

// leaderChanged makes everything due, for the new leader knows nothing.
func (p *reporter) leaderChanged(now uint64) {
	for _, t := range p.tracks {
		if t.runs.through > t.runs.base && !p.mutation.has(ReportOnce) {
			t.due, p.due = true, true
		}
		t.markedAs = 0
	}
	p.marks, p.marksAt = true, now
}

// collect hands out what is due, as sent at a tick.
func (p *reporter) collect(now uint64, s *State, segment func(id ids.RangeID, base ids.Seq, list []run), mark func(id ids.RangeID, at ids.Position)) {
	marks := p.marks && (p.due || now >= p.marksAt)
	if !p.due && !marks {
		return
	}
	p.due = false
	again := false
	for _, t := range p.tracks {
		if t.due {
			t.due, t.sent = false, now
			base, list := t.runs.base, t.runs.list
			if p.mutation.has(ReportOnce) {
				base = max(base, t.reported)
				list, t.reported = t.runs.above(base), t.runs.through
			}
			segment(t.id, base, list)
		}
		if marks && t.flushed > 0 {
			news, useful := p.markNews(t, s)
			again = again || news
			if useful && (t.markedAs != t.flushed || now >= t.markSent+uint64(p.timing.MarkTicks)) {
				t.markedAs, t.markSent = t.flushed, now
				mark(t.id, t.flushed)
			}
		}
	}
	if marks {
		p.marks, p.marksAt = again, now+uint64(p.timing.MarkTicks)
	}
}
