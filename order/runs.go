package order

import (
	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// runs describes the committed seqs of a range in (base, through]: how each was stamped, and the leases it names. Such facts never
// change, so two descriptions of a seq are equal and it does not matter where one comes from.
//
// Bounded by what the range's leader lets be committed and not ordered.
type runs struct {
	base, through ids.Seq
	list          []run // ascending; the last ends at through
}

// run is a number of consecutive seqs stamped alike, up to and including through.
type run struct {
	through    ids.Seq
	generation ids.Generation
	auth       ids.AuthRevision
	leases     []SeqLease
}

// trim forgets the seqs at or below s, which are ordered.
func (r *runs) trim(s ids.Seq) {
	if s <= r.base {
		return
	}
	r.base = s
	if s >= r.through {
		r.through = s
		clear(r.list)
		r.list = r.list[:0]
		return
	}
	n := 0
	for r.list[n].through <= s {
		n++
	}
	if n > 0 {
		m := copy(r.list, r.list[n:])
		clear(r.list[m:])
		r.list = r.list[:m]
	}
	first := &r.list[0]
	for len(first.leases) > 0 && first.leases[0].Seq <= s {
		first.leases = first.leases[1:]
	}
}

// extend adds what x says about the seqs above through; x must begin at or below the first of them.
func (r *runs) extend(x run) {
	if x.through <= r.through {
		return
	}
	i := 0
	for i < len(x.leases) && x.leases[i].Seq <= r.through {
		i++
	}
	leases := x.leases[i:]
	r.through = x.through
	if n := len(r.list); n > 0 && r.list[n-1].generation == x.generation && r.list[n-1].auth == x.auth {
		last := &r.list[n-1]
		last.through = x.through
		last.leases = append(last.leases, leases...)
		return
	}
	x.leases = append([]SeqLease(nil), leases...) // nobody else's, to be extended
	r.list = append(r.list, x)
}

// addAll takes over what others say about the seqs above through.
func (r *runs) addAll(list []run) {
	for _, x := range list {
		r.extend(x)
	}
}

// addSegment takes over what a segment says about the seqs above through.
func (r *runs) addSegment(g *braidpb.Segment) {
	for _, x := range g.GetRuns() {
		if ids.Seq(x.GetThrough()) <= r.through {
			continue
		}
		y := run{through: ids.Seq(x.GetThrough()), generation: ids.Generation(x.GetGeneration()), auth: ids.AuthRevision(x.GetAuthRevision())}
		for _, l := range x.GetLeases() {
			y.leases = append(y.leases, SeqLease{Seq: ids.Seq(l.GetSeq()), Lease: ids.LeaseID(l.GetLease())})
		}
		r.extend(y)
	}
}

// above is what the list says about the seqs above s, and nothing of the others: what a cut must not be limited to.
func (r *runs) above(s ids.Seq) []run {
	var out []run
	for _, x := range r.list {
		if x.through <= s {
			continue
		}
		for len(x.leases) > 0 && x.leases[0].Seq <= s {
			x.leases = x.leases[1:]
		}
		out = append(out, x)
	}
	return out
}

// segments builds the segments of one message, using the memory of the one before again.
type segments struct {
	all  []*braidpb.Segment
	used int
}

func (b *segments) reset() { b.used = 0 }

func (b *segments) list() []*braidpb.Segment { return b.all[:b.used] }

// add adds a segment that describes the seqs in (base, through] by a list.
func (b *segments) add(id ids.RangeID, base, through ids.Seq, list []run) {
	if b.used == len(b.all) {
		b.all = append(b.all, &braidpb.Segment{})
	}
	g := b.all[b.used]
	b.used++
	g.Range, g.Base, g.Through = uint64(id), uint64(base), uint64(through)
	for len(g.Runs) < len(list) {
		g.Runs = append(g.Runs, &braidpb.Run{})
	}
	g.Runs = g.Runs[:len(list)]
	for i, x := range list {
		y := g.Runs[i]
		y.Through, y.Generation, y.AuthRevision = uint64(x.through), uint64(x.generation), uint64(x.auth)
		y.Leases = nil
		for _, l := range x.leases {
			y.Leases = append(y.Leases, &braidpb.SeqLease{Seq: uint64(l.Seq), Lease: int64(l.Lease)})
		}
	}
}
