package order

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// nullHost is a host that keeps the last proposal.
type nullHost struct {
	last  []byte
	fatal error
}

func (h *nullHost) Propose(b []byte) error                     { h.last = append(h.last[:0], b...); return nil }
func (h *nullHost) ReadIndex(uint64)                           {}
func (h *nullHost) Truncate(ids.Position)                      {}
func (h *nullHost) Send(ids.NodeID, LetterKind, proto.Message) {}
func (h *nullHost) CreateRange(*braidpb.RangeDescriptor)       {}
func (h *nullHost) Refill(ids.RangeID, ids.Position)           {}
func (h *nullHost) Dispatch(ids.RangeID, *braidpb.Items)       {}
func (h *nullHost) FlushData(done func())                      { done() }
func (h *nullHost) Fatal(err error)                            { h.fatal = err }

func newMachine(t interface {
	Fatal(...any)
	Cleanup(func())
}, ranges int) (*Machine, *nullHost) {
	m, _, err := New(Config{Node: 1, Incarnation: 1, Data: openData(t, vfs.NewMem())})
	if err != nil {
		t.Fatal(err)
	}
	h := &nullHost{}
	m.Start(h)
	m.Role(Role{Term: 1, Leader: 1, LeaderReplica: 1, IsLeader: true})
	data, err := EncodeEntry(&braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Init{Init: benchInit(ranges)}})
	if err != nil {
		t.Fatal(err)
	}
	m.Deliver([]Entry{{Position: 1, Term: 1, Data: data}})
	m.Flush()
	return m, h
}

// BenchmarkMachine measures all that the leader's node does for one write of one range: progress, cut, apply, publish.
func BenchmarkMachine(b *testing.B) {
	m, h := newMachine(b, 4)
	seq, pos := ids.Seq(0), ids.Position(1)
	b.ReportAllocs()
	for b.Loop() {
		m.Handle([]any{Progress{Range: 2, Term: 1, From: seq, Through: seq + 1, Generation: 1, AuthRevision: 1}})
		m.Flush()
		seq++
		pos++
		m.Deliver([]Entry{{Position: pos, Term: 1, Data: append([]byte(nil), h.last...)}})
		m.Flush()
	}
	if m.View().Revision != ids.Revision(seq)+1 {
		b.Fatalf("revision %d after %d writes", m.View().Revision, seq)
	}
}

// TestFatal: what cannot be read stops the node, and nothing is answered with success afterwards.
func TestFatal(t *testing.T) {
	future, err := proto.Marshal(&braidpb.OrderEntry{Format: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{{"a future format", future, ErrFormat}, {"garbage", []byte{0xff}, ErrCorrupt}} {
		t.Run(c.name, func(t *testing.T) {
			m, h := newMachine(t, 1)
			var outcomes []error
			read := Read{Done: func(_ ids.Position, err error) { outcomes = append(outcomes, err) }}
			propose := Propose{Cmd: &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Compact{Compact: &braidpb.Compact{Revision: 1}}}, Done: func(r Result) { outcomes = append(outcomes, r.Err) }}
			m.Handle([]any{read, propose})
			m.Flush()
			m.Deliver([]Entry{{Position: 2, Term: 1, Data: c.data}})
			m.Flush()
			if !errors.Is(h.fatal, c.want) || !strings.Contains(h.fatal.Error(), "position 2") {
				t.Fatalf("fatal: %v", h.fatal)
			}
			m.Handle([]any{read, propose, Flushed{}})
			m.Tick()
			m.Deliver(nil)
			m.Role(Role{Term: 2})
			m.ReadState(1, 1)
			m.Flush()
			if _, ok := m.SnapshotMeta(); ok {
				t.Error("a dead machine hands out its state")
			}
			if len(outcomes) != 4 {
				t.Fatalf("outcomes: %v", outcomes)
			}
			for _, err := range outcomes {
				if !errors.Is(err, ErrStopped) {
					t.Errorf("outcome: %v", err)
				}
			}
			if p := m.View().Position; p != 1 {
				t.Errorf("position %d is published", p)
			}
		})
	}
}

func TestTooManyProposals(t *testing.T) {
	m, _, err := New(Config{Node: 1, Data: openData(t, vfs.NewMem()), Limits: Limits{MaxProposals: 3}})
	if err != nil {
		t.Fatal(err)
	}
	m.Start(&nullHost{})
	full := 0
	for range 5 {
		m.Handle([]any{Propose{Cmd: &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Compact{Compact: &braidpb.Compact{Revision: 1}}}, Done: func(r Result) {
			if errors.Is(r.Err, ErrFull) {
				full++
			}
		}}})
	}
	if full != 2 {
		t.Errorf("%d proposals refused, want 2", full)
	}
}

// TestBadLetters: nothing that another node sends may do harm.
func TestBadLetters(t *testing.T) {
	m, h := newMachine(t, 2)
	for k := range LetterKind(6) {
		m.Handle([]any{Letter{From: 2, Kind: k, Body: []byte{0xff, 1, 2}}, Letter{From: 2, Kind: k}})
		m.Flush()
	}
	r, err := proto.Marshal(&braidpb.Report{Node: 2, Segments: []*braidpb.Segment{{Range: 9, Through: 3}, {Range: 1, Through: 5}}, Flushed: []*braidpb.Flushed{{Range: 9, Position: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	m.Handle([]any{Letter{From: 2, Kind: LetterReport, Body: r}})
	m.Flush()
	if h.last != nil || h.fatal != nil {
		t.Errorf("proposed %q, fatal %v", h.last, h.fatal)
	}
}

func TestConfig(t *testing.T) {
	in := func(ds ...*braidpb.RangeDescriptor) *braidpb.Init { return &braidpb.Init{Ranges: ds} }
	reps := []*braidpb.Replica{{Node: 1, ReplicaId: 1}}
	db := openData(t, vfs.NewMem())
	for _, c := range []struct {
		name string
		cfg  Config
		want string // substrings, separated by |
	}{
		{"good", Config{Node: 1, Data: db, Bootstrap: benchInit(3)}, ""},
		{"everything", Config{Limits: Limits{History: -1}, Timing: Timing{ReadTicks: -1}}, "no ID|no data engine|limit|timing"},
		{"no ranges", Config{Node: 1, Data: db, Bootstrap: in()}, "missing"},
		{"gap", Config{Node: 1, Data: db, Bootstrap: in(&braidpb.RangeDescriptor{Id: 1, End: []byte("a"), Replicas: reps}, &braidpb.RangeDescriptor{Id: 2, Start: []byte("b"), Replicas: reps})}, `starts at "b"`},
		{"no end", Config{Node: 1, Data: db, Bootstrap: in(&braidpb.RangeDescriptor{Id: 1, End: []byte("a"), Replicas: reps})}, `ends at "a"`},
		{"no beginning, no replicas, no ID", Config{Node: 1, Data: db, Bootstrap: in(&braidpb.RangeDescriptor{Start: []byte("a")})}, `starts at "a"|no replicas|zero`},
		{"twice", Config{Node: 1, Data: db, Bootstrap: in(&braidpb.RangeDescriptor{Id: 1, Replicas: reps}, &braidpb.RangeDescriptor{Id: 1, Replicas: reps})}, "not unique"},
	} {
		err := c.cfg.Validate()
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, w := range strings.Split(c.want, "|") {
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), w)) {
				t.Errorf("%s: %v; want %q", c.name, err, w)
			}
		}
	}
	if _, _, err := New(Config{}); err == nil {
		t.Error("New takes an empty configuration")
	}
}

// TestLoadRefuses changes stored records one by one: nothing broken is taken for a state.
func TestLoadRefuses(t *testing.T) {
	db := openData(t, vfs.NewMem())
	s := NewState()
	s.Apply(Point{1, 1}, &braidpb.OrderEntry{Commands: []*braidpb.OrderCommand{
		{Kind: &braidpb.OrderCommand_Init{Init: benchInit(1)}},
		{Kind: &braidpb.OrderCommand_Cut{Cut: &braidpb.Cut{Segments: []*braidpb.Segment{{Range: 1, Through: 1, Runs: []*braidpb.Run{{Through: 1, Generation: 1, AuthRevision: 1}}}}}}},
		{Kind: &braidpb.OrderCommand_Abort{Abort: &braidpb.TxnAbort{Txn: &braidpb.TxnID{Node: 1}, Deadline: 9}}},
	}})
	s.setConf(&ConfState{Voters: []ids.ReplicaID{1}})
	persist(t, s, db)
	header, items := appendKey(nil, recordHeader), appendItemKey(nil, 1, 1)
	for _, c := range []struct {
		name       string
		key, value []byte // value nil: deleted
		want       error
	}{
		{"header lost", header, nil, ErrCorrupt},
		{"header of a future version", header, []byte{2, 1, 1, 1}, ErrFormat},
		{"header cut short", header, []byte{1, 1, 1, 1}, ErrCorrupt},
		{"empty record", header, []byte{}, ErrCorrupt},
		{"items broken", items, []byte{1, 99}, ErrCorrupt},
		{"items of no range", appendItemKey(nil, 7, 1), []byte{1, itemCompact, 1}, ErrCorrupt},
		{"items of the future", appendItemKey(nil, 1, 7), []byte{1, itemCompact, 1}, ErrCorrupt},
		{"key of items", appendKey(nil, recordItems, 1), []byte{1, itemCompact, 1}, ErrCorrupt},
		{"range broken", appendKey(nil, recordRange, 1), []byte{1, 0xff}, ErrCorrupt},
		{"range without ID", appendKey(nil, recordRange, 1), []byte{1}, ErrCorrupt},
		{"decision broken", appendDecisionKey(nil, ids.TxnID{Node: 1}), []byte{1}, ErrCorrupt},
		{"key of a decision", appendKey(nil, recordDecision, 1), []byte{1, 0, 0, 0}, ErrCorrupt},
		{"member broken", appendKey(nil, recordMember, 1), []byte{1, 0xff}, ErrCorrupt},
		{"configuration broken", appendKey(nil, recordConf), []byte{1, 0xff}, ErrCorrupt},
	} {
		b := db.NewIndexedBatch()
		var err error
		if c.value == nil {
			err = b.Delete(c.key, nil)
		} else {
			err = b.Set(c.key, c.value, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Load(batchReader{b}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		b.Close()
	}
	if got, err := Load(db); err != nil || !proto.Equal(got.Snapshot(), s.Snapshot()) {
		t.Fatalf("unchanged: %v", err)
	}
}

type batchReader struct{ b *pebble.Batch }

func (r batchReader) NewIter(o *pebble.IterOptions) (*pebble.Iterator, error) { return r.b.NewIter(o) }

// FuzzSnapshot decodes anything as a snapshot; what is taken must be persistable and the same afterwards.
func FuzzSnapshot(f *testing.F) {
	s := NewState()
	s.Apply(Point{1, 1}, &braidpb.OrderEntry{Commands: []*braidpb.OrderCommand{
		{Kind: &braidpb.OrderCommand_Init{Init: benchInit(2)}},
		{Kind: &braidpb.OrderCommand_Cut{Cut: &braidpb.Cut{Segments: []*braidpb.Segment{{Range: 1, Through: 1, Runs: []*braidpb.Run{{Through: 1, Generation: 1, AuthRevision: 1}}}}}}},
		{Kind: &braidpb.OrderCommand_Abort{Abort: &braidpb.TxnAbort{Txn: &braidpb.TxnID{Node: 1}, Deadline: 9}}},
	}})
	b, err := proto.Marshal(s.Snapshot())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSnapshot(&SnapMeta{Position: 1, Term: 1, Data: b})
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		s.Snapshot()
		s.Apply(Point{2, 1}, nil)
	})
}

// FuzzEntry decodes anything as an entry.
func FuzzEntry(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{8, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := DecodeEntry(b); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
	})
}
