package ranges

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/storage/key"
)

// TestDeque compares with a slice.
func TestDeque(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d deque[int]
		var want []int
		for i := range rapid.IntRange(0, 100).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 3).Draw(t, "op"); {
			case op < 2 || len(want) == 0:
				d.PushBack(i)
				want = append(want, i)
			case op == 2:
				if got := d.PopFront(); got != want[0] {
					t.Fatalf("front is %d, want %d", got, want[0])
				}
				want = want[1:]
			default:
				if got := d.PopBack(); got != want[len(want)-1] {
					t.Fatalf("back is %d, want %d", got, want[len(want)-1])
				}
				want = want[:len(want)-1]
			}
			if d.Len() != len(want) {
				t.Fatalf("length %d, want %d", d.Len(), len(want))
			}
			for i := range want {
				if *d.At(i) != want[i] {
					t.Fatalf("element %d is %d, want %d", i, *d.At(i), want[i])
				}
			}
		}
	})
}

// TestOverlay compares what the overlay says of a key with the list of its writes.
func TestOverlay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOverlay()
		var all []*unordered // of one key, by seq
		for i := range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 4).Draw(t, "op"); {
			case op < 3 || len(all) == 0:
				u := &unordered{key: []byte("k"), seq: ids.Seq(i), delete: rapid.IntRange(0, 3).Draw(t, "delete") == 0, auth: ids.AuthRevision(rapid.IntRange(0, 3).Draw(t, "auth") / 3)}
				o.push(u)
				all = append(all, u)
			case op == 3:
				o.remove(all[0])
				all = all[1:]
			default:
				o.remove(all[len(all)-1])
				all = all[:len(all)-1]
			}
			c := o.get([]byte("k"))
			if len(all) == 0 {
				if c != nil {
					t.Fatal("something is left")
				}
				continue
			}
			newest := all[len(all)-1]
			mixed, versions, created := false, int64(0), false
			for _, u := range all {
				mixed = mixed || u.auth != newest.auth
				if versions++; u.delete {
					versions, created = 0, true
				}
			}
			if n, cr := c.versions(); c.newest != newest || c.mixed() != mixed || n != versions || cr != created {
				t.Fatalf("mixed %v, versions %d, created %v, want %v, %d, %v", c.mixed(), n, cr, mixed, versions, created)
			}
		}
	})
}

// TestFrontier compares with the definition: p is passed if no pending position is at or below it.
func TestFrontier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := NewFrontier(3)
		applied := ids.Position(3)
		pending := map[ids.Position]bool{}
		passed := func(p ids.Position) bool {
			for q := range pending {
				if q <= p {
					return false
				}
			}
			return true
		}
		woken := map[ids.Position]bool{}
		waiting := map[ids.Position]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			p := ids.Position(rapid.Uint64Range(1, 30).Draw(t, "p"))
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				f.Enqueue(p)
				if p > applied {
					pending[p] = true
				}
			case 1:
				f.Advance(p)
				applied = max(applied, p)
				for q := range pending {
					if q <= p {
						delete(pending, q)
					}
				}
			default:
				if !waiting[p] && !woken[p] {
					waiting[p] = true
					f.Wait(p, func() { woken[p] = true })
				}
			}
			for p := range waiting {
				if passed(p) && !woken[p] {
					t.Fatalf("%d is passed, who waits for it is not woken", p)
				}
			}
			for p := ids.Position(0); p < 32; p++ {
				if f.Passed(p) != passed(p) {
					t.Fatalf("passed %d is %v", p, f.Passed(p))
				}
				if through := f.Through(p); !passed(through) || through > p || through < p && passed(through+1) {
					t.Fatalf("through %d is %d", p, through)
				}
			}
			if f.Newest() != applied {
				t.Fatalf("newest is %d, want %d", f.Newest(), applied)
			}
		}
	})
}

// TestTail shows what may be truncated: all but the entries and the bytes that are kept, whichever is less, and what a follower that is heard of
// lacks, up to a multiple of them.
func TestTail(t *testing.T) {
	for _, c := range []struct {
		name           string
		entries, size  int
		flushed, held  ids.Index
		keep           Limits
		least, highest ids.Index // of what goes
	}{
		{"few entries", 100, 10, 100, 1 << 40, Limits{KeepEntries: 1000, KeepBytes: 1 << 30}, 0, 0},
		{"by entries", 5000, 10, 4000, 1 << 40, Limits{KeepEntries: 1000, KeepBytes: 1 << 30}, 3000, 3000},
		{"by bytes", 5000, 10000, 4000, 1 << 40, Limits{KeepEntries: 1000, KeepBytes: 5 << 20}, 3400, 3500},
		{"nothing flushed", 5000, 10000, 0, 1 << 40, Limits{KeepEntries: 10, KeepBytes: 10}, 0, 0},
		{"large entries", 50, 4 << 20, 50, 1 << 40, Limits{KeepEntries: 1000, KeepBytes: 32 << 20}, 40, 42},
		{"a follower lags", 5000, 10, 4000, 2000, Limits{KeepEntries: 1000, KeepBytes: 1 << 30}, 2000, 2000},
		{"a follower lags far", 50000, 10, 45000, 2000, Limits{KeepEntries: 1000, KeepBytes: 1 << 30}, 13000, 13000},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tl tail
			for i := range c.entries {
				tl.add(ids.Index(i+1), c.size)
			}
			if got := tl.cut(c.flushed, c.held, &c.keep); got < c.least || got > c.highest {
				t.Errorf("cut through %d, want %d to %d", got, c.least, c.highest)
			}
			if got := tl.cut(c.flushed, c.held, &c.keep); got != 0 {
				t.Errorf("cut again through %d", got)
			}
		})
	}
}

func TestUnion(t *testing.T) {
	span := func(s string) *braidpb.Span {
		a, b, ranged := strings.Cut(s, "-")
		return &braidpb.Span{Start: []byte(a), End: []byte(b), ToEnd: ranged && b == ""}
	}
	for in, want := range map[string]string{
		"a":           "[a,a\x00)",
		"a a":         "[a,a\x00)",
		"b-d a-c":     "[a,d)",
		"a-c c-d":     "[a,d)",
		"a-b c-d":     "[a,b)[c,d)",
		"a-c b":       "[a,c)",
		"c- a-b d":    "[a,b)[c,)",
		"c-a b":       "[b,b\x00)",
		"a-d b-c":     "[a,d)",
		"b- a-c d-e ": "[a,)",
	} {
		var spans []*braidpb.Span
		for _, s := range strings.Fields(in) {
			spans = append(spans, span(s))
		}
		got := ""
		for _, s := range union(spans) {
			got += fmt.Sprintf("[%s,%s)", s.Start, s.End)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// TestCorruptRecord shows that a replica with a record that it cannot read refuses to start, and names it.
func TestCorruptRecord(t *testing.T) {
	for what, v := range map[byte][]byte{
		recordCursor: {9}, recordConf: {recordFormat, 0xff}, recordPrepared: {recordFormat, 0x12, 0x01, 0x77}, recordDecided: {},
	} {
		c := newCluster(1, nil)
		m := c.nodes[0]
		k := key.Replica(7, what)
		if what == recordPrepared || what == recordDecided {
			k = key.Replica(7, what, appendTxn(nil, ids.TxnID{Node: 1})...)
		}
		if err := m.eng.Data.Set(k, v, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		_, _, err := New(Config{Descriptor: c.descriptor(), Node: 1}, m)
		if err == nil || !strings.Contains(err.Error(), "corrupt") {
			t.Errorf("record %q: %v", what, err)
		}
		c.close()
	}
}

func TestConfigFaults(t *testing.T) {
	_, _, err := New(Config{Limits: Limits{MaxWaiting: -1}, Timing: Timing{LockTicks: -1}}, nil)
	for _, want := range []string{"no ID", "no generation", "node has no ID", "limit is negative", "timing is negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// TestInvariants shows that a log that is not what this package writes stops the process.
func TestInvariants(t *testing.T) {
	payload := func(term ids.Term, first ids.Seq) []byte {
		return encodeAll(stamp{term: term, gen: 1, auth: 1}, first, [][]op{{{key: []byte("k")}}})
	}
	items := func(p, from, through uint64) []any {
		return []any{Dispatch{&braidpb.Items{Position: p, Items: []*braidpb.Item{{Kind: &braidpb.Item_Seqs{Seqs: &braidpb.SeqsItem{From: from, Through: through, FirstRevision: 2}}}}}}}
	}
	for _, c := range []struct {
		name, want string
		run        func(r *Replica)
	}{
		{"stamped with another term", "seq", func(r *Replica) { r.Deliver([]Entry{{Index: 2, Term: 3, Data: payload(2, 1)}}) }},
		{"gap", "seq", func(r *Replica) {
			r.Deliver([]Entry{{Index: 2, Term: 2, Data: payload(2, 1)}, {Index: 3, Term: 2, Data: payload(2, 3)}})
		}},
		{"again", "seq", func(r *Replica) {
			r.Deliver([]Entry{{Index: 2, Term: 2, Data: payload(2, 1)}, {Index: 3, Term: 2, Data: payload(2, 1)}})
		}},
		{"items with a gap", "O3", func(r *Replica) {
			r.Deliver([]Entry{{Index: 2, Term: 2, Data: payload(2, 1)}, {Index: 3, Term: 2, Data: payload(2, 2)}})
			r.Handle(items(1, 1, 2))
			r.Flush()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(1, nil)
			defer cl.close()
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, "invariant "+c.want+" ") {
					t.Errorf("got %s", p)
				}
			}()
			r := cl.nodes[0].rep
			r.Deliver([]Entry{{Index: 1, Term: 1}})
			c.run(r)
		})
	}
}

// TestMalformedEntry shows that an entry which cannot be read stops the node and not the process.
func TestMalformedEntry(t *testing.T) {
	c := newCluster(1, nil)
	defer c.close()
	c.nodes[0].rep.Deliver([]Entry{{Index: 1, Term: 1}, {Index: 2, Term: 1, Data: []byte("nonsense")}})
	if c.err == nil || !strings.Contains(c.err.Error(), "malformed payload") {
		t.Errorf("got %v", c.err)
	}
	c.nodes[0].rep.Flush() // does nothing
}

func TestReplicaNumbers(t *testing.T) {
	in := ConfState{Index: 4, Voters: []ids.ReplicaID{1, 2}, Learners: []ids.ReplicaID{3}, VotersOutgoing: []ids.ReplicaID{1}, LearnersNext: []ids.ReplicaID{2}, AutoLeave: true}
	r := confRecord(&in, 9)
	out := confState(r)
	if r.Term != 9 || out.Index != 4 || !slices.Equal(out.Voters, in.Voters) || !slices.Equal(out.Learners, in.Learners) ||
		!slices.Equal(out.VotersOutgoing, in.VotersOutgoing) || !slices.Equal(out.LearnersNext, in.LearnersNext) || !out.AutoLeave {
		t.Errorf("%+v becomes %+v", in, out)
	}
}
