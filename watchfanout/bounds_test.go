package watchfanout

import (
	"bytes"
	"fmt"
	"testing"
)

// TestProgressOfNew shows that a watch without a start revision has progress though nothing is written after it.
func TestProgressOfNew(t *testing.T) {
	w := newWorld(t)
	w.txn("a") // 2
	st := w.hub.NewStream(false, func() {})
	st.Create(Create{Start: []byte("a"), Progress: true}, 0)
	w.expect(st, "0@2 created; ")
	st.Progress(0)
	w.expect(st, "-1@2; ")
	w.hub.Tick(true, func(*Stream) error { return nil })
	w.expect(st, "0@2; ")
	// Nobody is told of progress below the revision that "created" had, nor, as in etcd, below a start revision.
	ahead := w.hub.NewStream(false, func() {})
	ahead.Create(Create{Start: []byte("a")}, 4)
	ahead.Create(Create{Start: []byte("b"), Revision: 5}, 0)
	w.expect(ahead, "0@4 created; 1@2 created; ")
	ahead.Progress(0)
	w.expect(ahead, "")
	w.txn("A") // 3, of no watch
	w.txn("A") // 4
	w.expect(ahead, "")
	w.txn("A") // 5
	w.expect(ahead, "-1@5; ")
}

// TestLargeRound shows that what is read at once is bounded in bytes, however much there is, and that nothing is lost.
func TestLargeRound(t *testing.T) {
	w := newWorld(t)
	st := w.hub.NewStream(false, func() {})
	st.Create(Create{Start: []byte("a")}, 0)
	w.expect(st, "0@1 created; ")
	const n, size = 100, 200 << 10
	for i := range n { // a range lags meanwhile
		w.txn(fmt.Sprintf("k%03d%s", i, bytes.Repeat([]byte{'x'}, size)))
	}
	seen := 0
	for range 20 {
		w.pump()
		if st.bytes > streamBytes+roundBytes {
			t.Fatalf("%d bytes wait", st.bytes)
		}
		rs, _ := st.Take()
		for _, r := range rs {
			if r.size > roundBytes+2*size {
				t.Fatalf("a response of %d bytes", r.size)
			}
			for _, e := range r.Events {
				if seen++; e.Kv.ModRevision != int64(seen+1) {
					t.Fatalf("revision %d as event %d", e.Kv.ModRevision, seen)
				}
			}
		}
	}
	if seen != n {
		t.Errorf("%d of %d events", seen, n)
	}
}

// TestStuck shows that a stream which has room, but not for the revision that comes next, does not hold up watches that are ahead.
func TestStuck(t *testing.T) {
	w := newWorld(t)
	big := bytes.Repeat([]byte{'x'}, 500<<10)
	var all []string
	for i := range 20 {
		k := fmt.Sprintf("k%02d%s", i, big)
		w.txn(k)
		all = append(all, "-"+k)
	}
	slow, other := w.hub.NewStream(false, func() {}), w.hub.NewStream(false, func() {})
	slow.Create(Create{Start: []byte("k"), End: []byte("l"), PrevKV: true}, 0)
	w.pump()
	_, _ = slow.Take()
	w.txn("k" + string(big)) // waits
	w.pump()
	w.txn(all...) // does not fit as well
	w.pump()
	for range 2 * roundRevisions {
		w.txn("q")
	}
	w.txn("z")
	w.pump()
	other.Create(Create{Start: []byte("z"), Revision: w.rev}, 0)
	w.expect(other, fmt.Sprintf("0@%d created; 0@%d +z@%d; ", w.rev, w.rev, w.rev))
	seen := 0
	for range 5 {
		rs, _ := slow.Take()
		for _, r := range rs {
			seen += len(r.Events)
		}
		w.pump()
	}
	if seen != 1+len(all) {
		t.Errorf("the slow one has seen %d of %d", seen, 1+len(all))
	}
}
