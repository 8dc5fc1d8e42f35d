package check

import (
	"bytes"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// writes is what a list of operations may write: keys put, ascending, and spans deleted, ascending and apart from each other.
//
// Lists are merged in linear time, once for each list that one is nested in. Widths of nested lists add up to at most the limit on operations,
// so the work is bounded by the size of the request times that limit.
type writes struct {
	puts [][]byte
	dels []deletion
}

// deletion is a span of deleted keys; a nil end is the end of the key space.
type deletion struct{ start, end []byte }

// contains tells whether a key at or above start lies in the span.
func (d deletion) contains(k []byte) bool { return d.end == nil || bytes.Compare(k, d.end) < 0 }

// deleted is the span that a deletion names; false if nothing can be in it.
func deleted(d *pb.DeleteRangeRequest) (deletion, bool) {
	key, end := d.GetKey(), d.GetRangeEnd()
	switch {
	case len(end) == 0:
		return deletion{key, append(append(make([]byte, 0, len(key)+1), key...), 0)}, true
	case len(end) == 1 && end[0] == 0:
		return deletion{key, nil}, true
	}
	return deletion{key, end}, bytes.Compare(key, end) < 0
}

// collect gathers what operations may write, those of nested transactions included. It reports false if a key might be put twice, or
// put and deleted.
//
// etcd finds neither a deletion "from key" nor one in a child of a transaction behind the child that puts the key. Here they count:
// a key has one version at a revision.
func collect(ops []*pb.RequestOp) (all writes, ok bool) {
	for _, o := range ops {
		switch r := o.GetRequest().(type) {
		case *pb.RequestOp_RequestDeleteRange:
			if d, some := deleted(r.RequestDeleteRange); some {
				all.dels = append(all.dels, d)
			}
		case *pb.RequestOp_RequestPut:
			all.puts = append(all.puts, r.RequestPut.GetKey())
		}
	}
	slices.SortFunc(all.puts, bytes.Compare)
	for i := 1; i < len(all.puts); i++ {
		if bytes.Equal(all.puts[i-1], all.puts[i]) {
			return writes{}, false
		}
	}
	slices.SortFunc(all.dels, func(a, b deletion) int { return bytes.Compare(a.start, b.start) })
	all.dels = joined(all.dels)
	if hit(all.puts, all.dels) {
		return writes{}, false
	}
	for _, o := range ops {
		t := o.GetRequestTxn()
		if t == nil {
			continue
		}
		then, ok := collect(t.GetSuccess())
		if !ok {
			return writes{}, false
		}
		otherwise, ok := collect(t.GetFailure())
		if !ok || all.meets(then) || all.meets(otherwise) {
			return writes{}, false
		}
		// What both branches write is no conflict: only one of them is taken.
		all = all.with(then).with(otherwise)
	}
	return all, true
}

// meets tells whether both put a key, or one deletes what the other puts.
func (w writes) meets(o writes) bool {
	for i, j := 0, 0; i < len(w.puts) && j < len(o.puts); {
		switch c := bytes.Compare(w.puts[i], o.puts[j]); {
		case c == 0:
			return true
		case c < 0:
			i++
		default:
			j++
		}
	}
	return hit(w.puts, o.dels) || hit(o.puts, w.dels)
}

// hit tells whether a key lies in one of the spans.
func hit(puts [][]byte, dels []deletion) bool {
	for _, k := range puts {
		for len(dels) > 0 && !dels[0].contains(k) {
			dels = dels[1:] // nor does it contain any key behind
		}
		if len(dels) == 0 {
			return false
		}
		if bytes.Compare(dels[0].start, k) <= 0 {
			return true
		}
	}
	return false
}

// with is what both write.
func (w writes) with(o writes) writes {
	return writes{
		puts: slices.CompactFunc(merged(w.puts, o.puts, bytes.Compare), bytes.Equal),
		dels: joined(merged(w.dels, o.dels, func(a, b deletion) int { return bytes.Compare(a.start, b.start) })),
	}
}

func merged[T any](a, b []T, compare func(a, b T) int) []T {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := make([]T, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if compare(b[0], a[0]) < 0 {
			out, b = append(out, b[0]), b[1:]
		} else {
			out, a = append(out, a[0]), a[1:]
		}
	}
	return append(append(out, a...), b...)
}

// joined makes one span of those that touch. They come by ascending start, in a slice that may be reused.
func joined(dels []deletion) []deletion {
	out := dels[:0]
	for _, d := range dels {
		n := len(out)
		if n == 0 || out[n-1].end != nil && bytes.Compare(out[n-1].end, d.start) < 0 {
			out = append(out, d)
			continue
		}
		if last := &out[n-1]; last.end != nil && (d.end == nil || bytes.Compare(last.end, d.end) < 0) {
			last.end = d.end
		}
	}
	return out
}
