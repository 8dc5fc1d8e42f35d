package order

import (
	"bytes"
	"sort"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// View is a picture of the order state at one position. It is immutable, and shared by all that ask.
type View struct {
	// Position and Revision belong together: Revision is the store's after Position.
	Position        ids.Position
	Revision        ids.Revision
	CompactRevision ids.Revision
	AuthRevision    ids.AuthRevision
	// Initialised tells whether the cluster has its ranges; before, Routing is empty.
	Initialised bool
	ClusterID   uint64
	Members     []*braidpb.Member // ascending ID; not to be changed
	Routing     *Routing

	// Term and Leader are the order group's, as this node knows them; they are not part of the state. Leader
	// is zero if none is known.
	Term   ids.Term
	Leader ids.NodeID
}

// Routing says which range has which span. The ranges cover the key space without gap or overlap. It is immutable.
type Routing struct {
	ranges []*braidpb.RangeDescriptor // ascending start
}

// NewRouting makes a routing of descriptors, which need not be in order and are not changed.
func NewRouting(ds []*braidpb.RangeDescriptor) *Routing {
	rs := append([]*braidpb.RangeDescriptor(nil), ds...)
	sort.Slice(rs, func(i, j int) bool { return bytes.Compare(rs[i].GetStart(), rs[j].GetStart()) < 0 })
	return &Routing{ranges: rs}
}

// Ranges are all descriptors, by ascending start; not to be changed.
func (r *Routing) Ranges() []*braidpb.RangeDescriptor { return r.ranges }

// Lookup is the range that has the key; nil if there are no ranges yet.
func (r *Routing) Lookup(key []byte) *braidpb.RangeDescriptor {
	if i := r.search(key); i >= 0 {
		return r.ranges[i]
	}
	return nil
}

// search is the last range that starts at or below the key; -1 if none does.
func (r *Routing) search(key []byte) int {
	lo, hi := 0, len(r.ranges)
	for lo < hi {
		mid := (lo + hi) / 2
		if bytes.Compare(r.ranges[mid].GetStart(), key) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// Overlapping are the ranges that have keys in [start, end), in ascending order; not to be changed. An empty end is the end of the
// key space.
func (r *Routing) Overlapping(start, end []byte) []*braidpb.RangeDescriptor {
	lo := max(0, r.search(start))
	hi := len(r.ranges)
	if len(end) > 0 {
		if bytes.Compare(start, end) >= 0 {
			return nil
		}
		hi = lo + sort.Search(len(r.ranges)-lo, func(i int) bool { return bytes.Compare(r.ranges[lo+i].GetStart(), end) >= 0 })
	}
	return r.ranges[lo:hi]
}

// ByID is the range of an ID; nil if there is none.
func (r *Routing) ByID(id ids.RangeID) *braidpb.RangeDescriptor {
	for _, d := range r.ranges {
		if d.GetId() == uint64(id) {
			return d
		}
	}
	return nil
}
