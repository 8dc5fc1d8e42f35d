package order

import (
	"slices"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	braidpb "github.com/braidkv/braid/proto"
)

// applyCut orders what the segments cover, ranges in ascending ID, seqs in order, and drops items that are now flushed
// on a majority.
func (s *State) applyCut(c *braidpb.Cut) {
	segments := c.GetSegments()
	var boxes []itemBox // one allocation for all
	if len(segments) > 0 {
		boxes = make([]itemBox, len(segments))
	}
	var last uint64
	for i, g := range segments {
		if g.GetRange() <= last { // not Check: that its arguments escape costs more than the rest
			invariant.Fail("O2", "cut %d: range %d after range %d", s.at.Position, g.GetRange(), last)
		}
		last = g.GetRange()
		if r := s.find(ids.RangeID(last)); r != nil && ids.Seq(g.GetThrough()) > r.ordered {
			s.applySegment(r, g, &boxes[i])
		}
	}
	for _, m := range c.GetFlushed() {
		s.applyFlushed(m)
	}
}

// applySegment gives the seqs in (ordered, through] their revisions. The segment describes all seqs above what its proposer
// had applied, so at least those.
func (s *State) applySegment(r *rangeState, g *braidpb.Segment, free *itemBox) {
	from, through := r.ordered, ids.Seq(g.GetThrough())
	if ids.Seq(g.GetBase()) > from {
		invariant.Fail("O2", "cut %d: range %d is at seq %d, the segment begins at %d", s.at.Position, r.id, from, g.GetBase())
	}
	voids := s.voids(r, g)
	b := s.box(r, free) // another one if the entry has told the range something before
	free.item.Kind, free.kind.Seqs = &free.kind, &free.seqs
	free.seqs.From, free.seqs.Through, free.seqs.Voids = uint64(from), uint64(through), voids
	free.seqs.FirstRevision = int64(s.revision) + 1
	b.items.Items = append(b.items.Items, &free.item)
	s.revision += ids.Revision(uint64(through-from) - uint64(len(voids)))
	r.ordered = through
}

// voids lists the seqs above what is ordered that take no revision: stamped with another generation or auth revision
// than the present ones, or naming a lease that is gone.
func (s *State) voids(r *rangeState, g *braidpb.Segment) (voids []*braidpb.Void) {
	if s.mutation.has(NoVoid) {
		return nil
	}
	done, through := uint64(r.ordered), g.GetThrough()
	for _, run := range g.GetRuns() {
		end := min(run.GetThrough(), through)
		if end <= done {
			continue
		}
		switch {
		case ids.Generation(run.GetGeneration()) != r.generation:
			voids = appendVoids(voids, done, end, braidpb.VoidReason_VOID_GENERATION)
		case ids.AuthRevision(run.GetAuthRevision()) != s.auth:
			voids = appendVoids(voids, done, end, braidpb.VoidReason_VOID_AUTH)
		default:
			voids = s.leaseVoids(voids, run, done, end)
		}
		done = end
	}
	if done != through {
		invariant.Fail("O2", "cut %d: range %d: runs end at seq %d of %d", s.at.Position, r.id, done, through)
	}
	return voids
}

func appendVoids(voids []*braidpb.Void, after, through uint64, why braidpb.VoidReason) []*braidpb.Void {
	for q := after + 1; q <= through; q++ {
		voids = append(voids, &braidpb.Void{Seq: q, Reason: why})
	}
	return voids
}

func (s *State) leaseVoids(voids []*braidpb.Void, run *braidpb.Run, after, through uint64) []*braidpb.Void {
	for _, l := range run.GetLeases() {
		q := l.GetSeq()
		if q <= after || q > through || !s.leaseGone(ids.LeaseID(l.GetLease())) {
			continue
		}
		if n := len(voids); n > 0 && voids[n-1].GetSeq() == q {
			continue // it names several leases
		}
		voids = append(voids, &braidpb.Void{Seq: q, Reason: braidpb.VoidReason_VOID_LEASE})
	}
	return voids
}

// leaseGone tells whether a lease does not exist or is fenced, as of now. There are no leases yet.
func (s *State) leaseGone(ids.LeaseID) bool { return true }

// applyFlushed takes note of a replica's durable frontier, and drops the items which a majority of the replicas has
// applied durably. A replica that is further behind refills.
func (s *State) applyFlushed(m *braidpb.Flushed) {
	r := s.find(ids.RangeID(m.GetRange()))
	if r == nil {
		return
	}
	i := slices.IndexFunc(r.descriptor.GetReplicas(), func(x *braidpb.Replica) bool { return x.GetNode() == m.GetNode() })
	p := ids.Position(m.GetPosition())
	if i < 0 || p <= r.flushed[i] {
		return
	}
	// A frontier is at or below a position applied somewhere, so this cut comes after it.
	invariant.Check(p < s.at.Position, "O3", "cut %d: range %d is flushed through %d on node %x", s.at.Position, r.id, p, m.GetNode())
	r.flushed[i] = p
	r.metaChanged = true
	s.dirty.touch(r)
	if d := r.queue.drop(majority(r.flushed)); d > r.newestDropped {
		r.newestDropped = d
	}
}

// majority is the highest position that more than half of the replicas have reached.
func majority(flushed []ids.Position) ids.Position {
	var stack [8]ids.Position
	f := append(stack[:0], flushed...)
	slices.Sort(f)
	return f[(len(f)-1)/2]
}
