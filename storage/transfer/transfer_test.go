package transfer_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/storage"
	"github.com/braidkv/braid/storage/key"
	"github.com/braidkv/braid/storage/transfer"
)

// The span that moves; what lies beside it belongs to another range.
var spanStart, spanEnd = []byte("b"), []byte("d")

const rangeID ids.RangeID = 5

type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func must(t tester, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

func open(t tester, fs vfs.FS) *storage.Engines {
	t.Helper()
	e, err := storage.Open(storage.Options{FS: fs, Dir: "d", CacheBytes: 8 << 20, MemTableBytes: 256 << 10, OnBackgroundError: func(err error) { panic(err) }})
	must(t, err)
	return e
}

// history is the first n of a sequence of writes, one a revision, equal on all nodes.
type write struct {
	user, value []byte
	lease       ids.LeaseID
	del         bool
}

func drawHistory(t *rapid.T) []write {
	users := rapid.SampledFrom([][]byte{[]byte("a"), []byte("b"), []byte("b\x00"), []byte("c"), []byte("cc"), []byte("c\xff"), []byte("d")})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) write {
		return write{
			user: users.Draw(t, "user"), del: rapid.IntRange(0, 3).Draw(t, "kind") == 0, lease: ids.LeaseID(rapid.IntRange(0, 2).Draw(t, "lease")),
			value: bytes.Repeat([]byte{'v'}, rapid.SampledFrom([]int{0, 3, 700}).Draw(t, "size")),
		}
	}), 1, 60).Draw(t, "history")
}

// apply writes those of a history that keep allows.
func apply(t tester, e *storage.Engines, from int, hist []write, keep func(user []byte) bool) {
	t.Helper()
	w := mvcc.NewWriter(e.Data)
	for i, h := range hist {
		rev := ids.Revision(from + i + 2)
		if !keep(h.user) {
			continue
		}
		b := e.Data.NewBatch()
		w.Reset(b)
		var err error
		if h.del {
			_, _, err = w.Delete(h.user, rev, 0)
		} else {
			_, err = w.Put(mvcc.Put{Key: h.user, Value: h.value, Lease: h.lease, Rev: rev})
		}
		must(t, err)
		must(t, b.Commit(pebble.NoSync))
		must(t, w.Done())
	}
}

func everything([]byte) bool { return true }
func inside(u []byte) bool   { return mvcc.Contains(spanStart, spanEnd, u) }

func compact(t tester, e *storage.Engines, at ids.Revision, start, end []byte, cut bool) {
	t.Helper()
	b := e.Data.NewBatch()
	_, err := mvcc.CompactStep(e.Data, b, start, end, 0, at, 1<<20)
	must(t, err)
	if cut {
		must(t, mvcc.CutEvents(b, at))
	}
	must(t, b.Commit(pebble.NoSync))
}

// dump lists what an engine has between two keys.
func dump(t tester, e *storage.Engines, lower, upper []byte, values bool) (out []string) {
	t.Helper()
	it, err := e.Data.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	must(t, err)
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		must(t, err)
		if !values {
			v = nil
		}
		out = append(out, fmt.Sprintf("%x=%x", it.Key(), v))
	}
	must(t, it.Close())
	return out
}

func versions(t tester, e *storage.Engines, start, end []byte) []string {
	return dump(t, e, key.AppendBound(nil, start, false), key.AppendBound(nil, end, true), true)
}

func changes(t tester, e *storage.Engines, from, to ids.Revision, start, end []byte) (out []string) {
	t.Helper()
	must(t, mvcc.Changes(e.Data, from, to, start, end, true, func(ev *mvccpb.Event) (bool, error) {
		out = append(out, ev.String())
		return true, nil
	}))
	return out
}

func setRecords(t tester, e *storage.Engines, r ids.RangeID, names string) {
	t.Helper()
	for _, n := range []byte(names) {
		must(t, e.Data.Set(key.Replica(r, n, 'x'), []byte{n}, pebble.NoSync))
	}
}

func move(t tester, from, to *storage.Engines, chunk int, extra func(*pebble.Batch) error) {
	t.Helper()
	x, err := transfer.Export(from, spanStart, spanEnd, rangeID)
	must(t, err)
	i, err := transfer.Import(to, spanStart, spanEnd, rangeID)
	must(t, err)
	for done := false; !done; {
		var keys, values [][]byte
		keys, values, done, err = x.Next(chunk)
		must(t, err)
		if !done && len(keys) == 0 {
			t.Fatal("an empty chunk")
		}
		must(t, i.Add(keys, values))
	}
	must(t, x.Close())
	must(t, i.Finish(extra))
	i.Abort()
}

// TestMove: whatever prefix of the history the receiver had, however either side has compacted, it ends with the sender's state, and the
// other range is untouched; also after a crash right then.
func TestMove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hist := drawHistory(t)
		last := ids.Revision(len(hist) + 1)
		had := rapid.IntRange(0, len(hist)).Draw(t, "had")
		mem := vfs.NewCrashableMem()
		a, b := open(t, vfs.NewMem()), open(t, mem)
		apply(t, a, 0, hist, inside)
		apply(t, b, 0, hist[:had], inside)
		apply(t, b, 0, hist, func(u []byte) bool { return !inside(u) })
		revs := rapid.Int64Range(1, int64(last))
		sent := ids.Revision(revs.Draw(t, "compacted at sender"))
		compact(t, a, sent, spanStart, spanEnd, rapid.Bool().Draw(t, "cut at sender"))
		local := ids.Revision(rapid.Int64Range(1, int64(had)+1).Draw(t, "compacted at receiver"))
		compact(t, b, local, spanStart, spanEnd, false)
		setRecords(t, a, rangeID, "cp")
		setRecords(t, b, rangeID, "pqz")
		setRecords(t, b, rangeID+1, "c")
		if rapid.Bool().Draw(t, "flush") {
			must(t, a.FlushData())
			must(t, b.FlushData())
		}
		other := [][]string{versions(t, b, nil, spanStart), versions(t, b, spanEnd, nil), changes(t, b, 0, last, nil, spanStart), changes(t, b, 0, last, spanEnd, nil)}

		move(t, a, b, rapid.IntRange(1, 2000).Draw(t, "chunk"), func(w *pebble.Batch) error {
			return errors.Join(w.Set(key.Replica(rangeID, 'e'), []byte("extra"), nil), w.Delete(key.Replica(rangeID, 'p', 'x'), nil))
		})

		check := func(b *storage.Engines) {
			t.Helper()
			if d := cmp.Diff(versions(t, a, spanStart, spanEnd), versions(t, b, spanStart, spanEnd)); d != "" {
				t.Fatalf("versions: %s", d)
			}
			from := max(sent, local)
			if d := cmp.Diff(changes(t, a, from, last, spanStart, spanEnd), changes(t, b, from, last, spanStart, spanEnd)); d != "" {
				t.Fatalf("changes: %s", d)
			}
			now := [][]string{versions(t, b, nil, spanStart), versions(t, b, spanEnd, nil), changes(t, b, 0, last, nil, spanStart), changes(t, b, 0, last, spanEnd, nil)}
			if d := cmp.Diff(other, now); d != "" {
				t.Fatalf("the other range: %s", d)
			}
			lower, upper := key.ReplicaBounds(rangeID)
			want := []string{fmt.Sprintf("%x=%x", key.Replica(rangeID, 'c', 'x'), "c"), fmt.Sprintf("%x=%x", key.Replica(rangeID, 'e'), "extra")}
			if d := cmp.Diff(want, dump(t, b, lower, upper, true)); d != "" {
				t.Fatalf("records: %s", d)
			}
			for lease := ids.LeaseID(1); lease <= 2; lease++ {
				if d := cmp.Diff(attached(t, a, lease), attached(t, b, lease)); d != "" {
					t.Fatalf("keys of lease %d: %s", lease, d)
				}
			}
		}
		check(b)
		// Attachments that do not hold are gone, not only skipped.
		bounds := func(lease ids.LeaseID) (lower, upper []byte) {
			return key.AppendLeaseBound(nil, lease, spanStart, false), key.AppendLeaseBound(nil, lease, spanEnd, true)
		}
		for lease := ids.LeaseID(1); lease <= 2; lease++ {
			lower, upper := bounds(lease)
			if d := cmp.Diff(dump(t, a, lower, upper, false), dump(t, b, lower, upper, false)); d != "" {
				t.Fatalf("attachments of %d: %s", lease, d)
			}
		}
		crashed := open(t, mem.CrashClone(vfs.CrashCloneCfg{}))
		check(crashed)
		must(t, crashed.Close())

		// Both go on alike, through a compaction of everything.
		more := drawHistory(t)
		end := last + ids.Revision(len(more))
		for _, e := range []*storage.Engines{a, b} {
			apply(t, e, len(hist), more, inside)
			compact(t, e, end, spanStart, spanEnd, true)
		}
		if d := cmp.Diff(versions(t, a, spanStart, spanEnd), versions(t, b, spanStart, spanEnd)); d != "" {
			t.Fatalf("versions after compaction: %s", d)
		}
		must(t, a.Close())
		must(t, b.Close())
	})
}

func attached(t tester, e *storage.Engines, lease ids.LeaseID) (out []string) {
	t.Helper()
	must(t, mvcc.LeaseKeys(e.Data, lease, spanStart, spanEnd, func(user []byte) (bool, error) {
		out = append(out, string(user))
		return true, nil
	}))
	return out
}

func randomHistory(r *rand.Rand, n int) (out []write) {
	for range n {
		out = append(out, write{user: fmt.Appendf(nil, "%c%03d", 'b'+r.IntN(2), r.IntN(300)), value: make([]byte, r.IntN(3000)), lease: ids.LeaseID(r.IntN(3)), del: r.IntN(5) == 0})
	}
	return out
}

// TestCrash: a crash at any moment of an import leaves the old state or the new one, never a mixture, and a reopened engine takes the import again.
func TestCrash(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, seed))
	hist := randomHistory(r, 400)
	a := open(t, vfs.NewMem())
	defer func() { must(t, a.Close()) }()
	apply(t, a, 0, hist, everything)
	setRecords(t, a, rangeID, "c")
	want := versions(t, a, spanStart, spanEnd)

	mem := vfs.NewCrashableMem()
	b := open(t, mem)
	apply(t, b, 0, hist[:200], everything)
	setRecords(t, b, rangeID, "p")
	must(t, b.FlushData())
	old := versions(t, b, spanStart, spanEnd)
	lower, upper := key.ReplicaBounds(rangeID)
	oldRecords, newRecords := dump(t, b, lower, upper, true), dump(t, a, lower, upper, true)

	var clones []*vfs.MemFS
	x, err := transfer.Export(a, spanStart, spanEnd, rangeID)
	must(t, err)
	i, err := transfer.Import(b, spanStart, spanEnd, rangeID)
	must(t, err)
	crash := func() {
		clones = append(clones, mem.CrashClone(vfs.CrashCloneCfg{}), mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: r}))
	}
	for done := false; !done; {
		var keys, values [][]byte
		keys, values, done, err = x.Next(50_000)
		must(t, err)
		must(t, i.Add(keys, values))
		crash()
	}
	must(t, i.Finish(func(*pebble.Batch) error { crash(); return nil }))
	crash()
	must(t, x.Close())
	must(t, b.Close())
	for n, fs := range clones {
		c := open(t, fs)
		got, records := versions(t, c, spanStart, spanEnd), dump(t, c, lower, upper, true)
		isOld := cmp.Equal(got, old) && cmp.Equal(records, oldRecords)
		isNew := cmp.Equal(got, want) && cmp.Equal(records, newRecords)
		if n >= len(clones)-2 && !isNew || !isOld && !isNew {
			t.Errorf("crash %d: neither the old state nor the new one (%d versions; old has %d, new %d)", n, len(got), len(old), len(want))
		}
		move(t, a, c, 1<<20, nil)
		if d := cmp.Diff(want, versions(t, c, spanStart, spanEnd)); d != "" {
			t.Errorf("after crash %d and another import: %s", n, d)
		}
		must(t, c.Close())
	}
}

// TestReaders: an iterator opened before the import goes on with the old state; an exporter is one moment whatever comes after.
func TestReaders(t *testing.T) {
	hist := randomHistory(rand.New(rand.NewPCG(1, 1)), 300)
	a, b := open(t, vfs.NewMem()), open(t, vfs.NewMem())
	apply(t, a, 0, hist, everything)
	apply(t, b, 0, hist[:100], everything)
	want := versions(t, b, spanStart, spanEnd)
	x, err := transfer.Export(b, spanStart, spanEnd, rangeID)
	must(t, err)
	it, err := mvcc.NewIterator(b.Data, spanStart, spanEnd, mvcc.Latest)
	must(t, err)
	before, err := mvcc.Count(b.Data, spanStart, spanEnd, mvcc.Latest)
	must(t, err)
	if !it.First() {
		t.Fatal("nothing there")
	}
	move(t, a, b, 10_000, nil)
	must(t, b.Data.Compact(t.Context(), []byte{0}, []byte{255}, false))
	n := int64(1)
	for it.Next() {
		if _, err := it.KeyValue(false); err != nil {
			t.Fatal(err)
		}
		n++
	}
	must(t, it.Close())
	if n != before {
		t.Errorf("the reader saw %d keys, not %d", n, before)
	}
	var got []string
	for done := false; !done; {
		var keys, values [][]byte
		keys, values, done, err = x.Next(1000)
		must(t, err)
		for i := range keys {
			got = append(got, fmt.Sprintf("%x=%x", keys[i], values[i]))
		}
	}
	must(t, x.Close())
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the exporter saw: %s", d)
	}
	must(t, a.Close())
	must(t, b.Close())
}

// TestRefuse: what does not belong to the range is not imported, and nothing is left of the attempt.
func TestRefuse(t *testing.T) {
	fs := vfs.NewMem()
	e := open(t, fs)
	good := key.AppendVersion(nil, []byte("c"), key.State{Mod: 2, Create: 2, Version: 1})
	for name, keys := range map[string][][]byte{
		"outside":       {key.AppendVersion(nil, []byte("d"), key.State{Mod: 2, Create: 2, Version: 1})},
		"no version":    {key.AppendUser(nil, []byte("c"))},
		"order state":   {key.Order('x')},
		"nothing":       {{}},
		"not ascending": {good, good},
	} {
		i, err := transfer.Import(e, spanStart, spanEnd, rangeID)
		must(t, err)
		must(t, i.Add([][]byte{good[:len(good):len(good)]}, [][]byte{nil}))
		if err := i.Add(keys, make([][]byte, len(keys))); err == nil {
			t.Errorf("%s: taken", name)
		}
		i.Abort()
	}
	i, err := transfer.Import(e, spanStart, spanEnd, rangeID)
	must(t, err)
	if err := i.Add([][]byte{good}, nil); err == nil {
		t.Error("keys without values: taken")
	}
	must(t, i.Add([][]byte{good}, [][]byte{nil}))
	boom := errors.New("boom")
	if err := i.Finish(func(*pebble.Batch) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("finishing: %v", err)
	}
	if got := versions(t, e, nil, nil); len(got) != 0 {
		t.Errorf("there is %v", got)
	}
	left, err := fs.List(fs.PathDir(e.TemporaryPath("x")))
	if err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	must(t, e.Close())
}

// TestBig: versions of several tables, and values that lie apart.
func TestBig(t *testing.T) {
	a, b := open(t, vfs.NewMem()), open(t, vfs.NewMem())
	var hist []write
	for n := range 80 {
		hist = append(hist, write{user: fmt.Appendf(nil, "c%03d", n), value: bytes.Repeat([]byte{byte(n)}, 1<<20)})
	}
	apply(t, a, 0, hist, everything)
	must(t, a.FlushData())
	move(t, a, b, 4<<20, nil)
	if n, err := mvcc.Count(b.Data, nil, nil, mvcc.Latest); err != nil || n != 80 {
		t.Errorf("%d keys, %v", n, err)
	}
	x, err := mvcc.Hash(a.Data, nil, nil, 0, mvcc.Latest)
	must(t, err)
	if y, err := mvcc.Hash(b.Data, nil, nil, 0, mvcc.Latest); err != nil || x != y {
		t.Errorf("hash %x, %v, want %x", y, err, x)
	}
	must(t, a.Close())
	must(t, b.Close())
}

// TestAbort: an import that was given up, or died, does not keep the old state from being compacted to the last version.
func TestAbort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hist := drawHistory(t)
		last := ids.Revision(len(hist) + 1)
		had := rapid.IntRange(0, len(hist)).Draw(t, "had")
		a, b := open(t, vfs.NewMem()), open(t, vfs.NewMem())
		apply(t, a, 0, hist, inside)
		apply(t, b, 0, hist[:had], inside)
		compact(t, a, ids.Revision(rapid.Int64Range(1, int64(last)).Draw(t, "compacted at sender")), spanStart, spanEnd, true)
		x, err := transfer.Export(a, spanStart, spanEnd, rangeID)
		must(t, err)
		i, err := transfer.Import(b, spanStart, spanEnd, rangeID)
		must(t, err)
		keys, values, _, err := x.Next(rapid.IntRange(1, 1<<20).Draw(t, "chunk"))
		must(t, err)
		must(t, i.Add(keys, values))
		_ = i.Finish(func(*pebble.Batch) error { return errors.New("given up") })
		must(t, x.Close())

		apply(t, b, had, hist[had:], inside)
		compact(t, a, last, spanStart, spanEnd, true)
		compact(t, b, last, spanStart, spanEnd, true)
		if d := cmp.Diff(versions(t, a, spanStart, spanEnd), versions(t, b, spanStart, spanEnd)); d != "" {
			t.Fatalf("versions: %s", d)
		}
		must(t, a.Close())
		must(t, b.Close())
	})
}
