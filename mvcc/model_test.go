package mvcc_test

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	gocmp "github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/storage"
	"github.com/braidkv/braid/storage/key"
)

// modelVersion is one entry of the naive model: a list of everything that ever happened to a key.
type modelVersion struct {
	state mvcc.KeyState
	value []byte
}

// model is what mvcc should do, in the plainest way.
type model struct {
	keys      map[string][]modelVersion // ascending revisions
	events    []mvcc.Event
	rev       ids.Revision
	compacted ids.Revision
}

func (m *model) at(user []byte, rev ids.Revision) (v modelVersion) {
	for _, x := range m.keys[string(user)] {
		if x.state.Mod <= rev {
			v = x
		}
	}
	if !v.state.Exists() {
		return modelVersion{}
	}
	return v
}

func (m *model) write(user, value []byte, lease ids.LeaseID, rev ids.Revision, sub uint32, del bool) {
	prev := m.at(user, mvcc.Latest).state
	if del && !prev.Exists() {
		return
	}
	s := mvcc.KeyState{Mod: rev, Sub: sub}
	if !del {
		s.Create, s.Version, s.Lease = rev, prev.Version+1, lease
		if prev.Exists() {
			s.Create = prev.Create
		}
	}
	m.keys[string(user)] = append(m.keys[string(user)], modelVersion{s, value})
	m.events = append(m.events, mvcc.Event{Rev: rev, Sub: sub, Key: user, Deletion: del, Prev: prev})
}

// compact drops what no read at or above the revision can see; a tombstone at the revision itself stays.
func (m *model) compact(at ids.Revision) {
	for k, vs := range m.keys {
		m.keys[k] = slices.DeleteFunc(slices.Clone(vs), func(v modelVersion) bool {
			superseded := slices.ContainsFunc(vs, func(w modelVersion) bool { return w.state.Mod > v.state.Mod && w.state.Mod <= at })
			return superseded || !v.state.Exists() && v.state.Mod < at
		})
	}
	m.compacted = at
}

func (m *model) users() (out [][]byte) {
	for k := range m.keys {
		out = append(out, []byte(k))
	}
	slices.SortFunc(out, bytes.Compare)
	return out
}

func kvOf(user []byte, v modelVersion) *mvccpb.KeyValue {
	if !v.state.Exists() {
		return nil
	}
	s := v.state
	return &mvccpb.KeyValue{
		Key: user, Value: v.value, CreateRevision: int64(s.Create), ModRevision: int64(s.Mod), Version: s.Version, Lease: int64(s.Lease),
	}
}

// list is etcd's way to answer a range: all keys, then the filters, then the limit.
func (m *model) list(o mvcc.RangeOptions) (res mvcc.RangeResult) {
	for _, user := range m.users() {
		kv := kvOf(user, m.at(user, o.Rev))
		if kv == nil || !mvcc.Contains(o.Start, o.End, user) {
			continue
		}
		res.Count++
		if o.KeysOnly {
			kv.Value, kv.Lease = nil, 0
		}
		res.KVs = append(res.KVs, kv)
	}
	prune := func(bad func(kv *mvccpb.KeyValue) bool) { res.KVs = slices.DeleteFunc(res.KVs, bad) }
	if o.MaxMod != 0 {
		prune(func(kv *mvccpb.KeyValue) bool { return kv.ModRevision > int64(o.MaxMod) })
	}
	if o.MinMod != 0 {
		prune(func(kv *mvccpb.KeyValue) bool { return kv.ModRevision < int64(o.MinMod) })
	}
	if o.MaxCreate != 0 {
		prune(func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision > int64(o.MaxCreate) })
	}
	if o.MinCreate != 0 {
		prune(func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision < int64(o.MinCreate) })
	}
	if o.Limit > 0 && len(res.KVs) > o.Limit {
		res.KVs, res.More = res.KVs[:o.Limit], true
	}
	if o.CountOnly {
		res.KVs, res.More = nil, false
	}
	return res
}

// machine runs the same writes on an engine that is flushed and compacted, one that only grows, and the model.
type machine struct {
	m           model
	eng, plain  *storage.Engines
	w, pw       *mvcc.Writer
	batch       *pebble.Batch
	plainBatch  *pebble.Batch
	walked, cut ids.Revision
	pool        [][]byte
	leases      []ids.LeaseID
	open        bool // the batch has writes
}

func openEngines(t interface{ Fatal(...any) }, fs vfs.FS) *storage.Engines {
	e, err := storage.Open(storage.Options{FS: fs, Dir: "d", CacheBytes: 1 << 20, MemTableBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func newMachine(t *rapid.T) *machine {
	x := &machine{
		m: model{keys: map[string][]modelVersion{}, rev: 1}, eng: openEngines(t, vfs.NewMem()), plain: openEngines(t, vfs.NewMem()),
		leases: []ids.LeaseID{0, 0, 7, -3},
	}
	for _, k := range []string{"a", "a\x00", "a\x00\x01", "aa", "b", "b\xff", "\x00", "\xff\xff"} {
		x.pool = append(x.pool, []byte(k))
	}
	x.w, x.pw = mvcc.NewWriter(x.eng.Data), mvcc.NewWriter(x.plain.Data)
	x.begin()
	return x
}

func (x *machine) begin() {
	x.batch, x.plainBatch, x.open = x.eng.Data.NewBatch(), x.plain.Data.NewBatch(), false
	x.w.Reset(x.batch)
	x.pw.Reset(x.plainBatch)
}

func must(t interface{ Fatal(...any) }, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func (x *machine) commit(t *rapid.T) {
	must(t, x.batch.Commit(pebble.NoSync))
	must(t, x.plainBatch.Commit(pebble.NoSync))
	if rapid.Bool().Draw(t, "done") {
		must(t, x.w.Done())
		must(t, x.pw.Done())
	}
	x.begin()
}

func (x *machine) close(t *rapid.T) {
	must(t, x.w.Done())
	must(t, x.pw.Done())
	must(t, x.batch.Close())
	must(t, x.plainBatch.Close())
	must(t, x.eng.Close())
	must(t, x.plain.Close())
}

func (x *machine) user(t *rapid.T, name string) []byte {
	return rapid.SampledFrom(x.pool).Draw(t, name)
}

// Write applies one transaction of up to three writes to different keys.
func (x *machine) Write(t *rapid.T) {
	x.m.rev++
	users := rapid.SliceOfNDistinct(rapid.SampledFrom(x.pool), 1, 3, func(k []byte) string { return string(k) }).Draw(t, "users")
	before, sub := len(x.m.events), uint32(0)
	for _, user := range users {
		del := rapid.IntRange(0, 3).Draw(t, "kind") == 0
		var value []byte
		if !del {
			value = bytes.Repeat([]byte{byte(x.m.rev)}, rapid.SampledFrom([]int{0, 1, 30, 2000}).Draw(t, "size"))
		}
		lease := rapid.SampledFrom(x.leases).Draw(t, "lease")
		want := x.m.at(user, mvcc.Latest)
		kv, err := x.w.PrevKV(user)
		must(t, err)
		if d := gocmp.Diff(kvOf(user, want), kv, protocmp.Transform()); d != "" {
			t.Fatalf("previous of %q: %s", user, d)
		}
		for _, w := range []*mvcc.Writer{x.w, x.pw} {
			var prev mvcc.KeyState
			var deleted bool
			if del {
				deleted, prev, err = w.Delete(user, x.m.rev, sub)
			} else {
				prev, err = w.Put(mvcc.Put{Key: user, Value: value, Lease: lease, Rev: x.m.rev, Sub: sub})
			}
			must(t, err)
			if prev != want.state || del && deleted != want.state.Exists() {
				t.Fatalf("%q was %+v (deleted: %v), want %+v", user, prev, deleted, want.state)
			}
		}
		x.m.write(user, value, lease, x.m.rev, sub, del)
		sub++
	}
	if x.open = x.open || len(x.m.events) > before; len(x.m.events) == before {
		x.m.rev--
	}
}

// Commit ends the batch.
func (x *machine) Commit(t *rapid.T) { x.commit(t) }

// Flush writes memtables out, perhaps into the lowest level, perhaps with a new writer.
func (x *machine) Flush(t *rapid.T) {
	x.commit(t)
	must(t, x.eng.FlushData())
	if rapid.Bool().Draw(t, "down") {
		must(t, x.eng.Data.Compact(t.Context(), []byte{0}, []byte{255}, false))
	}
	if rapid.Bool().Draw(t, "new") {
		must(t, x.w.Done())
		x.w = mvcc.NewWriter(x.eng.Data)
		x.w.Reset(x.batch)
	}
}

// Compact walks in steps; the event index is cut at times.
func (x *machine) Compact(t *rapid.T) {
	x.commit(t)
	to := ids.Revision(rapid.Int64Range(int64(max(x.m.compacted, 1)), int64(x.m.rev)).Draw(t, "to"))
	limit := rapid.IntRange(0, 5).Draw(t, "limit")
	// Two ranges, as if the node had them.
	for _, span := range [][2][]byte{{nil, []byte("aa")}, {[]byte("aa"), nil}} {
		for w := (mvcc.Walk{Next: x.walked}); !w.Done; {
			b := x.eng.Data.NewBatch()
			next, err := mvcc.CompactStep(x.eng.Data, b, span[0], span[1], w.Next, to, limit)
			must(t, err)
			if !next.Done && next.Next <= w.Next {
				t.Fatalf("a walk from %d came to %d", w.Next, next.Next)
			}
			must(t, b.Commit(pebble.NoSync))
			w = next
		}
	}
	x.walked = to
	x.m.compact(to)
	if rapid.Bool().Draw(t, "cut") {
		b := x.eng.Data.NewBatch()
		must(t, mvcc.CutEvents(b, to))
		must(t, b.Commit(pebble.NoSync))
		x.cut = to
	}
}

func (x *machine) rev(t *rapid.T, name string) ids.Revision {
	return ids.Revision(rapid.Int64Range(int64(max(1, x.m.compacted)), int64(x.m.rev)+1).Draw(t, name))
}

// Read compares single reads, lists and counts at a revision.
func (x *machine) Read(t *rapid.T) {
	x.commit(t)
	o := mvcc.RangeOptions{
		Rev: x.rev(t, "rev"), Limit: rapid.IntRange(-1, 5).Draw(t, "limit"),
		KeysOnly: rapid.Bool().Draw(t, "keys"), CountOnly: rapid.IntRange(0, 3).Draw(t, "count") == 0,
	}
	filter := func(name string) ids.Revision {
		if rapid.IntRange(0, 2).Draw(t, name) > 0 {
			return 0
		}
		return ids.Revision(rapid.Int64Range(-1, int64(x.m.rev)).Draw(t, name))
	}
	o.MinMod, o.MaxMod, o.MinCreate, o.MaxCreate = filter("minmod"), filter("maxmod"), filter("mincreate"), filter("maxcreate")
	if rapid.Bool().Draw(t, "start") {
		o.Start = x.user(t, "start")
	}
	if rapid.Bool().Draw(t, "end") {
		o.End = x.user(t, "end")
	}
	if len(o.End) > 0 && bytes.Compare(o.Start, o.End) > 0 {
		o.Start, o.End = o.End, o.Start
	}
	got, err := mvcc.Range(x.eng.Data, o)
	must(t, err)
	if d := gocmp.Diff(x.m.list(o), got, protocmp.Transform(), sameEmpty); d != "" {
		t.Fatalf("%+v: %s", o, d)
	}
	user := x.user(t, "user")
	kv, err := mvcc.Get(x.eng.Data, user, o.Rev)
	must(t, err)
	want := x.m.at(user, o.Rev)
	if d := gocmp.Diff(kvOf(user, want), kv, protocmp.Transform()); d != "" {
		t.Fatalf("%q at %d: %s", user, o.Rev, d)
	}
	if s, err := mvcc.GetState(x.eng.Data, user, o.Rev); err != nil || s != want.state {
		t.Fatalf("%q at %d: %+v, %v, want %+v", user, o.Rev, s, err, want.state)
	}
}

var sameEmpty = gocmp.FilterValues(func(a, b []*mvccpb.KeyValue) bool { return len(a) == 0 && len(b) == 0 }, gocmp.Ignore())

// History compares events, changes and the keys of leases.
func (x *machine) History(t *rapid.T) {
	x.commit(t)
	from, to := x.rev(t, "from"), x.rev(t, "to")
	start, end := x.user(t, "start"), x.user(t, "end")
	var got, want []string
	must(t, mvcc.Events(x.eng.Data, from, to, start, end, func(e mvcc.Event) (bool, error) {
		got = append(got, fmt.Sprintf("%+v", e))
		return true, nil
	}))
	var gotEv, wantEv []*mvccpb.Event
	must(t, mvcc.Changes(x.eng.Data, from, to, start, end, true, func(ev *mvccpb.Event) (bool, error) {
		gotEv = append(gotEv, ev)
		return true, nil
	}))
	for _, e := range x.m.events {
		if e.Rev < from || e.Rev > to || !mvcc.Contains(start, end, e.Key) {
			continue
		}
		want = append(want, fmt.Sprintf("%+v", e))
		ev := &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: e.Key, ModRevision: int64(e.Rev)}}
		if !e.Deletion {
			ev.Type, ev.Kv = mvccpb.Event_PUT, kvOf(e.Key, x.m.at(e.Key, e.Rev))
		}
		if before := x.m.at(e.Key, e.Rev-1); before.state.Mod == e.Prev.Mod {
			ev.PrevKv = kvOf(e.Key, before)
		}
		wantEv = append(wantEv, ev)
	}
	if d := gocmp.Diff(want, got); d != "" {
		t.Fatalf("events %d to %d: %s", from, to, d)
	}
	if d := gocmp.Diff(wantEv, gotEv, protocmp.Transform()); d != "" {
		t.Fatalf("changes %d to %d: %s", from, to, d)
	}
	lease := rapid.SampledFrom(x.leases[1:]).Draw(t, "lease")
	var keys, wantKeys []string
	must(t, mvcc.LeaseKeys(x.eng.Data, lease, start, end, func(user []byte) (bool, error) {
		keys = append(keys, string(user))
		return true, nil
	}))
	for _, user := range x.m.users() {
		if v := x.m.at(user, mvcc.Latest); lease != 0 && v.state.Lease == lease && mvcc.Contains(start, end, user) {
			wantKeys = append(wantKeys, string(user))
		}
	}
	if d := gocmp.Diff(wantKeys, keys); d != "" {
		t.Fatalf("keys of %d in [%q, %q): %s", lease, start, end, d)
	}
}

// Hash compares the engine with the one that was never compacted.
func (x *machine) Hash(t *rapid.T) {
	x.commit(t)
	rev := x.rev(t, "rev")
	a, err := mvcc.Hash(x.eng.Data, nil, nil, x.m.compacted, rev)
	must(t, err)
	b, err := mvcc.Hash(x.plain.Data, nil, nil, x.m.compacted, rev)
	must(t, err)
	if a != b {
		t.Fatalf("hash at %d compacted at %d: %x, without compaction %x", rev, x.m.compacted, a, b)
	}
}

// Stored compares what is in the engine with what the model keeps: compaction deletes all it should and no more.
func (x *machine) Stored(t *rapid.T) {
	x.commit(t)
	it, err := x.eng.Data.NewIter(nil)
	must(t, err)
	var got, want []string
	for ok := it.First(); ok; ok = it.Next() {
		got = append(got, fmt.Sprintf("%x", it.Key()))
	}
	must(t, it.Close())
	for user, vs := range x.m.keys {
		for _, v := range vs {
			want = append(want, fmt.Sprintf("%x", key.AppendVersion(nil, []byte(user), v.state)))
		}
		if s := x.m.at([]byte(user), mvcc.Latest).state; s.Lease != 0 {
			want = append(want, fmt.Sprintf("%x", key.AppendLease(nil, s.Lease, []byte(user))))
		}
	}
	for _, e := range x.m.events {
		if e.Rev >= x.cut {
			want = append(want, fmt.Sprintf("%x", key.AppendEvent(nil, e.Rev, e.Sub)))
		}
	}
	slices.SortFunc(want, cmp.Compare[string])
	if d := gocmp.Diff(want, got); d != "" {
		t.Fatalf("stored: %s", d)
	}
}

func (x *machine) Check(*rapid.T) {}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newMachine(t)
		defer x.close(t)
		t.Repeat(rapid.StateMachineActions(x))
	})
}
