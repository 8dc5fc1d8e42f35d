package order

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/storage/key"
)

func openData(t interface {
	Fatal(...any)
	Cleanup(func())
}, fs vfs.FS) *pebble.DB {
	db, err := pebble.Open("data", &pebble.Options{
		FS: fs, Comparer: key.Comparer, DisableWAL: true, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return db
}

type quiet struct{}

func (quiet) Infof(string, ...any)      {}
func (quiet) Errorf(string, ...any)     {}
func (quiet) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// world draws order log entries as a cluster might write them. It also is a naive model of what they must lead to: it keeps every
// seq and every item by itself.
type world struct {
	pos    uint64
	term   uint64
	rev    int64
	comp   int64
	nodes  []uint64
	ranges []*worldRange
	txns   []*worldTxn
	known  map[uint64]bool // members
}

type worldRange struct {
	id      uint64
	gen     uint64
	nodes   []uint64
	stamps  []stamp // by seq-1: facts of the range's log
	ordered uint64
	items   []string // what must have been told, with positions
	at      []uint64
	flushed map[uint64]uint64
	dropped uint64
}

type stamp struct {
	gen, auth uint64
	leases    []int64
}

type worldTxn struct {
	c       *braidpb.TxnCommit
	decided bool
	commit  bool
	rev     int64
}

func newWorld(t *rapid.T) *world {
	return &world{rev: 1, term: 1, nodes: []uint64{11, 12, 13}[:rapid.SampledFrom([]int{1, 3}).Draw(t, "nodes")], known: map[uint64]bool{}}
}

func (w *world) find(id uint64) *worldRange {
	for _, r := range w.ranges {
		if r.id == id {
			return r
		}
	}
	return nil
}

func (w *world) tell(r *worldRange, format string, a ...any) {
	r.items = append(r.items, fmt.Sprintf(format, a...))
	r.at = append(r.at, w.pos)
}

// entry draws the next entry and updates the model.
func (w *world) entry(t *rapid.T) (Point, *braidpb.OrderEntry) {
	w.pos++
	e := &braidpb.OrderEntry{Format: entryFormat}
	if len(w.ranges) == 0 && rapid.Bool().Draw(t, "init") {
		e.Commands = append(e.Commands, w.init(t))
	}
	if rapid.IntRange(0, 9).Draw(t, "new term") == 0 {
		w.term++
	}
	for range rapid.IntRange(0, 3).Draw(t, "commands") {
		switch rapid.IntRange(0, 9).Draw(t, "command") {
		default:
			e.Commands = append(e.Commands, w.cut(t))
		case 0:
			e.Commands = append(e.Commands, w.compact(t))
		case 1:
			e.Commands = append(e.Commands, w.setMember(t))
		case 2, 3:
			e.Commands = append(e.Commands, w.txn(t))
		case 4:
			if len(w.ranges) > 0 {
				e.Commands = append(e.Commands, &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Init{Init: &braidpb.Init{ClusterId: 99}}})
			}
		}
	}
	return Point{Position: ids.Position(w.pos), Term: ids.Term(w.term)}, e
}

func (w *world) init(t *rapid.T) *braidpb.OrderCommand {
	in := &braidpb.Init{ClusterId: 7}
	for _, n := range w.nodes {
		in.Members = append(in.Members, &braidpb.Member{Id: n, PeerUrls: []string{"http://x"}})
		w.known[n] = true
	}
	n := rapid.IntRange(1, 4).Draw(t, "ranges")
	for i := range n {
		d := &braidpb.RangeDescriptor{Id: uint64(i + 1), Generation: 1, Version: 1}
		if i > 0 {
			d.Start = []byte{byte('a' + i)}
		}
		if i < n-1 {
			d.End = []byte{byte('b' + i)}
		}
		r := &worldRange{id: d.Id, gen: 1, flushed: map[uint64]uint64{}}
		for _, x := range w.nodes {
			d.Replicas = append(d.Replicas, &braidpb.Replica{Node: x, ReplicaId: x})
			r.nodes = append(r.nodes, x)
		}
		in.Ranges = append(in.Ranges, d)
		w.ranges = append(w.ranges, r)
	}
	slices.Reverse(in.Ranges)
	return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Init{Init: in}}
}

func (w *world) cut(t *rapid.T) *braidpb.OrderCommand {
	c := &braidpb.Cut{}
	for _, r := range w.ranges {
		for range rapid.IntRange(0, 3).Draw(t, "writes") {
			s := stamp{gen: r.gen, auth: firstAuthRevision}
			switch rapid.IntRange(0, 9).Draw(t, "stamp") {
			case 0:
				s.gen++
			case 1:
				s.auth++
			case 2:
				s.leases = []int64{5}
			case 3:
				s.leases = []int64{5, 6}
			}
			r.stamps = append(r.stamps, s)
		}
		if rapid.Bool().Draw(t, "in cut") && len(r.stamps) > 0 {
			base := rapid.Uint64Range(r.ordered-min(r.ordered, 3), r.ordered).Draw(t, "base")
			through := rapid.Uint64Range(base, uint64(len(r.stamps))).Draw(t, "through")
			if through > base {
				c.Segments = append(c.Segments, r.segment(base, through))
				w.order(r, through)
			}
		}
	}
	for _, r := range w.ranges {
		if rapid.IntRange(0, 3).Draw(t, "flushed") == 0 {
			m := &braidpb.Flushed{Range: r.id, Node: rapid.SampledFrom(r.nodes).Draw(t, "node"), Position: rapid.Uint64Range(0, w.pos-1).Draw(t, "position")}
			c.Flushed = append(c.Flushed, m)
			w.flushed(r, m)
		}
	}
	return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Cut{Cut: c}}
}

func (r *worldRange) segment(base, through uint64) *braidpb.Segment {
	g := &braidpb.Segment{Range: r.id, Base: base, Through: through}
	for q := base + 1; q <= through; q++ {
		s := r.stamps[q-1]
		n := len(g.Runs)
		if n == 0 || g.Runs[n-1].Generation != s.gen || g.Runs[n-1].AuthRevision != s.auth {
			g.Runs = append(g.Runs, &braidpb.Run{Generation: s.gen, AuthRevision: s.auth})
			n++
		}
		g.Runs[n-1].Through = q
		for _, l := range s.leases {
			g.Runs[n-1].Leases = append(g.Runs[n-1].Leases, &braidpb.SeqLease{Seq: q, Lease: l})
		}
	}
	return g
}

func (w *world) order(r *worldRange, through uint64) {
	if through <= r.ordered {
		return
	}
	first, voids := w.rev+1, ""
	for q := r.ordered + 1; q <= through; q++ {
		switch s := r.stamps[q-1]; {
		case s.gen != r.gen:
			voids += fmt.Sprintf(" %d:VOID_GENERATION", q)
		case s.auth != firstAuthRevision:
			voids += fmt.Sprintf(" %d:VOID_AUTH", q)
		case len(s.leases) > 0:
			voids += fmt.Sprintf(" %d:VOID_LEASE", q)
		default:
			w.rev++
		}
	}
	w.tell(r, "seqs %d-%d @%d%s", r.ordered, through, first, voids)
	r.ordered = through
}

func (w *world) flushed(r *worldRange, m *braidpb.Flushed) {
	r.flushed[m.Node] = max(r.flushed[m.Node], m.Position)
	for _, p := range r.at { // dropped: all that more than half have
		n := 0
		for _, x := range r.nodes {
			if r.flushed[x] >= p {
				n++
			}
		}
		if 2*n > len(r.nodes) && p < w.pos {
			r.dropped = max(r.dropped, p)
		}
	}
}

func (w *world) compact(t *rapid.T) *braidpb.OrderCommand {
	rev := rapid.Int64Range(0, w.rev+1).Draw(t, "rev")
	if rev > w.comp && rev <= w.rev {
		w.comp = rev
		for _, r := range w.ranges {
			w.tell(r, "compact %d", rev)
		}
	}
	return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Compact{Compact: &braidpb.Compact{Revision: rev}}}
}

func (w *world) setMember(t *rapid.T) *braidpb.OrderCommand {
	m := &braidpb.Member{Id: rapid.SampledFrom([]uint64{11, 12, 99}).Draw(t, "member"), Name: rapid.StringN(0, 3, -1).Draw(t, "name"), ClientUrls: []string{"http://y"}}
	return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_SetMember{SetMember: &braidpb.SetMember{Member: m}}}
}

func (w *world) txn(t *rapid.T) *braidpb.OrderCommand {
	var x *worldTxn
	if len(w.txns) > 0 && rapid.Bool().Draw(t, "again") {
		x = rapid.SampledFrom(w.txns).Draw(t, "txn")
	} else {
		x = &worldTxn{c: &braidpb.TxnCommit{
			Txn: &braidpb.TxnID{Node: 11, Incarnation: 1, Counter: uint64(len(w.txns) + 1)}, AuthRevision: firstAuthRevision,
			Deadline: w.pos + rapid.Uint64Range(0, 4).Draw(t, "deadline") - min(w.pos, 1),
		}}
		for _, r := range w.ranges {
			if rapid.Bool().Draw(t, "participant") {
				x.c.Participants = append(x.c.Participants, r.id)
				x.c.Generations = append(x.c.Generations, &braidpb.Generation{Generation: r.gen})
			}
		}
		switch rapid.IntRange(0, 5).Draw(t, "fault") {
		case 0:
			x.c.AuthRevision++
		case 1:
			x.c.Leases = []int64{3}
		case 2:
			if len(x.c.Generations) > 0 {
				x.c.Generations[0] = &braidpb.Generation{Generation: 2}
			}
		case 3:
			x.c.Participants = append(x.c.Participants, 77)
			x.c.Generations = append(x.c.Generations, &braidpb.Generation{Generation: 1})
		}
		w.txns = append(w.txns, x)
	}
	late := w.pos > x.c.Deadline
	if rapid.IntRange(0, 2).Draw(t, "abort") == 0 {
		w.decide(x, false, late)
		return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Abort{Abort: &braidpb.TxnAbort{Txn: x.c.Txn, Participants: x.c.Participants, Deadline: x.c.Deadline}}}
	}
	good := !late && x.c.AuthRevision == firstAuthRevision && len(x.c.Leases) == 0 && !slices.Contains(x.c.Participants, 77) &&
		!slices.ContainsFunc(x.c.Generations, func(g *braidpb.Generation) bool { return g.Generation != 1 })
	w.decide(x, good, late)
	return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Commit{Commit: x.c}}
}

func (w *world) decide(x *worldTxn, commit, late bool) {
	if x.decided && !late {
		return
	}
	rev := int64(0)
	if commit {
		w.rev++
		rev = w.rev
	}
	if !late {
		x.decided, x.commit, x.rev = true, commit, rev
	}
	for _, p := range x.c.Participants {
		if r := w.find(p); r != nil {
			w.tell(r, "decision %d commit=%v @%d", x.c.Txn.Counter, commit, rev)
		}
	}
}

func describe(it *braidpb.Item) string {
	switch k := it.GetKind().(type) {
	case *braidpb.Item_Seqs:
		s := fmt.Sprintf("seqs %d-%d @%d", k.Seqs.From, k.Seqs.Through, k.Seqs.FirstRevision)
		for _, v := range k.Seqs.Voids {
			s += fmt.Sprintf(" %d:%v", v.Seq, v.Reason)
		}
		return s
	case *braidpb.Item_Decision:
		return fmt.Sprintf("decision %d commit=%v @%d", k.Decision.Txn.Counter, k.Decision.Commit, k.Decision.Revision)
	case *braidpb.Item_Compact:
		return fmt.Sprintf("compact %d", k.Compact.Revision)
	}
	return "?"
}

// compare holds a state against the model.
func (w *world) compare(t *rapid.T, s *State, told map[uint64][]string) {
	t.Helper()
	if s.revision != ids.Revision(w.rev) || s.compacted != ids.Revision(w.comp) || len(s.ranges) != len(w.ranges) {
		t.Fatalf("revision %d, compacted %d, %d ranges; want %d, %d, %d", s.revision, s.compacted, len(s.ranges), w.rev, w.comp, len(w.ranges))
	}
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	for _, r := range w.ranges {
		x := s.find(ids.RangeID(r.id))
		if uint64(x.ordered) != r.ordered || uint64(x.newestDropped) != r.dropped {
			t.Fatalf("range %d: ordered %d, dropped %d; want %d, %d", r.id, x.ordered, x.newestDropped, r.ordered, r.dropped)
		}
		var kept []string
		for _, it := range s.itemsOf(x, 0) {
			for _, i := range it.Items {
				kept = append(kept, describe(i))
			}
		}
		i := 0
		for i < len(r.at) && r.at[i] <= r.dropped {
			i++
		}
		if diff := cmp.Diff(append([]string(nil), r.items[i:]...), kept); diff != "" {
			t.Fatalf("range %d keeps (-want +got):\n%s", r.id, diff)
		}
		if diff := cmp.Diff(r.items, told[r.id]); diff != "" {
			t.Fatalf("range %d was told (-want +got):\n%s", r.id, diff)
		}
	}
	for _, x := range w.txns {
		d := s.decisions.byTxn[TxnIDOf(x.c.Txn)]
		if want := x.decided && x.c.Deadline >= w.pos; want != (d != nil) {
			t.Fatalf("txn %d: kept %v, want %v", x.c.Txn.Counter, d, want)
		}
		if d != nil && (d.Commit != x.commit || int64(d.Revision) != x.rev) {
			t.Fatalf("txn %d is %+v", x.c.Txn.Counter, d)
		}
	}
}

func persist(t interface{ Fatal(...any) }, s *State, db *pebble.DB) {
	b := db.NewBatch()
	if err := s.Persist(b); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		t.Fatal(err)
	}
}

func equalStates(t *rapid.T, what string, a, b *State) {
	t.Helper()
	x, y := a.Snapshot(), b.Snapshot()
	if !proto.Equal(x, y) || a.at != b.at {
		t.Fatalf("%s (at %v and %v):\n%s", what, a.at, b.at, cmp.Diff(x, y, protocmp.Transform()))
	}
}

// TestStateAgainstModel applies random logs to several states: one that never stops, one that is persisted and loaded
// at random points, one that is replaced by snapshots. All must agree with the model and each other.
func TestStateAgainstModel(t *testing.T) {
	db := openData(t, vfs.NewMem())
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		if err := db.DeleteRange([]byte{key.PrefixOrder}, []byte{key.PrefixOrder + 1}, pebble.NoSync); err != nil {
			rt.Fatal(err)
		}
		a, b, c := NewState(), NewState(), NewState()
		told := map[uint64][]string{}
		for range rapid.IntRange(1, 40).Draw(rt, "entries") {
			at, e := w.entry(rt)
			data, err := EncodeEntry(e.Commands...)
			if err != nil {
				rt.Fatal(err)
			}
			for i, s := range []*State{a, b, c} {
				d, err := DecodeEntry(data)
				if err != nil {
					rt.Fatal(err)
				}
				f := s.Apply(at, d)
				if !slices.IsSortedFunc(f.Items, func(x, y *braidpb.Items) int { return int(x.Range) - int(y.Range) }) {
					rt.Fatalf("items are not in order: %v", f.Items)
				}
				for _, it := range f.Items {
					for _, x := range it.Items {
						if i == 0 {
							told[it.Range] = append(told[it.Range], describe(x))
						}
					}
				}
			}
			if at.Position == 1 {
				conf := &ConfState{Index: 1, Voters: []ids.ReplicaID{11, 12}}
				a.setConf(conf)
				b.setConf(conf)
				c.setConf(conf)
			}
			if rapid.Bool().Draw(rt, "persist") {
				persist(rt, b, db)
				if rapid.Bool().Draw(rt, "restart") {
					if b, err = Load(db); err != nil {
						rt.Fatal(err)
					}
				}
			}
			if rapid.IntRange(0, 9).Draw(rt, "restore") == 0 {
				snap, err := proto.Marshal(c.Snapshot())
				if err != nil {
					rt.Fatal(err)
				}
				if c, err = decodeSnapshot(&SnapMeta{Position: at.Position, Term: at.Term, Conf: c.conf, Data: snap}); err != nil {
					rt.Fatal(err)
				}
				if rapid.Bool().Draw(rt, "persist the snapshot") {
					persist(rt, c, db)
					loaded, err := Load(db)
					if err != nil {
						rt.Fatal(err)
					}
					equalStates(rt, "restored and loaded", c, loaded)
					b = loaded
				}
			}
			w.compare(rt, a, told)
			equalStates(rt, "persisted", a, b)
			equalStates(rt, "restored", a, c)
			if !cmp.Equal(a.conf, b.conf) || !cmp.Equal(a.conf, c.conf) {
				rt.Fatalf("configurations %v, %v, %v", a.conf, b.conf, c.conf)
			}
		}
	})
}

// TestSnapshotReplacesStored sees to it that records of ranges that a snapshot does not have, and of forgotten decisions, go away.
func TestSnapshotReplacesStored(t *testing.T) {
	db := openData(t, vfs.NewMem())
	s := NewState()
	s.Apply(Point{1, 1}, &braidpb.OrderEntry{Commands: []*braidpb.OrderCommand{
		{Kind: &braidpb.OrderCommand_Init{Init: &braidpb.Init{Ranges: []*braidpb.RangeDescriptor{{Id: 1}, {Id: 2, Start: []byte("x")}}}}},
		{Kind: &braidpb.OrderCommand_Abort{Abort: &braidpb.TxnAbort{Txn: &braidpb.TxnID{Node: 1}, Participants: []uint64{1, 2}, Deadline: 9}}},
	}})
	persist(t, s, db)
	o := &braidpb.OrderState{Format: 1, Position: 5, Revision: 3, Ranges: []*braidpb.OrderRange{{Descriptor_: &braidpb.RangeDescriptor{Id: 3}}}}
	r, err := Restore(o, Point{5, 2}, ConfState{})
	if err != nil {
		t.Fatal(err)
	}
	persist(t, r, db)
	got, err := Load(db)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Snapshot(), got.Snapshot(), protocmp.Transform()); diff != "" || len(got.ranges) != 1 || len(got.decisions.byTxn) != 0 {
		t.Fatalf("stored state differs:\n%s", diff)
	}
}
