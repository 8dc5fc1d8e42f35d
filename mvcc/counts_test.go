package mvcc_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
)

// TestCounts: a client that pages gets the count of the whole rest with each page, though only the first one is counted; other spans,
// revisions and ends are not confused.
func TestCounts(t *testing.T) {
	e := openEngines(t, vfs.NewMem())
	w, b := mvcc.NewWriter(e.Data), e.Data.NewBatch()
	w.Reset(b)
	const n = 100
	for i := range n {
		_, err := w.Put(mvcc.Put{Key: fmt.Appendf(nil, "k%03d", i), Rev: ids.Revision(i + 2)})
		must(t, err)
	}
	must(t, b.Commit(pebble.NoSync))
	must(t, w.Done())
	var c mvcc.Counts
	start, end := []byte("k"), []byte("l")
	const rev = 90 // sees k000 to k088
	pages := 0
	for {
		res, err := mvcc.Range(e.Data, mvcc.RangeOptions{Start: start, End: end, Rev: rev, Limit: 7})
		must(t, err)
		got, ok := c.Get(start, end, rev)
		if ok != (pages > 0) || ok && got != res.Count {
			t.Fatalf("page %d: count %d %v, want %d", pages, got, ok, res.Count)
		}
		last := res.KVs[len(res.KVs)-1].Key
		c.Page(last, end, rev, res.Count, int64(len(res.KVs)))
		pages++
		if start = append(last[:len(last):len(last)], 0); !res.More {
			break
		}
		for _, other := range []struct {
			start, end []byte
			rev        ids.Revision
		}{{start, end, rev + 1}, {start, []byte("m"), rev}, {start, nil, rev}, {last, end, rev}, {append(start[:len(start):len(start)], 'l'), nil, rev}} {
			if got, ok := c.Get(other.start, other.end, other.rev); ok {
				t.Errorf("count of %q to %q at %d: %d", other.start, other.end, other.rev, got)
			}
		}
	}
	if _, ok := c.Get(start, end, rev); ok || pages != 13 {
		t.Errorf("after %d pages a count behind the last one", pages)
	}
	must(t, b.Close())
	must(t, e.Close())
}

// TestCountsBound: old counts are forgotten, long keys are not remembered.
func TestCountsBound(t *testing.T) {
	var c mvcc.Counts
	for i := range 5000 {
		c.Page(fmt.Appendf(nil, "%d", i), nil, 5, 10, 3)
	}
	known := 0
	for i := range 5000 {
		n, ok := c.Get(fmt.Appendf(nil, "%d\x00", i), nil, 5)
		if ok && (n != 7 || i < 3000) {
			t.Fatalf("%d: %d", i, n)
		}
		if ok {
			known++
		}
	}
	if known != 1024 {
		t.Errorf("%d counts are known", known)
	}
	long := make([]byte, 5000)
	c.Page(long, nil, 5, 10, 3)
	if _, ok := c.Get(append(long, 0), nil, 5); ok {
		t.Error("the count behind a long key is known")
	}
}
