package watchfanout

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/storage"
)

// world is a node: an engine, and how far each of two ranges, cut at "m", is.
type world struct {
	t         *testing.T
	e         *storage.Engines
	w         *mvcc.Writer
	rev       ids.Revision // the store's, and what is applied of it
	compacted ids.Revision
	removed   ids.Revision
	through   [2]ids.Revision
	hub       *Hub
}

func newWorld(t *testing.T) *world {
	e, err := storage.Open(storage.Options{FS: vfs.NewMem(), Dir: "data"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, e: e, w: mvcc.NewWriter(e.Data), rev: 1, through: [2]ids.Revision{1, 1}}
	w.hub = New(w, func() {})
	return w
}

func (w *world) Now() (rev, compacted ids.Revision) { return w.rev, w.compacted }
func (w *world) Removed() ids.Revision              { return w.removed }
func (w *world) Reader() mvcc.Reader                { return w.e.Data }

func (w *world) Through(start, end []byte) ids.Revision {
	at := w.rev
	if string(start) < "m" {
		at = min(at, w.through[0])
	}
	if len(end) == 0 || string(end) > "m" {
		at = min(at, w.through[1])
	}
	return at
}

// txn writes keys at the next revision; "-key" deletes. Both ranges have applied it.
func (w *world) txn(keys ...string) {
	w.t.Helper()
	w.write(keys...)
	w.through = [2]ids.Revision{w.rev, w.rev}
}

func (w *world) write(keys ...string) {
	w.t.Helper()
	rev := w.rev + 1
	b := w.e.Data.NewBatch()
	w.w.Reset(b)
	for i, k := range keys {
		var err error
		if k[0] == '-' {
			_, _, err = w.w.Delete([]byte(k[1:]), rev, uint32(i))
		} else {
			_, err = w.w.Put(mvcc.Put{Key: []byte(k), Value: fmt.Appendf(nil, "%s at %d", k, rev), Rev: rev, Sub: uint32(i)})
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		w.t.Fatal(err)
	}
	if err := w.w.Done(); err != nil {
		w.t.Fatal(err)
	}
	w.rev = rev
}

func (w *world) pump() {
	w.t.Helper()
	for {
		more, err := w.hub.Pump()
		if err != nil {
			w.t.Fatal(err)
		}
		again, err := w.hub.CatchUp()
		if err != nil {
			w.t.Fatal(err)
		}
		if !more && !again {
			return
		}
	}
}

// show takes what a stream has to send, as text.
func (w *world) show(st *Stream) string {
	w.t.Helper()
	out := ""
	rs, err := st.Take()
	for _, r := range rs {
		out += fmt.Sprintf("%d@%d", r.WatchId, r.Header.Revision)
		if r.Created {
			out += " created"
		}
		if r.Canceled {
			out += " canceled"
		}
		if r.CompactRevision != 0 {
			out += fmt.Sprintf(" compacted %d", r.CompactRevision)
		}
		if r.CancelReason != "" {
			out += " (" + r.CancelReason + ")"
		}
		for _, e := range r.Events {
			op := "+"
			if e.Type == mvccpb.Event_DELETE {
				op = "-"
			}
			out += fmt.Sprintf(" %s%s@%d", op, e.Kv.Key, e.Kv.ModRevision)
			if e.PrevKv != nil {
				out += fmt.Sprintf("(was @%d)", e.PrevKv.ModRevision)
			}
		}
		out += "; "
	}
	if err != nil {
		out += "ends: " + err.Error()
	}
	return out
}

func (w *world) expect(st *Stream, want string) {
	w.t.Helper()
	w.pump()
	if got := w.show(st); got != want {
		w.t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestWatches(t *testing.T) {
	w := newWorld(t)
	w.txn("a1")       // 2
	w.txn("a2", "z1") // 3
	st := w.hub.NewStream(false, func() {})
	st.Create(Create{Start: []byte("a"), End: []byte("b")}, 0)
	st.Create(Create{Start: []byte("a"), Revision: 2, PrevKV: true}, 0) // everything, from the past
	st.Create(Create{Start: []byte("z1"), End: []byte("z1\x00"), Revision: 5, NoPut: true}, 0)
	w.expect(st, "0@3 created; 1@3 created; 2@3 created; 1@3 +a1@2 +a2@3 +z1@3; ")
	w.txn("a1", "-z1") // 4: before the third one's start
	w.pump()
	if got := w.show(st); got != "0@4 +a1@4; 1@4 +a1@4(was @2) -z1@4(was @3); " && got != "1@4 +a1@4(was @2) -z1@4(was @3); 0@4 +a1@4; " {
		t.Error(got)
	}
	w.txn("z1") // 5: a put
	w.expect(st, "1@5 +z1@5; ")
	w.txn("-z1") // 6
	w.pump()
	if got := w.show(st); got != "1@6 -z1@6(was @5); 2@6 -z1@6; " && got != "2@6 -z1@6; 1@6 -z1@6(was @5); " {
		t.Error(got)
	}
	st.Cancel(1)
	st.Cancel(77)
	w.expect(st, "1@6 canceled; ")
	st.Create(Create{ID: 2, Start: []byte("a")}, 0)
	st.Create(Create{Start: []byte("b"), End: []byte("a")}, 0)
	st.Create(Create{Start: []byte("q")}, 9) // the node has told somebody of revision 9
	w.expect(st, "-1@6 created canceled (mvcc: duplicate watch ID provided on the WatchStream); -1@6 created canceled (mvcc: watcher range is empty); 3@9 created; ")
	st.Close()
	w.txn("a1")
	w.expect(st, "")
	if len(w.hub.groups)+len(w.hub.behind)+len(w.hub.streams) > 0 {
		t.Error("a closed stream leaves something behind")
	}
}

// TestFrontiers shows that a watch waits for the ranges of its span and for no others, and that progress does too.
func TestFrontiers(t *testing.T) {
	w := newWorld(t)
	w.txn("a", "z") // 2
	left, both := w.hub.NewStream(false, func() {}), w.hub.NewStream(false, func() {})
	left.Create(Create{Start: []byte("a"), End: []byte("b")}, 0)
	both.Create(Create{Start: []byte("a")}, 0)
	w.expect(left, "0@2 created; ")
	w.expect(both, "0@2 created; ")
	w.write("a", "z") // 3, which the right range has not applied
	w.write("a")      // 4
	w.through = [2]ids.Revision{4, 2}
	left.Progress(0)
	both.Progress(0)
	w.expect(left, "0@4 +a@3 +a@4; -1@4; ")
	w.expect(both, "")
	w.through[1] = 4
	w.expect(both, "0@4 +a@3 +z@3 +a@4; -1@4; ")
	w.write("z") // 5: nothing for the left one, whose progress follows all the same
	w.through = [2]ids.Revision{5, 5}
	left.Progress(0)
	w.expect(left, "-1@5; ")
	left.Progress(6) // some node has told of it
	w.expect(left, "")
	w.txn("z") // 6
	w.expect(left, "-1@6; ")
}

// TestCompacted shows that a watch below the compaction ends, and one at it does not.
func TestCompacted(t *testing.T) {
	w := newWorld(t)
	w.txn("a") // 2
	w.txn("a") // 3
	w.txn("b") // 4
	w.compacted, w.removed = 3, 3
	st := w.hub.NewStream(false, func() {})
	st.Create(Create{Start: []byte("a"), Revision: 2}, 0)
	w.expect(st, "0@4 created; 0@4 canceled compacted 3; ")
	st.Create(Create{Start: []byte("a"), Revision: 3}, 0)
	w.expect(st, "1@4 created; 1@4 +a@3 +b@4; ")
	// What was removed while nobody looked is not told as if it were all.
	w.write("a") // 5
	w.write("a") // 6
	w.compacted, w.removed, w.through = 6, 6, [2]ids.Revision{6, 6}
	w.expect(st, "1@6 canceled compacted 6; ")
}

// TestSlowReader shows that a full stream holds up nobody, takes bounded memory, and misses nothing.
func TestSlowReader(t *testing.T) {
	w := newWorld(t)
	slow, quick := w.hub.NewStream(false, func() {}), w.hub.NewStream(false, func() {})
	for _, st := range []*Stream{slow, quick} {
		st.Create(Create{Start: []byte("a")}, 0)
	}
	w.pump()
	seen := 0
	const n = 3 * streamBytes / (64 << 10)
	for i := range n {
		w.txn(fmt.Sprintf("k%d%s", i, bytes.Repeat([]byte{'x'}, 30<<10)))
		w.pump()
		rs, _ := quick.Take()
		for _, r := range rs {
			seen += len(r.Events)
		}
		if slow.bytes > streamBytes+(1<<20) {
			t.Fatalf("%d bytes wait", slow.bytes)
		}
	}
	if seen != n {
		t.Errorf("the quick one has seen %d of %d", seen, n)
	}
	slow.Progress(0)
	next, told := ids.Revision(2), false
	for range 100 {
		w.pump()
		rs, _ := slow.Take()
		for _, r := range rs {
			for _, e := range r.Events {
				if ids.Revision(e.Kv.ModRevision) != next {
					t.Fatalf("revision %d, want %d", e.Kv.ModRevision, next)
				}
				next++
			}
			if r.WatchId == allWatches {
				if told = true; next != w.rev+1 {
					t.Errorf("progress %d before event %d", r.Header.Revision, next)
				}
			}
		}
	}
	if next != w.rev+1 || !told {
		t.Errorf("through %d of %d, progress %v", next-1, w.rev, told)
	}
}

func TestTick(t *testing.T) {
	w := newWorld(t)
	w.txn("a") // 2
	st := w.hub.NewStream(true, func() {})
	st.Create(Create{Start: []byte("a"), Revision: 2, Progress: true}, 0)
	w.pump()
	_, _ = st.Take()
	fine := func(*Stream) error { return nil }
	w.hub.Tick(true, fine)
	w.expect(st, "") // it had an event
	w.hub.Tick(true, fine)
	w.expect(st, "0@2; ")
	w.hub.Tick(false, func(st *Stream) error {
		if st.RequireLeader {
			return fmt.Errorf("no leader")
		}
		return nil
	})
	w.expect(st, "ends: no leader")
}

// TestSpans compares the tree with a walk over all groups.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOfN(rapid.ByteRange('a', 'd'), 0, 3)
		groups := map[spanKey]*group{}
		for range rapid.IntRange(0, 20).Draw(t, "n") {
			g := &group{start: text.Draw(t, "start"), end: text.Draw(t, "end")}
			groups[spanKey{string(g.start), string(g.end)}] = g
		}
		s := newSpans(groups)
		for range 10 {
			k := text.Draw(t, "key")
			got := map[*group]bool{}
			s.visit(k, func(g *group) {
				if got[g] {
					t.Fatalf("%q-%q twice", g.start, g.end)
				}
				got[g] = true
			})
			start, end := s.hull()
			for _, g := range groups {
				if g.contains(k) != got[g] {
					t.Fatalf("%q in %q-%q: %v", k, g.start, g.end, got[g])
				}
				if g.contains(k) && !mvcc.Contains(start, end, k) {
					t.Fatalf("%q is outside of the hull %q-%q", k, start, end)
				}
			}
		}
	})
}

// TestRandom lets watches come, lag and go while ranges take turns, and compares what each gets with the history.
func TestRandom(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		type want struct {
			st         *Stream
			start, end string
			from, next ids.Revision
			told       ids.Revision
		}
		var wants []*want
		events := map[ids.Revision][]string{} // keys in order
		check := func(x *want) {
			rs, _ := x.st.Take()
			for _, resp := range rs {
				if resp.WatchId == allWatches {
					x.told = ids.Revision(resp.Header.Revision)
				}
				for _, e := range resp.Events {
					rev := ids.Revision(e.Kv.ModRevision)
					var mine []string
					for _, k := range events[rev] {
						if mvcc.Contains([]byte(x.start), []byte(x.end), []byte(k)) {
							mine = append(mine, k)
						}
					}
					i := 0
					for i < len(mine) && mine[i] != string(e.Kv.Key) {
						i++
					}
					if rev < x.next || rev <= x.told || i == len(mine) {
						t.Fatalf("seed %d: %q at %d after %d, progress %d", seed, e.Kv.Key, rev, x.next, x.told)
					}
					for at := x.next; at < rev; at++ {
						for _, k := range events[at] {
							if mvcc.Contains([]byte(x.start), []byte(x.end), []byte(k)) {
								t.Fatalf("seed %d: %q at %d was left out before %d", seed, k, at, rev)
							}
						}
					}
					if x.next = rev; i == len(mine)-1 {
						x.next = rev + 1
					}
				}
			}
		}
		for range 300 {
			switch p := r.IntN(10); {
			case p < 5:
				keys := []string{"a", "c", "n", "p", "z"}
				r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
				keys = keys[:1+r.IntN(3)]
				w.write(keys...)
				events[w.rev] = keys
			case p < 7:
				i := r.IntN(2)
				w.through[i] += ids.Revision(r.IntN(int(w.rev-w.through[i]) + 1))
			case p < 8 && len(wants) < 20:
				x := &want{st: w.hub.NewStream(false, func() {}), start: string(rune('a' + r.IntN(20)))}
				if r.IntN(2) == 0 {
					x.end = x.start + "zz"
				}
				x.from = ids.Revision(1 + r.IntN(int(w.rev)+3))
				x.next = x.from
				x.st.Create(Create{Start: []byte(x.start), End: []byte(x.end), Revision: x.from}, 0)
				wants = append(wants, x)
			default:
				w.pump()
				for _, x := range wants {
					if r.IntN(2) == 0 {
						check(x)
						x.st.Progress(0)
					}
				}
			}
		}
		w.through = [2]ids.Revision{w.rev, w.rev}
		w.pump()
		for _, x := range wants {
			check(x)
			for at := x.next; at <= w.rev; at++ {
				for _, k := range events[at] {
					if mvcc.Contains([]byte(x.start), []byte(x.end), []byte(k)) {
						t.Fatalf("seed %d: %q at %d is missing", seed, k, at)
					}
				}
			}
		}
	}
}
