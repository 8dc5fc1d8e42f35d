package order

import (
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

func TestPublisherHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := rapid.IntRange(1, 8).Draw(t, "history")
		at := ids.Position(rapid.IntRange(0, 3).Draw(t, "loaded"))
		known := map[ids.Position]ids.Revision{} // since the last gap
		rev := ids.Revision(1)
		var p publisher
		p.init(&View{Position: at, Revision: rev}, history)
		if at > 0 {
			known[at] = rev
		}
		for range rapid.IntRange(0, 20).Draw(t, "publications") {
			var steps []step
			if rapid.IntRange(0, 5).Draw(t, "snapshot") == 0 {
				at += ids.Position(rapid.IntRange(2, 9).Draw(t, "skip"))
				rev += 9
				clear(known)
				known[at] = rev
				steps = []step{{at, rev}}
			} else {
				for range rapid.IntRange(0, 3).Draw(t, "steps") {
					at++
					rev += ids.Revision(rapid.IntRange(0, 2).Draw(t, "writes"))
					known[at] = rev
					steps = append(steps, step{at, rev})
				}
			}
			p.publish(&View{Position: at, Revision: rev}, steps)
			for q := ids.Position(0); q <= at+1; q++ {
				want, ok := known[q]
				ok = ok && at-q < ids.Position(history)
				if got, gotOK := p.revisionAt(q); gotOK != ok || ok && got != want {
					t.Fatalf("revision at %d of %d: %d, %v; want %d, %v", q, at, got, gotOK, want, ok)
				}
			}
		}
	})
}

// TestWaitApplied waits from several goroutines while positions are published: each waiter is called once, with a pair that
// belongs together.
func TestWaitApplied(t *testing.T) {
	var p publisher
	p.init(&View{Revision: 1}, 4)
	const last = 500
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range last {
				at := ids.Position((i*7+g)%last + 1)
				wg.Add(1)
				p.wait(at, func(q ids.Position, rev ids.Revision) {
					defer wg.Done()
					if q < at || ids.Revision(q) != rev-1 {
						t.Errorf("waited for %d, got (%d, %d)", at, q, rev)
					}
				})
				p.revisionAt(at)
			}
		})
	}
	for q := ids.Position(1); q <= last; q++ {
		p.publish(&View{Position: q, Revision: ids.Revision(q) + 1}, []step{{q, ids.Revision(q) + 1}})
	}
	wg.Wait()
}

func TestRouting(t *testing.T) {
	r := NewRouting([]*braidpb.RangeDescriptor{
		{Id: 3, Start: []byte("m")}, {Id: 1, End: []byte("c")}, {Id: 2, Start: []byte("c"), End: []byte("m")},
	})
	for _, c := range []struct {
		key  string
		want uint64
	}{{"", 1}, {"a", 1}, {"bzz", 1}, {"c", 2}, {"c\x00", 2}, {"lzz", 2}, {"m", 3}, {"zz", 3}} {
		if got := r.Lookup([]byte(c.key)).GetId(); got != c.want {
			t.Errorf("%q is in range %d, want %d", c.key, got, c.want)
		}
	}
	for _, c := range []struct{ start, end, want string }{
		{"", "", "[1 2 3]"}, {"a", "b", "[1]"}, {"a", "c", "[1]"}, {"a", "c\x00", "[1 2]"}, {"c", "m", "[2]"}, {"c", "", "[2 3]"},
		{"b", "z", "[1 2 3]"}, {"z", "", "[3]"}, {"m", "m\x00", "[3]"}, {"d", "d", "[]"}, {"d", "c", "[]"},
	} {
		ids := []uint64{}
		for _, d := range r.Overlapping([]byte(c.start), []byte(c.end)) {
			ids = append(ids, d.GetId())
		}
		if got := fmt.Sprint(ids); got != c.want {
			t.Errorf("[%q, %q) overlaps %s, want %s", c.start, c.end, got, c.want)
		}
	}
	if r.ByID(2).GetId() != 2 || r.ByID(9) != nil {
		t.Error("ByID")
	}
	empty := NewRouting(nil)
	if empty.Lookup([]byte("a")) != nil || len(empty.Overlapping(nil, nil)) != 0 {
		t.Error("an empty routing has ranges")
	}
}
