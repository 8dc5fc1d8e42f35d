package latch

import (
	"bytes"
	"hash/maphash"
	"slices"
)

// points finds latches by the single keys that they name. It is a hash table over bytes: a map of strings would need a copy of every
// key, since a latch's key is the caller's again when that latch is gone, while others at the key stay. The seed of the hash has no influence
// on results: whoever walks the table sorts what he finds.
type points struct {
	seed  maphash.Seed
	table map[uint64]*point
	free  *point // linked by next; at most maxFree
	nfree int
}

// maxFree bounds the points kept for use again.
const maxFree = 1024

// point is a key with the latches at it, in order of arrival, and at least one. Points whose keys have the same hash are linked.
type point struct {
	list []at
	next *point
}

// at is a latch at a key.
type at struct {
	l *latch
	modes
	k []byte // of this latch
}

func newPoints() points { return points{seed: maphash.MakeSeed(), table: map[uint64]*point{}} }

// key is the point's; it lives as long as the first latch at it.
func (p *point) key() []byte { return p.list[0].k }

// each visits the latches that stand in the way of one that does something here.
func (p *point) each(l *latch, does modes, visit func(*latch)) {
	for i := range p.list {
		if a := &p.list[i]; a.l.stands(a.modes, l, does) {
			visit(a.l)
		}
	}
}

func (t *points) get(k []byte) *point {
	p := t.table[maphash.Bytes(t.seed, k)]
	for p != nil && !bytes.Equal(p.key(), k) {
		p = p.next
	}
	return p
}

// add adds a latch, which is newer than all others, at a key.
func (t *points) add(k []byte, l *latch, does modes) {
	h := maphash.Bytes(t.seed, k)
	first := t.table[h]
	p := first
	for p != nil && !bytes.Equal(p.key(), k) {
		p = p.next
	}
	if p == nil {
		if p = t.free; p != nil {
			t.free, t.nfree = p.next, t.nfree-1
		} else {
			p = &point{}
		}
		p.next, t.table[h] = first, p
	}
	if n := len(p.list); n > 0 && p.list[n-1].l == l {
		a := &p.list[n-1]
		a.r, a.w = a.r || does.r, a.w || does.w
		return
	}
	p.list = append(p.list, at{l, does, k})
}

// remove removes a latch from a key, unless it is removed already.
func (t *points) remove(k []byte, l *latch) {
	h := maphash.Bytes(t.seed, k)
	first := t.table[h]
	var before *point
	p := first
	for ; p != nil && !bytes.Equal(p.key(), k); p = p.next {
		before = p
	}
	if p == nil {
		return
	}
	i := slices.IndexFunc(p.list, func(a at) bool { return a.l == l })
	if i < 0 {
		return
	}
	p.list = slices.Delete(p.list, i, i+1)
	switch {
	case len(p.list) > 0:
		return
	case before != nil:
		before.next = p.next
	case p.next != nil:
		t.table[h] = p.next
	default:
		delete(t.table, h)
	}
	p.next = nil
	if t.nfree < maxFree && cap(p.list) <= 16 {
		p.next, t.free, t.nfree = t.free, p, t.nfree+1
	}
}

func (t *points) reset() {
	clear(t.table)
	t.free, t.nfree = nil, 0
}
