package check

import (
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// both writes a and b in one transaction, answered at rev.
func both(invoke, ret, rev int64) Op {
	return answered(invoke, ret, &pb.TxnRequest{Success: []*pb.RequestOp{putOp("a", "t"), putOp("b", "t")}},
		&pb.TxnResponse{Header: at(rev), Succeeded: true, Responses: []*pb.ResponseOp{putResp(), putResp()}})
}

func swap(invoke, ret int64, expect int64, v string) Op {
	return answered(invoke, ret, &pb.TxnRequest{
		Compare: []*pb.Compare{modIs("a", expect)},
		Success: []*pb.RequestOp{putOp("a", v)},
		Failure: []*pb.RequestOp{rangeOp("a", "")},
	}, nil)
}

func swapped(op Op, rev int64) Op {
	op.Response = &pb.TxnResponse{Header: at(rev), Succeeded: true, Responses: []*pb.ResponseOp{putResp()}}
	return op
}

func compactAt(invoke, ret, rev, header int64) Op {
	return answered(invoke, ret, &pb.CompactionRequest{Revision: rev}, &pb.CompactionResponse{Header: at(header)})
}

func deleted(invoke, ret int64, k, end string, rev, n int64) Op {
	return answered(invoke, ret, &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(end)}, &pb.DeleteRangeResponse{Header: at(rev), Deleted: n})
}

// TestFaults gives each kind of broken history to Check and wants its name, and clean neighbours of
// them, which must not be accused.
func TestFaults(t *testing.T) {
	a2, a3 := putEvent(2, "a", "1"), putEvent(3, "a", "2")
	a2.Sub, a3.Sub = 0, 0
	sub1 := func(e Event) Event { e.Sub = 1; return e }
	for _, tc := range []struct {
		name   string
		ops    []Op
		events []Event
		final  int64
		want   Name // "" for clean
	}{
		{"clean", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), getAt(4, 5, "a", 3, kv("a", "2", 2, 3, 2))}, []Event{a2, a3}, 3, ""},
		{"unknown request", []Op{answered(0, 1, "hello", &pb.PutResponse{Header: at(2)})}, nil, 1, BadHistory},
		{"returned before sent", []Op{putAt(5, 1, "a", "1", 2)}, []Event{a2}, 2, BadHistory},
		{"hole in the revisions", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 4)}, []Event{a2, putEvent(4, "a", "2")}, 4, RevisionGap},
		{"key twice", []Op{both(0, 1, 2)}, []Event{putEvent(2, "a", "t"), sub1(putEvent(2, "a", "t"))}, 2, BadEvents},
		{"deletion of nothing", []Op{open(0, &pb.DeleteRangeRequest{Key: []byte("a")})}, []Event{deleteEvent(2, "a")}, 2, BadEvents},
		{"wrong version", []Op{putAt(0, 1, "a", "1", 2)}, []Event{{Revision: 2, Key: "a", Value: "1", Create: 2, Version: 2}}, 2, BadEvents},
		{"event beyond the end", []Op{putAt(0, 1, "a", "1", 2)}, []Event{a2, a3}, 2, BadEvents},
		{"one revision for two writes", []Op{putAt(0, 1, "a", "1", 2), putAt(0, 1, "b", "1", 2)}, []Event{a2}, 2, DuplicateRevision},
		{"acknowledged, then gone", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3)}, []Event{a2}, 2, LostRevision},
		{"acknowledged, another write in its place", []Op{putAt(0, 1, "a", "1", 2), open(0, putReq("b", "1"))}, []Event{putEvent(2, "b", "1")}, 2, LostWrite},
		{"half a transaction", []Op{both(0, 1, 2)}, []Event{putEvent(2, "a", "t")}, 2, TornWrite},
		{"whole transaction", []Op{both(0, 1, 2)}, []Event{putEvent(2, "a", "t"), sub1(putEvent(2, "b", "t"))}, 2, ""},
		{"subs unknown", []Op{both(0, 1, 2)}, []Event{{Revision: 2, Sub: -1, Key: "b", Value: "t"}, {Revision: 2, Sub: -1, Key: "a", Value: "t"}}, 2, ""},
		{"transaction in the wrong order", []Op{both(0, 1, 2)}, []Event{putEvent(2, "b", "t"), sub1(putEvent(2, "a", "t"))}, 2, WrongSub},
		{"another value", []Op{putAt(0, 1, "a", "1", 2)}, []Event{putEvent(2, "a", "other")}, 2, WrongEffect},
		{"compare-and-swap on an old revision", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), swapped(swap(4, 5, 2, "3"), 4)},
			[]Event{a2, a3, putEvent(4, "a", "3")}, 4, WrongAnswer},
		{"compare-and-swap", []Op{putAt(0, 1, "a", "1", 2), swapped(swap(4, 5, 2, "2"), 3)}, []Event{a2, a3}, 3, ""},
		{"deletion that counts wrongly", []Op{putAt(0, 1, "a", "1", 2), deleted(2, 3, "a", "z", 3, 2)}, []Event{a2, deleteEvent(3, "a")}, 3, WrongAnswer},
		{"deletion that denies its effect", []Op{putAt(0, 1, "a", "1", 2), deleted(2, 3, "a", "", 2, 0)}, []Event{a2}, 2, WrongAnswer},
		{"deletion", []Op{putAt(0, 1, "a", "1", 2), deleted(2, 3, "a", "z", 3, 1), deleted(4, 5, "a", "z", 3, 0)}, []Event{a2, deleteEvent(3, "a")}, 3, ""},
		{"value from nowhere", []Op{putAt(0, 1, "a", "1", 2), getAt(2, 3, "a", 2, kv("a", "x", 2, 2, 1))}, []Event{a2}, 2, WrongRead},
		{"right revision, old value", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), getAt(4, 5, "a", 3, kv("a", "1", 2, 2, 1))}, []Event{a2, a3}, 3, WrongRead},
		{"historical read of another revision", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), historicalAt(4, 5, "a", 2, 3, kv("a", "2", 2, 3, 2))},
			[]Event{a2, a3}, 3, WrongRead},
		{"historical read", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), historicalAt(4, 5, "a", 2, 3, kv("a", "1", 2, 2, 1))}, []Event{a2, a3}, 3, ""},
		{"historical read of the future", []Op{putAt(0, 1, "a", "1", 2), historicalAt(4, 5, "a", 3, 2)}, []Event{a2}, 2, WrongRead},
		{"stale read", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), getAt(4, 5, "a", 2, kv("a", "1", 2, 2, 1))}, []Event{a2, a3}, 3, StaleRead},
		{"concurrent read may be older", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 6, "a", "2", 3), getAt(4, 5, "a", 2, kv("a", "1", 2, 2, 1))}, []Event{a2, a3}, 3, ""},
		{"reads go back", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 9, "a", "2", 3), getAt(3, 4, "a", 3, kv("a", "2", 2, 3, 2)), getAt(5, 6, "a", 2, kv("a", "1", 2, 2, 1))},
			[]Event{a2, a3}, 3, StaleRead},
		{"read sees a write that was not yet sent", []Op{putAt(0, 1, "a", "1", 2), getAt(2, 3, "a", 3, kv("a", "2", 2, 3, 2)), putAt(4, 5, "a", "2", 3)}, []Event{a2, a3}, 3, RealTimeOrder},
		{"writes in the wrong order", []Op{putAt(0, 1, "a", "2", 3), putAt(2, 3, "a", "1", 2)}, []Event{a2, a3}, 3, RealTimeOrder},
		{"write at the base", []Op{putAt(0, 1, "a", "1", 1)}, nil, 1, RealTimeOrder},
		{"serializable read may be old", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), serializableAt("n1", 4, 5, "a", 2, kv("a", "1", 2, 2, 1))}, []Event{a2, a3}, 3, ""},
		{"serializable read of a state that never was", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), serializableAt("n1", 4, 5, "a", 2, kv("a", "2", 2, 3, 2))},
			[]Event{a2, a3}, 3, WrongRead},
		{"node goes back", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), serializableAt("n1", 4, 5, "a", 3, kv("a", "2", 2, 3, 2)), serializableAt("n1", 6, 7, "a", 2, kv("a", "1", 2, 2, 1))},
			[]Event{a2, a3}, 3, NodeWentBack},
		{"another node may be behind", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), serializableAt("n1", 4, 5, "a", 3, kv("a", "2", 2, 3, 2)), serializableAt("n2", 6, 7, "a", 2, kv("a", "1", 2, 2, 1))},
			[]Event{a2, a3}, 3, ""},
		{"ambiguous write that happened", []Op{open(0, putReq("a", "1")), putAt(2, 3, "a", "2", 3)}, []Event{a2, a3}, 3, ""},
		{"ambiguous write that did not", []Op{open(0, putReq("a", "9")), putAt(2, 3, "a", "1", 2)}, []Event{a2}, 2, ""},
		{"ambiguous write that happened late", []Op{open(0, putReq("a", "2")), putAt(2, 3, "a", "1", 2)}, []Event{a2, a3}, 3, ""},
		{"ambiguous write before it was sent", []Op{open(9, putReq("a", "1")), putAt(2, 3, "a", "2", 3)}, []Event{a2, a3}, 3, PhantomWrite},
		{"nobody's write", []Op{putAt(0, 1, "a", "1", 2)}, []Event{a2, a3}, 3, PhantomWrite},
		{"half an ambiguous transaction", []Op{open(0, both(0, 1, 2).Request)}, []Event{putEvent(2, "a", "t")}, 2, PhantomWrite},
		{"refused write that happened", []Op{putAt(0, 1, "a", "1", 2), refused(2, 3, putReq("a", "2"), NotJudged)}, []Event{a2, a3}, 3, FailedWriteApplied},
		{"refused write", []Op{putAt(0, 1, "a", "1", 2), refused(2, 3, putReq("a", "2"), NotJudged)}, []Event{a2}, 2, ""},
		{"answered write that happened twice", []Op{putAt(0, 1, "a", "1", 2)}, []Event{a2, putEvent(3, "a", "1")}, 3, AppliedTwice},
		{"ambiguous write that happened twice", []Op{open(0, putReq("a", "1"))}, []Event{a2, putEvent(3, "a", "1")}, 3, AppliedTwice},
		{"two equal ambiguous writes", []Op{open(0, putReq("a", "1")), open(0, putReq("a", "1"))}, []Event{a2, putEvent(3, "a", "1")}, 3, ""},
		{"read below a compaction", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), compactAt(4, 5, 3, 3), historicalAt(6, 7, "a", 2, 3, kv("a", "1", 2, 2, 1))},
			[]Event{a2, a3}, 3, ReadBelowCompaction},
		{"read at a compaction", []Op{putAt(0, 1, "a", "1", 2), putAt(2, 3, "a", "2", 3), compactAt(4, 5, 3, 3), historicalAt(6, 7, "a", 3, 3, kv("a", "2", 2, 3, 2))}, []Event{a2, a3}, 3, ""},
		{"compaction in the future", []Op{putAt(0, 1, "a", "1", 2), compactAt(4, 5, 3, 2)}, []Event{a2}, 2, WrongAnswer},
		{"compacted, they say", []Op{putAt(0, 1, "a", "1", 2), refused(2, 3, historicalAt(2, 3, "a", 2, 2).Request, Compacted)}, []Event{a2}, 2, WrongRefusal},
		{"compacted indeed", []Op{putAt(0, 1, "a", "1", 2), putAt(0, 1, "b", "1", 3), compactAt(4, 5, 3, 3), refused(2, 9, historicalAt(2, 3, "a", 2, 2).Request, Compacted)},
			[]Event{a2, putEvent(3, "b", "1")}, 3, ""},
		{"future, they say", []Op{putAt(0, 1, "a", "1", 2), refused(2, 3, historicalAt(2, 3, "a", 2, 2).Request, FutureRevision)}, []Event{a2}, 2, WrongRefusal},
		{"future indeed", []Op{putAt(0, 1, "a", "1", 2), refused(2, 3, historicalAt(2, 3, "a", 3, 2).Request, FutureRevision)}, []Event{a2}, 2, ""},
		{"no such key, they say", []Op{putAt(0, 1, "a", "1", 2), refused(2, 3, &pb.PutRequest{Key: []byte("a"), IgnoreValue: true}, KeyNotFound)}, []Event{a2}, 2, WrongRefusal},
		{"no such key", []Op{putAt(0, 1, "a", "1", 2), refused(2, 3, &pb.PutRequest{Key: []byte("b"), IgnoreValue: true}, KeyNotFound)}, []Event{a2}, 2, ""},
		{"no such key for a moment", []Op{putAt(0, 1, "a", "1", 2), deleted(2, 9, "a", "", 3, 1), refused(3, 4, &pb.PutRequest{Key: []byte("a"), IgnoreValue: true}, KeyNotFound)},
			[]Event{a2, deleteEvent(3, "a")}, 3, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Check(History{Base: 1, Ops: tc.ops, Events: tc.events, Final: tc.final})
			switch {
			case tc.want == "" && r.Err() != nil:
				t.Fatalf("accused: %v", r.Err())
			case tc.want != "" && !r.Has(tc.want):
				t.Fatalf("want %s, got %v", tc.want, r.Err())
			}
		})
	}
}

// TestLimitBeforeSort: with a sort target but no order, etcd limits in key order and sorts what is left.
func TestLimitBeforeSort(t *testing.T) {
	ops := []Op{putAt(0, 1, "c", "1", 2), putAt(2, 3, "b", "1", 3), putAt(4, 5, "a", "1", 4)}
	events := []Event{putEvent(2, "c", "1"), putEvent(3, "b", "1"), putEvent(4, "a", "1")}
	list := func(order pb.RangeRequest_SortOrder, kvs ...*mvccpb.KeyValue) Op {
		return answered(6, 7, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Limit: 1, SortTarget: pb.RangeRequest_CREATE, SortOrder: order},
			&pb.RangeResponse{Header: at(4), Kvs: kvs, Count: 3, More: true})
	}
	ops = append(ops, list(pb.RangeRequest_NONE, kv("b", "1", 3, 3, 1)), list(pb.RangeRequest_ASCEND, kv("c", "1", 2, 2, 1)))
	if err := Check(History{Base: 1, Final: 4, Ops: ops, Events: events}).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestInitialState checks histories of a store that was not empty.
func TestInitialState(t *testing.T) {
	h := History{
		Base: 7, Initial: []*mvccpb.KeyValue{kv("a", "0", 3, 5, 2)}, Final: 8,
		Ops:    []Op{putAt(0, 3, "a", "1", 8), getAt(1, 2, "a", 7, kv("a", "0", 3, 5, 2)), getAt(4, 5, "a", 8, kv("a", "1", 3, 8, 3))},
		Events: []Event{{Revision: 8, Key: "a", Value: "1", Create: 3, Version: 3}},
	}
	if err := Check(h).Err(); err != nil {
		t.Fatal(err)
	}
	h.Ops = append(h.Ops, getAt(6, 7, "a", 6, kv("a", "0", 3, 5, 2)))
	if r := Check(h); !r.Has(StaleRead) {
		t.Fatalf("a read below the base: %v", r.Err())
	}
	h.Final = 3
	if r := Check(h); !r.Has(LostRevision) {
		t.Fatalf("an end below the base: %v", r.Err())
	}
}

// TestReportIsBounded: many faults do not make an endless report.
func TestReportIsBounded(t *testing.T) {
	var ops []Op
	for i := range int64(100) {
		ops = append(ops, putAt(i*2, i*2+1, "a", fmt.Sprint(i), 5+i))
	}
	r := Check(History{Base: 1, Final: 1, Ops: ops, MaxFaults: 3})
	if len(r.Faults) != 3 || r.More != 97 {
		t.Fatalf("%d faults, %d more", len(r.Faults), r.More)
	}
}

// TestDiff gets events from the contents at neighbouring revisions.
func TestDiff(t *testing.T) {
	before := []*mvccpb.KeyValue{kv("a", "1", 2, 2, 1), kv("b", "1", 3, 3, 1), kv("d", "1", 4, 4, 1)}
	after := []*mvccpb.KeyValue{kv("b", "2", 3, 5, 2), kv("c", "1", 5, 5, 1), kv("d", "1", 4, 4, 1)}
	got, err := Diff(before, after, 5)
	if err != nil {
		t.Fatal(err)
	}
	want := []Event{
		{Revision: 5, Sub: -1, Key: "a", Delete: true},
		{Revision: 5, Sub: -1, Key: "b", Value: "2", Create: 3, Version: 2},
		{Revision: 5, Sub: -1, Key: "c", Value: "1", Create: 5, Version: 1},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || got[1] != want[1] {
		t.Fatalf("got %v, want %v", got, want)
	}
	if _, err := Diff(before, after, 6); err == nil {
		t.Fatal("contents that are no neighbours were accepted")
	}
}

// TestSameContent finds the first difference between nodes.
func TestSameContent(t *testing.T) {
	a := Content{Node: "n1", Revision: 3, Events: []Event{putEvent(2, "a", "1"), putEvent(3, "a", "2")}}
	b := Content{Node: "n2", Revision: 3, Events: []Event{putEvent(2, "a", "1"), putEvent(3, "a", "2")}}
	if f := SameContent([]Content{a, b}); len(f) != 0 {
		t.Fatal(f)
	}
	b.Events = []Event{putEvent(2, "a", "1"), putEvent(3, "a", "x")}
	if f := SameContent([]Content{a, b}); len(f) != 1 || f[0].Name != NodesDiffer || f[0].Revision != 3 {
		t.Fatal(f)
	}
	b.Events = a.Events[:1]
	if f := SameContent([]Content{a, b}); len(f) != 1 || f[0].Revision != 3 {
		t.Fatal(f)
	}
	b.Events, b.Revision = a.Events, 4
	if f := SameContent([]Content{a, b}); len(f) != 1 {
		t.Fatal(f)
	}
}

// TestClassify: only errors that say "not done" are certain.
func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		err     error
		outcome Outcome
		refusal Refusal
	}{
		{nil, OK, NotJudged},
		{rpctypes.ErrCompacted, Failed, Compacted},
		{rpctypes.ErrGRPCCompacted, Failed, Compacted},
		{fmt.Errorf("reading: %w", rpctypes.ErrGRPCFutureRev), Ambiguous, NotJudged}, // no longer the store's words
		{rpctypes.ErrGRPCFutureRev, Failed, FutureRevision},
		{rpctypes.ErrGRPCKeyNotFound, Failed, KeyNotFound},
		{rpctypes.ErrGRPCTooManyOps, Failed, NotJudged},
		{rpctypes.ErrGRPCTimeout, Ambiguous, NotJudged},
		{rpctypes.ErrLeaderChanged, Ambiguous, NotJudged},
		{rpctypes.ErrGRPCNoLeader, Ambiguous, NotJudged},
		{errors.New("connection reset"), Ambiguous, NotJudged},
	} {
		if o, r := Classify(tc.err); o != tc.outcome || r != tc.refusal {
			t.Errorf("%v: %v, %v", tc.err, o, r)
		}
	}
}

// TestRecover finds an order where there is one, and says so where there is none.
func TestRecover(t *testing.T) {
	ops := []Op{
		open(0, putReq("a", "1")), putAt(0, 9, "b", "1", 2), putAt(0, 9, "a", "2", 4),
		getAt(10, 11, "a", 4, kv("a", "2", 3, 4, 2)), historicalAt(12, 13, "a", 3, 4, kv("a", "1", 3, 3, 1)),
		open(5, putReq("c", "never")), refused(6, 7, putReq("c", "no"), NotJudged),
		serializableAt("n1", 14, 15, "b", 2, kv("b", "1", 2, 2, 1)),
	}
	h := History{Base: 1, Ops: ops}
	events, final, err := Recover(h, time.Minute)
	if err != nil || final != 4 {
		t.Fatalf("final %d, %v", final, err)
	}
	h.Events, h.Final = events, final
	r := Check(h)
	if r.Err() != nil || r.Happened != 1 || r.Ambiguous != 2 {
		t.Fatalf("%+v, %v", r, r.Err())
	}
	h.Ops = append(h.Ops, getAt(20, 21, "a", 3, kv("a", "1", 3, 3, 1)))
	if _, _, err := Recover(h, time.Minute); !errors.Is(err, ErrNoOrder) {
		t.Fatalf("a stale read: %v", err)
	}
}
