package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
)

// testLogger makes the engine's fatal errors panics, and is silent otherwise.
type testLogger struct{}

func (testLogger) Infof(string, ...any)  {}
func (testLogger) Errorf(string, ...any) {}
func (testLogger) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

func openEngine(t testing.TB, fs vfs.FS) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("log", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: testLogger{}})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func openLog(t testing.TB, db *pebble.DB, opts Options) *Log {
	t.Helper()
	l, err := Open(db, func(err error) { t.Errorf("fatal: %v", err) }, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func openGroup(t testing.TB, l *Log, id ids.GroupID) *GroupLog {
	t.Helper()
	g, err := l.Group(id)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func pump(t testing.TB, l *Log) {
	t.Helper()
	if _, err := l.Pump(); err != nil {
		t.Fatal(err)
	}
}

// entries makes entries from index first on, one for each term.
func entries(first uint64, terms ...uint64) []*raftpb.Entry {
	block := NewEntryBlock(len(terms))
	out := make([]*raftpb.Entry, len(terms))
	for i, term := range terms {
		index := first + uint64(i)
		typ := raftpb.EntryNormal
		if index%7 == 0 {
			typ = raftpb.EntryConfChangeV2
		}
		out[i] = block.Set(i, typ, term, index, fmt.Appendf(nil, "%d/%d", index, term))
	}
	return out
}

func describe(ents []*raftpb.Entry) string {
	var b strings.Builder
	for _, e := range ents {
		fmt.Fprintf(&b, "%d/%d/%d/%s ", e.GetIndex(), e.GetTerm(), e.GetType(), e.GetData())
	}
	return b.String()
}

// contents is everything a group answers.
func contents(t testing.TB, g *GroupLog) string {
	t.Helper()
	first, _ := g.FirstIndex()
	last, _ := g.LastIndex()
	term, err := g.Term(first - 1)
	if err != nil {
		t.Fatal(err)
	}
	ents, err := g.Entries(first, last+1, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("hs %+v, behind %d/%d: %s", g.HardState(), first-1, term, describe(ents))
}

// done counts completions.
type done struct {
	g *GroupLog
	n int
}

func (d *done) Durable() {
	d.n++
	d.g.Durable()
}

func TestAppendSurvivesCrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db := openEngine(t, fs)
	l := openLog(t, db, Options{})
	g := openGroup(t, l, 7)
	d := &done{g: g}
	if g.Append(Append{HardState: &HardState{3, 1, 0}, Entries: entries(1, 3, 3, 3), MustSync: true, Done: d}) {
		t.Fatal("an append of entries needs no waiting")
	}
	pump(t, l)
	if d.n != 1 {
		t.Fatalf("%d completions", d.n)
	}
	want := contents(t, g)
	// Submitted, not pumped: lost.
	g.Append(Append{Entries: entries(4, 3), Done: d})
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	db.Close()
	db2 := openEngine(t, clone)
	defer db2.Close()
	if got := contents(t, openGroup(t, openLog(t, db2, Options{}), 7)); got != want {
		t.Errorf("after the crash:\n%s\nwant\n%s", got, want)
	}
}

func TestNothingToWaitFor(t *testing.T) {
	db := openEngine(t, vfs.NewMem())
	defer db.Close()
	l := openLog(t, db, Options{})
	g := openGroup(t, l, 1)
	d := &done{g: g}
	if !g.Append(Append{HardState: &HardState{1, 0, 0}, Done: d}) {
		t.Error("a commit index alone must not wait")
	}
	g.Append(Append{Entries: entries(1, 1), Done: d})
	if g.Append(Append{HardState: &HardState{1, 0, 1}, Done: d}) {
		t.Error("what comes after an append that waits must wait for it")
	}
	pump(t, l)
	if d.n != 2 {
		t.Errorf("%d completions, want 2", d.n)
	}
	if worked, _ := l.Pump(); worked {
		t.Error("work without a job")
	}
	g.Append(Append{HardState: &HardState{1, 0, 1}, Done: d})
	l.FlushLazy()
	if worked, _ := l.Pump(); !worked {
		t.Error("FlushLazy has no effect")
	}
}

func TestOneSyncForAllGroups(t *testing.T) {
	db := openEngine(t, vfs.NewMem())
	defer db.Close()
	l := openLog(t, db, Options{})
	for id := range ids.GroupID(20) {
		g := openGroup(t, l, id)
		g.Append(Append{Entries: entries(1, 1, 1), Done: &done{g: g}})
	}
	pump(t, l)
	if c := l.Counters(); c.Syncs != 1 || c.Batches != 1 || c.Jobs != 20 || c.EntriesWritten != 40 {
		t.Errorf("%+v", c)
	}
	if want := 40 * int64(entryOverhead+3); l.TotalBytes() != want || l.Bytes(3) != want/20 {
		t.Errorf("bytes %d and %d, want %d", l.TotalBytes(), l.Bytes(3), want)
	}
	groups, err := l.Groups()
	if err != nil || len(groups) != 20 || groups[19] != 19 {
		t.Errorf("groups %v, %v", groups, err)
	}
}

func TestDestroy(t *testing.T) {
	db := openEngine(t, vfs.NewMem())
	defer db.Close()
	l := openLog(t, db, Options{})
	for id := range ids.GroupID(3) {
		g := openGroup(t, l, id)
		g.Append(Append{HardState: &HardState{1, 1, 1}, Entries: entries(1, 1, 1), Done: &done{g: g}})
		if err := g.SetConf(1, &raftpb.ConfState{Voters: []uint64{1}}); err != nil {
			t.Fatal(err)
		}
	}
	g := openGroup(t, l, 1)
	d := &done{g: g}
	g.Destroy(d)
	pump(t, l)
	if groups, err := l.Groups(); err != nil || fmt.Sprint(groups) != "[0 2]" || d.n != 1 {
		t.Errorf("groups %v, %v, %d completions", groups, err, d.n)
	}
	if l.Bytes(1) != 0 || l.TotalBytes() != 2*l.Bytes(0) {
		t.Errorf("bytes %d %d", l.Bytes(1), l.TotalBytes())
	}
	if got := contents(t, openGroup(t, l, 1)); got != "hs {Term:0 Vote:0 Commit:0}, behind 0/0: " {
		t.Error(got)
	}
}

func TestStorageErrors(t *testing.T) {
	db := openEngine(t, vfs.NewMem())
	defer db.Close()
	l := openLog(t, db, Options{})
	g := openGroup(t, l, 1)
	g.Append(Append{Entries: entries(1, 1, 1, 2, 2, 2), Done: &done{g: g}})
	pump(t, l)
	g.Truncate(2)
	if _, err := g.Term(1); !errors.Is(err, raft.ErrCompacted) {
		t.Error(err)
	}
	if term, err := g.Term(2); term != 1 || err != nil {
		t.Error(term, err)
	}
	if _, err := g.Term(6); !errors.Is(err, raft.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := g.Entries(2, 3, 100); !errors.Is(err, raft.ErrCompacted) {
		t.Error(err)
	}
	if _, err := g.Entries(3, 7, 100); !errors.Is(err, raft.ErrUnavailable) {
		t.Error(err)
	}
	if ents, err := g.Entries(3, 6, 0); err != nil || len(ents) != 1 {
		t.Error(describe(ents), err)
	}
	g.Truncate(100)
	if first, _ := g.FirstIndex(); first != 6 {
		t.Error(first)
	}
}

func TestReconcile(t *testing.T) {
	conf := func(voter uint64) *raftpb.ConfState {
		return &raftpb.ConfState{Voters: []uint64{voter}, AutoLeave: new(false)}
	}
	for _, c := range []struct {
		name      string
		start     Start
		want      string
		voter     uint64
		confIndex uint64
		err       error
	}{
		{name: "state within the log", start: Start{Applied: 4, Term: 2},
			want: "hs {Term:3 Vote:1 Commit:4}, behind 2/1: 3/2/0/3/2 4/2/0/4/2 5/3/0/5/3 ", voter: 1, confIndex: 3},
		{name: "commit ahead of the state", start: Start{Applied: 2},
			want: "hs {Term:3 Vote:1 Commit:3}, behind 2/1: 3/2/0/3/2 4/2/0/4/2 5/3/0/5/3 ", voter: 1, confIndex: 3},
		{name: "newer configuration in the state", start: Start{Applied: 5, Term: 3, Conf: conf(9), ConfIndex: 5},
			want: "hs {Term:3 Vote:1 Commit:5}, behind 2/1: 3/2/0/3/2 4/2/0/4/2 5/3/0/5/3 ", voter: 9, confIndex: 5},
		{name: "state behind the log's end", start: Start{Applied: 9, Term: 3, Conf: conf(8), ConfIndex: 9},
			want: "hs {Term:3 Vote:1 Commit:9}, behind 9/3: ", voter: 8, confIndex: 9},
		{name: "state of a later term", start: Start{Applied: 9, Term: 6, Conf: conf(8), ConfIndex: 8},
			want: "hs {Term:6 Vote:0 Commit:9}, behind 9/6: ", voter: 8, confIndex: 8},
		{name: "another entry at the state's end", start: Start{Applied: 5, Term: 5, Conf: conf(8), ConfIndex: 5},
			want: "hs {Term:5 Vote:0 Commit:5}, behind 5/5: ", voter: 8, confIndex: 5},
		{name: "state before the log", start: Start{Applied: 1, Term: 1}, err: ErrStateBehindLog},
		{name: "state behind the log's end, term unknown", start: Start{Applied: 6}, err: ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			db := openEngine(t, fs)
			l := openLog(t, db, Options{})
			g := openGroup(t, l, 4)
			g.Append(Append{HardState: &HardState{3, 1, 3}, Entries: entries(1, 1, 1, 2, 2, 3), Done: &done{g: g}})
			pump(t, l)
			g.Truncate(2)
			l.FlushLazy()
			pump(t, l)
			if err := g.SetConf(3, conf(1)); err != nil { // syncs what comes before it, too
				t.Fatal(err)
			}
			applied, err := g.Reconcile(c.start)
			if !errors.Is(err, c.err) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if err != nil {
				db.Close()
				return
			}
			if applied != c.start.Applied {
				t.Errorf("applied %d", applied)
			}
			check := func(g *GroupLog) {
				t.Helper()
				if got := contents(t, g); got != c.want {
					t.Errorf("got\n%s\nwant\n%s", got, c.want)
				}
				if cs, index := g.Conf(); index != c.confIndex || cs.GetVoters()[0] != c.voter {
					t.Errorf("configuration %v from %d", cs, index)
				}
			}
			check(g)
			// What was reset is durable; the rest is found again in the same way.
			clone := fs.CrashClone(vfs.CrashCloneCfg{})
			db.Close()
			db2 := openEngine(t, clone)
			defer db2.Close()
			g = openGroup(t, openLog(t, db2, Options{}), 4)
			if _, err := g.Reconcile(c.start); err != nil {
				t.Fatal(err)
			}
			check(g)
		})
	}
}

func TestBirth(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db := openEngine(t, fs)
	g := openGroup(t, openLog(t, db, Options{}), 4)
	voters := Start{Conf: &raftpb.ConfState{Voters: []uint64{1, 2}}}
	if applied, err := g.Reconcile(Start{}); applied != 0 || err != nil {
		t.Errorf("a replica without configuration is born: %d, %v", applied, err)
	}
	g = openGroup(t, openLog(t, db, Options{}), 4)
	if applied, err := g.Reconcile(voters); applied != 1 || err != nil {
		t.Errorf("applied %d, %v", applied, err)
	}
	want := contents(t, g)
	if want != "hs {Term:1 Vote:0 Commit:1}, behind 1/1: " {
		t.Error(want)
	}
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	db.Close()
	db = openEngine(t, clone)
	defer db.Close()
	g = openGroup(t, openLog(t, db, Options{}), 4)
	// It is born once: entries and votes of before the crash stay.
	g.Append(Append{HardState: &HardState{5, 2, 1}, Entries: entries(2, 5), Done: &done{g: g}})
	if applied, err := g.Reconcile(voters); applied != 1 || err != nil {
		t.Errorf("applied %d, %v", applied, err)
	}
	if got := contents(t, g); got != "hs {Term:5 Vote:2 Commit:1}, behind 1/1: 2/5/0/2/5 " {
		t.Error(got)
	}
}

func TestCorruptLogNamesItself(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func(b *pebble.Batch)
	}{
		{"gap", "entry 3 of term 1 follows entry 1 of term 1", func(b *pebble.Batch) { b.Delete(appendEntryKey(nil, 6, 2), nil) }},
		{"version", "entry 2: raftlog: corrupt record", func(b *pebble.Batch) { b.Set(appendEntryKey(nil, 6, 2), []byte{0x20, 1}, nil) }},
		{"hard state", "hard state of group 6", func(b *pebble.Batch) { b.Set(appendGroupKey(nil, 6, kindHardState), []byte{0x10, 1}, nil) }},
		{"configuration", "configuration of group 6", func(b *pebble.Batch) { b.Set(appendGroupKey(nil, 6, kindConf), []byte{0x10, 1, 2, 9}, nil) }},
		{"truncated", "truncated state of group 6", func(b *pebble.Batch) { b.Set(appendGroupKey(nil, 6, kindTruncated), []byte{0x11}, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := openEngine(t, vfs.NewMem())
			defer db.Close()
			l := openLog(t, db, Options{})
			g := openGroup(t, l, 6)
			g.Append(Append{HardState: &HardState{1, 1, 1}, Entries: entries(1, 1, 1, 1), Done: &done{g: g}})
			pump(t, l)
			b := db.NewBatch()
			c.spoil(b)
			if err := b.Commit(nil); err != nil {
				t.Fatal(err)
			}
			_, err := openLog(t, db, Options{}).Group(6)
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSyncErrorIsFinal shows L3: after an fsync has failed, nothing is completed, not even by a later fsync that works.
func TestSyncErrorIsFinal(t *testing.T) {
	var broken errorfs.Toggle
	broken.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			if strings.HasSuffix(op.Path, ".log") {
				return errors.New("injected")
			}
		}
		return nil
	})
	db := openEngine(t, errorfs.Wrap(vfs.NewMem(), &broken))
	var fatal []error
	l, err := Open(db, func(err error) { fatal = append(fatal, err) }, Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := openGroup(t, l, 1)
	d := &done{g: g}
	g.Append(Append{Entries: entries(1, 1), Done: d})
	pump(t, l)
	broken.On()
	g.Append(Append{Entries: entries(2, 1), Done: d})
	if _, err := l.Pump(); err == nil || !strings.Contains(err.Error(), "injected") {
		t.Errorf("Pump: %v", err)
	}
	broken.Off()
	g.Append(Append{Entries: entries(3, 1), Done: d})
	if _, err := l.Pump(); err == nil {
		t.Error("Pump works after an error")
	}
	if d.n != 1 || len(fatal) != 1 || l.Err() == nil {
		t.Errorf("%d completions, fatal %v, err %v", d.n, fatal, l.Err())
	}
	if err := g.SetConf(1, &raftpb.ConfState{}); err == nil {
		t.Error("SetConf works after an error")
	}
}

// TestLargeBatch writes more at once than a memtable takes; the engine treats such a batch in a way of its own.
func TestLargeBatch(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db := openEngine(t, fs)
	l := openLog(t, db, Options{})
	var want []string
	for id := range ids.GroupID(2) {
		g := openGroup(t, l, id)
		for i := range uint64(8) {
			e := NewEntryBlock(1).Set(0, raftpb.EntryNormal, 1, i+1, bytes.Repeat([]byte{byte(i)}, 1<<20))
			g.Append(Append{Entries: []*raftpb.Entry{e}, Done: &done{g: g}})
		}
		want = append(want, contents(t, g))
	}
	pump(t, l)
	if c := l.Counters(); c.Batches != 1 || c.Syncs != 1 {
		t.Errorf("%+v", c)
	}
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	db.Close()
	db = openEngine(t, clone)
	defer db.Close()
	l = openLog(t, db, Options{})
	for id := range ids.GroupID(2) {
		if got := contents(t, openGroup(t, l, id)); got != want[id] {
			t.Errorf("group %d differs", id)
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	db := openEngine(t, vfs.NewMem())
	defer db.Close()
	l := openLog(t, db, Options{CacheBytes: 1})
	g := openGroup(t, l, 1)
	data := make([]byte, 10<<10)
	const n = 100
	for i := range uint64(n) {
		e := NewEntryBlock(1).Set(0, raftpb.EntryNormal, 1, i+1, data)
		g.Append(Append{Entries: []*raftpb.Entry{e}, Done: &done{g: g}})
		if i == n/2 {
			if int64(len(data))*n/2 > g.cache.bytes {
				t.Errorf("entries that are not durable left the cache: %d bytes", g.cache.bytes)
			}
			pump(t, l)
		}
		if i > n/2 {
			pump(t, l)
			if g.cache.bytes > minCachePerGroup+2*int64(len(data)) {
				t.Fatalf("cache holds %d bytes", g.cache.bytes)
			}
		}
	}
	ents, err := g.Entries(1, n+1, 1<<40)
	if err != nil || len(ents) != n || l.Counters().EntriesRead == 0 {
		t.Errorf("%d entries, %v, %d read from the engine", len(ents), err, l.Counters().EntriesRead)
	}
}
