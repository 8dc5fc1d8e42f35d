package eval_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/range/latch"
)

func put(k, v string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(k), Value: []byte(v)}}}
}

func putOp(r *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
}

func del(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(end)}}}
}

func get(k, end string) *pb.RequestOp {
	return getOp(&pb.RangeRequest{Key: []byte(k), RangeEnd: []byte(end)})
}

func getOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func nested(t *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
}

type ops = []*pb.RequestOp

// text shows keys as key=value@create.mod.version.
func text(kvs []*mvccpb.KeyValue) string {
	var out []string
	for _, kv := range kvs {
		if kv == nil {
			out = append(out, "none")
			continue
		}
		s := fmt.Sprintf("%s=%s@%d.%d.%d", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
		if kv.Lease != 0 {
			s += fmt.Sprintf("/%d", kv.Lease)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func writesText(ws []eval.Write) string {
	var out []string
	for _, w := range ws {
		s := fmt.Sprintf("%d:%s=%s", w.Sub, w.Key, w.Value)
		if w.Delete {
			s = fmt.Sprintf("%d:-%s", w.Sub, w.Key)
		}
		if w.Lease != 0 {
			s += fmt.Sprintf("/%d", w.Lease)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: (-want +got)\n%s", what, d)
	}
}

func wantErr(t *testing.T, what string, r eval.Result, want error) {
	t.Helper()
	if !errors.Is(r.Err, want) || r.NeedOrdered || len(r.Writes) > 0 || r.Put != nil || r.Delete != nil || r.Txn != nil || r.Header() != nil {
		t.Errorf("%s: %+v, want nothing but %v", what, r, want)
	}
}

func TestPut(t *testing.T) {
	s := newStore().with("a", "1")
	s.leases[7] = true
	r := eval.Put(s, &pb.PutRequest{Key: []byte("a"), Value: []byte("2"), PrevKv: true, Lease: 7})
	equal(t, "writes", writesText(r.Writes), "0:a=2/7")
	s.apply(&r)
	equal(t, "header", r.Header().Revision, int64(3))
	equal(t, "prev_kv", text([]*mvccpb.KeyValue{r.Put.PrevKv}), "a=1@2.2.1")
	equal(t, "state", text(s.span(nil, nil, s.rev)), "a=2@2.3.2/7")

	r = eval.Put(s, &pb.PutRequest{Key: []byte("a"), IgnoreValue: true})
	equal(t, "the value stays, the lease goes", writesText(r.Writes), "0:a=2")
	r = eval.Put(s, &pb.PutRequest{Key: []byte("a"), Value: []byte("3"), IgnoreLease: true})
	equal(t, "the lease stays", writesText(r.Writes), "0:a=3/7")
	r = eval.Put(s, &pb.PutRequest{Key: []byte("new"), PrevKv: true})
	s.apply(&r)
	equal(t, "prev_kv of a new key", r.Put.PrevKv == nil, true)

	wantErr(t, "unknown lease", eval.Put(s, &pb.PutRequest{Key: []byte("a"), Lease: 8}), rpctypes.ErrGRPCLeaseNotFound)
	wantErr(t, "unknown lease, missing key", eval.Put(s, &pb.PutRequest{Key: []byte("x"), Lease: 8, IgnoreValue: true}), rpctypes.ErrGRPCLeaseNotFound)
	wantErr(t, "ignore_value on a missing key", eval.Put(s, &pb.PutRequest{Key: []byte("x"), IgnoreValue: true}), rpctypes.ErrGRPCKeyNotFound)
	wantErr(t, "ignore_lease on a missing key", eval.Put(s, &pb.PutRequest{Key: []byte("x"), IgnoreLease: true}), rpctypes.ErrGRPCKeyNotFound)
}

func TestDeleteRange(t *testing.T) {
	for _, c := range []struct {
		key, end, writes, prev string
	}{
		{"b", "", "0:-b", "b=2@3.3.1"},
		{"x", "", "", ""},
		{"a", "c", "0:-a 1:-b", "a=1@2.2.1 b=2@3.3.1"},
		{"b", "\x00", "0:-b 1:-c 2:-d", "b=2@3.3.1 c=3@4.4.1 d=4@5.5.1"},
		{"\x00", "\x00", "0:-a 1:-b 2:-c 3:-d", "a=1@2.2.1 b=2@3.3.1 c=3@4.4.1 d=4@5.5.1"},
		{"c", "a", "", ""},
		{"c", "c", "", ""},
		{"x", "z", "", ""},
	} {
		s := newStore().with("a", "1", "b", "2", "c", "3", "d", "4")
		before := s.rev
		r := eval.DeleteRange(s, &pb.DeleteRangeRequest{Key: []byte(c.key), RangeEnd: []byte(c.end), PrevKv: true})
		equal(t, c.key+" writes", writesText(r.Writes), c.writes)
		s.apply(&r)
		equal(t, c.key+" prev_kvs", text(r.Delete.PrevKvs), c.prev)
		equal(t, c.key+" deleted", int(r.Delete.Deleted), len(r.Writes))
		equal(t, c.key+" header", r.Header().Revision, int64(s.rev))
		equal(t, c.key+" took a revision", s.rev > before, len(r.Writes) > 0)
	}
	s := newStore().with("a", "1")
	r := eval.DeleteRange(s, &pb.DeleteRangeRequest{Key: []byte("a")})
	s.apply(&r)
	equal(t, "prev_kvs not asked for", len(r.Delete.PrevKvs), 0)
}

func compare(target pb.Compare_CompareTarget, op string, key, end string, with any) *pb.Compare {
	c := &pb.Compare{Target: target, Key: []byte(key), RangeEnd: []byte(end)}
	c.Result = map[string]pb.Compare_CompareResult{"=": pb.Compare_EQUAL, "!=": pb.Compare_NOT_EQUAL, "<": pb.Compare_LESS, ">": pb.Compare_GREATER}[op]
	n, _ := with.(int)
	switch target {
	case pb.Compare_VALUE:
		v, _ := with.(string)
		c.TargetUnion = &pb.Compare_Value{Value: []byte(v)}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: int64(n)}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: int64(n)}
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: int64(n)}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: int64(n)}
	}
	return c
}

const (
	value   = pb.Compare_VALUE
	create  = pb.Compare_CREATE
	mod     = pb.Compare_MOD
	ver     = pb.Compare_VERSION
	leaseID = pb.Compare_LEASE
)

func TestCompare(t *testing.T) {
	s := newStore().with("a", "x", "b", "y", "a", "z") // a: create 2, mod 4, version 2
	s.rev++
	s.put([]byte("l"), []byte("w"), 7, s.rev)
	// Which of < = > hold.
	for _, c := range []struct {
		key, end string
		target   pb.Compare_CompareTarget
		with     any
		less     bool
		equal    bool
		greater  bool
	}{
		{"a", "", value, "z", false, true, false},
		{"a", "", value, "y", false, false, true},
		{"a", "", value, "zz", true, false, false},
		{"a", "", create, 2, false, true, false},
		{"a", "", create, 3, true, false, false},
		{"a", "", mod, 4, false, true, false},
		{"a", "", mod, 3, false, false, true},
		{"a", "", mod, 100, true, false, false},
		{"a", "", ver, 2, false, true, false},
		{"a", "", ver, 1, false, false, true},
		{"l", "", leaseID, 7, false, true, false},
		{"l", "", leaseID, 8, true, false, false},
		{"a", "", leaseID, 0, false, true, false},
		// a missing key is like one with all numbers zero, but compares of its value never hold
		{"x", "", ver, 0, false, true, false},
		{"x", "", ver, 1, true, false, false},
		{"x", "", create, 0, false, true, false},
		{"x", "", mod, 1, true, false, false},
		{"x", "", mod, -1, false, false, true},
		{"x", "", leaseID, 0, false, true, false},
		// all keys of a range
		{"a", "c", value, "x", false, false, true},
		{"a", "c", value, "zz", true, false, false},
		{"a", "c", ver, 2, false, false, false},
		{"a", "c", mod, 4, false, false, false},
		{"a", "c", mod, 5, true, false, false},
		{"a", "\x00", create, 1, false, false, true},
		{"b", "\x00", create, 4, false, false, false},
		// a range without keys, one that ends before it begins
		{"p", "q", ver, 0, false, true, false},
		{"z", "a", create, 0, false, true, false},
		{"b", "b", create, 1, true, false, false},
	} {
		for op, want := range map[string]bool{"<": c.less, "=": c.equal, ">": c.greater} {
			r := eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{compare(c.target, op, c.key, c.end, c.with)}})
			if r.Txn == nil || r.Txn.Succeeded != want {
				t.Errorf("%v of %q..%q %s %v: %+v, want %v", c.target, c.key, c.end, op, c.with, r, want)
			}
		}
		if c.end == "" {
			r := eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{compare(c.target, "!=", c.key, "", c.with)}})
			equal(t, fmt.Sprint(c, " !="), r.Txn.Succeeded, !c.equal)
		}
	}
	for _, op := range []string{"=", "!=", "<", ">"} {
		for _, end := range []string{"", "y"} {
			r := eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{compare(value, op, "x", end, "")}})
			equal(t, "value of a missing key "+op, r.Txn.Succeeded, false)
		}
	}
	// An operand of another kind than the target counts as zero; an unknown result holds, as in etcd.
	r := eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("a"), Target: mod, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{Version: 9}}}})
	equal(t, "operand of another kind", r.Txn.Succeeded, true)
	r = eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("a"), Target: mod, Result: 9}}})
	equal(t, "unknown result", r.Txn.Succeeded, true)
	s.scanned = 0
	eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{compare(value, "=", "a", "\x00", "?")}})
	equal(t, "keys looked at when the first decides", s.scanned, 1)
}

// TestUnordered: a is unordered and was created before, n is new; the store is at 5, so both will be above.
func TestUnordered(t *testing.T) {
	s := newStore().with("a", "1", "b", "2", "c", "3", "d", "4")
	s.unordered["a"] = eval.Value{KV: &mvccpb.KeyValue{Key: []byte("a"), Value: []byte("u"), CreateRevision: 2, Version: 2}, ModUnknown: true}
	s.unordered["n"] = eval.Value{KV: &mvccpb.KeyValue{Key: []byte("n"), Value: []byte("v"), Version: 1}, ModUnknown: true, CreateUnknown: true}
	s.unordered["b"] = eval.Value{} // deleted
	for _, c := range []struct {
		c    *pb.Compare
		want string
	}{
		{compare(mod, "=", "a", "", 5), "false"},
		{compare(mod, ">", "a", "", 5), "true"},
		{compare(mod, "<", "a", "", 5), "false"},
		{compare(mod, "!=", "a", "", 2), "true"},
		{compare(mod, "=", "a", "", 6), "wait"},
		{compare(mod, "<", "a", "", 9), "wait"},
		{compare(create, "=", "a", "", 2), "true"},
		{compare(ver, "=", "a", "", 2), "true"},
		{compare(value, "=", "a", "", "u"), "true"},
		{compare(create, "=", "n", "", 0), "false"},
		{compare(create, ">", "n", "", 5), "true"},
		{compare(create, "=", "n", "", 6), "wait"},
		{compare(ver, "=", "n", "", 1), "true"},
		{compare(mod, "=", "b", "", 0), "true"},
		{compare(mod, "=", "b", "", 9), "false"},
		{compare(value, "!=", "b", "", "x"), "false"},
	} {
		r := eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{c.c}, Success: ops{put("z", "")}, Failure: ops{put("y", "")}})
		got := "wait"
		if !r.NeedOrdered {
			got = fmt.Sprint(r.Txn.Succeeded)
		} else if r.Txn != nil || len(r.Writes) > 0 {
			t.Errorf("%v: %+v", c.c, r)
		}
		equal(t, c.c.String(), got, c.want)
	}
	for what, c := range map[string]struct {
		ops  ops
		wait bool
	}{
		"read":                          {ops{get("a", "")}, true},
		"read of a deleted key":         {ops{get("b", "")}, false},
		"read of another":               {ops{get("d", ""), put("a", "w")}, false},
		"put":                           {ops{put("a", "w"), put("n", "w")}, false},
		"read back what was there":      {ops{put("a", "w"), get("a", "")}, false},
		"read back what was just made":  {ops{put("n", "w"), get("n", "")}, true},
		"deletion":                      {ops{del("a", ""), del("n", ""), del("b", "")}, false},
		"deletion, then read":           {ops{del("a", ""), get("a", "")}, false},
		"in a child, after a put":       {ops{put("x", ""), nested(&pb.TxnRequest{Success: ops{get("n", "")}})}, true},
		"in a branch that is not taken": {ops{nested(&pb.TxnRequest{Failure: ops{get("n", "")}})}, false},
	} {
		r := eval.Txn(s, &pb.TxnRequest{Success: c.ops})
		equal(t, what, r.NeedOrdered, c.wait)
	}
	r := eval.Txn(s, &pb.TxnRequest{Success: ops{put("a", "w"), get("a", ""), del("n", ""), del("b", "")}})
	equal(t, "writes", writesText(r.Writes), "0:a=w 1:-n")
	r.SetRevision(9)
	equal(t, "read back", text(r.Txn.Responses[1].GetResponseRange().Kvs), "a=w@2.9.3")
	r = eval.Put(s, &pb.PutRequest{Key: []byte("a"), IgnoreValue: true})
	equal(t, "ignore_value on an unordered write", writesText(r.Writes), "0:a=u")
	wantErr(t, "ignore_value on an unordered deletion", eval.Put(s, &pb.PutRequest{Key: []byte("b"), IgnoreValue: true}), rpctypes.ErrGRPCKeyNotFound)
}

func TestTxnOrder(t *testing.T) {
	s := newStore().with("b", "old", "d1", "x", "d2", "y")
	r := eval.Txn(s, &pb.TxnRequest{Success: ops{
		del("nothing", ""),
		get("a", ""),
		put("a", "1"),
		get("a", ""),
		get("a", "c"),
		nested(&pb.TxnRequest{Compare: []*pb.Compare{compare(ver, "=", "a", "", 0)}, Success: ops{del("d0", "d9"), get("a", "\x00")}, Failure: ops{put("wrong", "")}}),
		getOp(&pb.RangeRequest{Key: []byte("\x00"), RangeEnd: []byte("\x00"), CountOnly: true}),
		getOp(&pb.RangeRequest{Key: []byte("b"), Revision: 2}),
		put("e", "2"),
		del("d1", ""), // again
	}})
	equal(t, "writes", writesText(r.Writes), "0:a=1 1:-d1 2:-d2 3:e=2")
	s.apply(&r)
	resp := r.Txn.Responses
	for i, want := range map[int]string{1: "", 3: "a=1@5.5.1", 4: "a=1@5.5.1 b=old@2.2.1", 7: "b=old@2.2.1"} {
		equal(t, fmt.Sprint("response ", i), text(resp[i].GetResponseRange().Kvs), want)
	}
	child := resp[5].GetResponseTxn()
	equal(t, "compares are decided before anything is done", child.Succeeded, true)
	equal(t, "deleted in the child", int(child.Responses[0].GetResponseDeleteRange().Deleted), 2)
	equal(t, "read in the child", text(child.Responses[1].GetResponseRange().Kvs), "a=1@5.5.1 b=old@2.2.1")
	equal(t, "count", int(resp[6].GetResponseRange().Count), 2)
	equal(t, "deleted the second time", int(resp[9].GetResponseDeleteRange().Deleted), 0)
	// Headers: what comes before the first write shows the revision before; a child has none.
	for i, want := range []int64{4, 4, 5, 5, 5, 0, 5, 5, 5, 5} {
		var h *pb.ResponseHeader
		switch o := resp[i].Response.(type) {
		case *pb.ResponseOp_ResponseRange:
			h = o.ResponseRange.Header
		case *pb.ResponseOp_ResponsePut:
			h = o.ResponsePut.Header
		case *pb.ResponseOp_ResponseDeleteRange:
			h = o.ResponseDeleteRange.Header
		case *pb.ResponseOp_ResponseTxn:
			h = o.ResponseTxn.Header
		}
		equal(t, fmt.Sprint("header of response ", i), h.GetRevision(), want)
	}
	equal(t, "header", r.Header().Revision, int64(5))
	equal(t, "header in the child", child.Responses[1].GetResponseRange().Header.Revision, int64(5))
}

// TestTxnFails: what is wrong in a branch that is taken fails the whole transaction, and what is wrong in another does not.
func TestTxnFails(t *testing.T) {
	s := newStore().with("a", "1", "a", "2", "a", "3", "a", "4")
	s.compacted = 3
	past := func(rev int64) *pb.RequestOp { return getOp(&pb.RangeRequest{Key: []byte("a"), Revision: rev}) }
	for _, c := range []struct {
		what string
		op   *pb.RequestOp
		err  error
	}{
		{"future", past(6), rpctypes.ErrGRPCFutureRev},
		{"now", past(5), nil},
		{"at the compaction", past(3), nil},
		{"compacted", past(2), rpctypes.ErrGRPCCompacted},
		{"negative", past(-1), rpctypes.ErrGRPCCompacted},
		{"unknown lease", putOp(&pb.PutRequest{Key: []byte("b"), Lease: 9}), rpctypes.ErrGRPCLeaseNotFound},
		{"missing key", putOp(&pb.PutRequest{Key: []byte("b"), IgnoreValue: true}), rpctypes.ErrGRPCKeyNotFound},
		{"missing key, lease", putOp(&pb.PutRequest{Key: []byte("b"), IgnoreLease: true}), rpctypes.ErrGRPCKeyNotFound},
	} {
		for _, in := range []ops{{put("x", ""), c.op}, {put("x", ""), nested(&pb.TxnRequest{Success: ops{c.op}})}} {
			r := eval.Txn(s, &pb.TxnRequest{Success: in})
			if c.err != nil {
				wantErr(t, c.what, r, c.err)
			} else if r.Err != nil {
				t.Errorf("%s: %v", c.what, r.Err)
			}
			r = eval.Txn(s, &pb.TxnRequest{Failure: in, Success: ops{put("x", "")}})
			equal(t, c.what+", not taken", writesText(r.Writes), "0:x=")
		}
	}
	wantErr(t, "the first failure counts", eval.Txn(s, &pb.TxnRequest{Success: ops{past(2), past(9)}}), rpctypes.ErrGRPCCompacted)
	// A key that the transaction itself makes does not help: everything is checked before.
	wantErr(t, "ignore_value on an own key", eval.Txn(s, &pb.TxnRequest{Success: ops{put("b", ""), putOp(&pb.PutRequest{Key: []byte("c"), IgnoreValue: true})}}), rpctypes.ErrGRPCKeyNotFound)
	s.compacted = 0
	r := eval.Txn(s, &pb.TxnRequest{Success: ops{past(-1)}})
	equal(t, "-1 without a compaction", text(r.Txn.Responses[0].GetResponseRange().Kvs), "a=4@2.5.4")
	wantErr(t, "-2 without a compaction", eval.Txn(s, &pb.TxnRequest{Success: ops{past(-2)}}), rpctypes.ErrGRPCCompacted)
}

func TestRangeInTxn(t *testing.T) {
	s := newStore().with("a", "5", "b", "4", "c", "3", "d", "2", "e", "1", "b", "9")
	s.rev++
	s.put([]byte("l"), []byte("0"), 7, s.rev)
	// revisions: a 2.2, b 3.7, c 4.4, d 5.5, e 6.6, l 8.8; an own write: bb 9.9
	for _, c := range []struct {
		what  string
		r     *pb.RangeRequest
		kvs   string
		count int64
		more  bool
	}{
		{"all", &pb.RangeRequest{}, "a b bb c d e l", 7, false},
		{"limit", &pb.RangeRequest{Limit: 2}, "a b", 7, true},
		{"limit at the end", &pb.RangeRequest{Limit: 7}, "a b bb c d e l", 7, false},
		{"largest limit", &pb.RangeRequest{Limit: math.MaxInt64}, "a b bb c d e l", 7, false},
		{"negative limit", &pb.RangeRequest{Limit: -1}, "a b bb c d e l", 7, false},
		{"count", &pb.RangeRequest{CountOnly: true, Limit: 1}, "", 7, false},
		{"keys descending", &pb.RangeRequest{SortOrder: pb.RangeRequest_DESCEND, Limit: 2}, "l e", 7, true},
		{"keys ascending", &pb.RangeRequest{SortOrder: pb.RangeRequest_ASCEND, Limit: 2}, "a b", 7, true},
		{"by mod, own write last", &pb.RangeRequest{SortTarget: pb.RangeRequest_MOD, SortOrder: pb.RangeRequest_ASCEND}, "a c d e b l bb", 7, false},
		{"by mod, own write first", &pb.RangeRequest{SortTarget: pb.RangeRequest_MOD, SortOrder: pb.RangeRequest_DESCEND, Limit: 2}, "bb l", 7, true},
		{"by create", &pb.RangeRequest{SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_DESCEND, Limit: 3}, "bb l e", 7, true},
		{"by version", &pb.RangeRequest{SortTarget: pb.RangeRequest_VERSION, SortOrder: pb.RangeRequest_DESCEND, Limit: 1}, "b", 7, true},
		{"by value", &pb.RangeRequest{SortTarget: pb.RangeRequest_VALUE, SortOrder: pb.RangeRequest_ASCEND}, "l e d c bb a b", 7, false},
		{"by value, no order: ascending", &pb.RangeRequest{SortTarget: pb.RangeRequest_VALUE}, "l e d c bb a b", 7, false},
		{"by value, no order, limit: cut first", &pb.RangeRequest{SortTarget: pb.RangeRequest_VALUE, Limit: 2}, "bb a", 7, true},
		{"min mod, own write in", &pb.RangeRequest{MinModRevision: 7}, "b bb l", 7, false},
		{"min mod of the own write", &pb.RangeRequest{MinModRevision: 9}, "bb", 7, false},
		{"min mod above", &pb.RangeRequest{MinModRevision: 10}, "", 7, false},
		{"max mod, own write out", &pb.RangeRequest{MaxModRevision: 8}, "a b c d e l", 7, false},
		{"max create", &pb.RangeRequest{MaxCreateRevision: 4, Limit: 2}, "a b", 7, true},
		{"min create", &pb.RangeRequest{MinCreateRevision: 6}, "bb e l", 7, false},
		{"a part", &pb.RangeRequest{Key: []byte("b"), RangeEnd: []byte("d"), Limit: 2}, "b bb", 3, true},
		{"inverted", &pb.RangeRequest{Key: []byte("d"), RangeEnd: []byte("b")}, "", 0, false},
		{"the past", &pb.RangeRequest{Revision: 5}, "a b c d", 4, false},
		{"the past, limit", &pb.RangeRequest{Revision: 5, Limit: 1}, "a", 4, true},
		{"the past, count", &pb.RangeRequest{Revision: 5, CountOnly: true}, "", 4, false},
		{"the past, filter", &pb.RangeRequest{Revision: 5, MinModRevision: 4, Limit: 1}, "c", 4, true},
		{"the past, descending", &pb.RangeRequest{Revision: 5, SortOrder: pb.RangeRequest_DESCEND, Limit: 1}, "d", 4, true},
		{"the past, inverted", &pb.RangeRequest{Revision: 5, Key: []byte("d"), RangeEnd: []byte("b")}, "", 0, false},
	} {
		if c.r.Key == nil {
			c.r.Key, c.r.RangeEnd = []byte("a"), []byte{0}
		}
		for _, keysOnly := range []bool{false, true} {
			req := proto.Clone(c.r).(*pb.RangeRequest)
			req.KeysOnly = keysOnly
			r := eval.Txn(s, &pb.TxnRequest{Success: ops{put("bb", "4"), getOp(req)}})
			r.SetRevision(9)
			got := r.Txn.Responses[1].GetResponseRange()
			var keys []string
			for _, kv := range got.Kvs {
				keys = append(keys, string(kv.Key))
				if keysOnly != (len(kv.Value) == 0) {
					t.Errorf("%s: value of %s with keys only %v: %q", c.what, kv.Key, keysOnly, kv.Value)
				}
				wantLease := int64(0)
				if string(kv.Key) == "l" && (!keysOnly || req.SortTarget == pb.RangeRequest_VALUE) {
					wantLease = 7
				}
				equal(t, c.what+": lease of "+string(kv.Key), kv.Lease, wantLease)
			}
			equal(t, c.what, strings.Join(keys, " "), c.kvs)
			equal(t, c.what+": count", got.Count, c.count)
			equal(t, c.what+": more", got.More, c.more)
		}
	}
	equal(t, "the store's keys", text(s.span([]byte("l"), nil, s.rev)), "l=0@8.8.1/7") // not changed by keys_only
}

// TestBoundedRange: what lies behind a limit is counted and not kept.
func TestBoundedRange(t *testing.T) {
	s := newStore()
	for i := range 1000 {
		s.with(fmt.Sprintf("k%03d", i), "v")
	}
	r := eval.Txn(s, &pb.TxnRequest{Success: ops{
		getOp(&pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte{0}, Limit: 2}), getOp(&pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte{0}, CountOnly: true}),
	}})
	a, b := r.Txn.Responses[0].GetResponseRange(), r.Txn.Responses[1].GetResponseRange()
	if len(a.Kvs) != 2 || !a.More || a.Count != 1000 || cap(a.Kvs) > 4 || b.Count != 1000 || b.Kvs != nil {
		t.Errorf("%d of %d, more %v, room for %d; %d", len(a.Kvs), a.Count, a.More, cap(a.Kvs), b.Count)
	}
}

func TestViewFails(t *testing.T) {
	s := newStore().with("a", "1")
	s.err = errors.New("broken")
	for what, r := range map[string]eval.Result{
		"compare":         eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{compare(ver, "=", "a", "", 1)}}),
		"compare a range": eval.Txn(s, &pb.TxnRequest{Compare: []*pb.Compare{compare(ver, "=", "a", "b", 1)}}),
		"read":            eval.Txn(s, &pb.TxnRequest{Success: ops{get("a", "")}}),
		"read a range":    eval.Txn(s, &pb.TxnRequest{Success: ops{get("a", "b")}}),
		"read the past":   eval.Txn(s, &pb.TxnRequest{Success: ops{getOp(&pb.RangeRequest{Key: []byte("a"), Revision: 1})}}),
		"read back":       eval.Txn(s, &pb.TxnRequest{Success: ops{put("a", ""), get("a", "")}}),
		"delete":          eval.DeleteRange(s, &pb.DeleteRangeRequest{Key: []byte("a")}),
		"delete a range":  eval.DeleteRange(s, &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte{0}}),
		"put":             eval.Put(s, &pb.PutRequest{Key: []byte("x"), IgnoreValue: true}),
	} {
		wantErr(t, what, r, s.err)
	}
}

func TestReadOnly(t *testing.T) {
	for _, c := range []struct {
		r    *pb.TxnRequest
		want bool
	}{
		{&pb.TxnRequest{}, true},
		{&pb.TxnRequest{Success: ops{get("a", "")}, Failure: ops{get("a", "b")}}, true},
		{&pb.TxnRequest{Success: ops{nested(&pb.TxnRequest{Failure: ops{get("a", "")}})}}, true},
		{&pb.TxnRequest{Success: ops{get("a", ""), put("a", "")}}, false},
		{&pb.TxnRequest{Failure: ops{del("a", "")}}, false},
		{&pb.TxnRequest{Success: ops{nested(&pb.TxnRequest{Failure: ops{put("a", "")}})}}, false},
	} {
		equal(t, c.r.String(), eval.ReadOnly(c.r), c.want)
	}
}

func spansText(s eval.Spans) string {
	list := func(in []latch.Span) string {
		var out []string
		for _, sp := range in {
			switch {
			case sp.Point():
				out = append(out, string(sp.Start))
			case len(sp.End) == 0:
				out = append(out, string(sp.Start)+"..")
			default:
				out = append(out, fmt.Sprintf("%s..%s", sp.Start, sp.End))
			}
		}
		return strings.Join(out, " ")
	}
	return fmt.Sprintf("R[%s] W[%s] %v", list(s.Reads), list(s.Writes), s.Ranges)
}

func TestSpans(t *testing.T) {
	a := []byte("a")
	for _, c := range []struct {
		what, got, want string
	}{
		{"put", spansText(eval.PutSpans(&pb.PutRequest{Key: a})), "R[] W[a] false"},
		{"put, prev_kv", spansText(eval.PutSpans(&pb.PutRequest{Key: a, PrevKv: true, Lease: 7})), "R[] W[a] false"},
		{"put, ignore_value", spansText(eval.PutSpans(&pb.PutRequest{Key: a, IgnoreValue: true})), "R[a] W[a] false"},
		{"put, ignore_lease", spansText(eval.PutSpans(&pb.PutRequest{Key: a, IgnoreLease: true})), "R[a] W[a] false"},
		{"delete", spansText(eval.DeleteSpans(&pb.DeleteRangeRequest{Key: a})), "R[a] W[a] false"},
		{"delete a range", spansText(eval.DeleteSpans(&pb.DeleteRangeRequest{Key: a, RangeEnd: []byte("c")})), "R[a..c] W[a..c] true"},
		{"delete from a key", spansText(eval.DeleteSpans(&pb.DeleteRangeRequest{Key: a, RangeEnd: []byte{0}})), "R[a..] W[a..] true"},
		{"delete nothing", spansText(eval.DeleteSpans(&pb.DeleteRangeRequest{Key: []byte("c"), RangeEnd: a})), "R[] W[] false"},
		{"txn", spansText(eval.TxnSpans(&pb.TxnRequest{
			Compare: []*pb.Compare{compare(mod, "=", "a", "", 1), compare(mod, "=", "b", "c", 1)},
			Success: ops{put("d", ""), get("e", ""), getOp(&pb.RangeRequest{Key: []byte("f"), Revision: 3}), getOp(&pb.RangeRequest{Key: []byte("g"), Revision: -1})},
			Failure: ops{del("h", ""), nested(&pb.TxnRequest{Compare: []*pb.Compare{compare(ver, "=", "i", "", 0)}, Failure: ops{put("j", ""), get("z", "y")}})},
		})), "R[a b..c e g h i] W[d h j] true"},
		{"txn of single keys", spansText(eval.TxnSpans(&pb.TxnRequest{Compare: []*pb.Compare{compare(mod, "=", "a", "", 1)}, Success: ops{put("a", "")}, Failure: ops{get("a", "")}})), "R[a a] W[a] false"},
	} {
		equal(t, c.what, c.got, c.want)
	}
	equal(t, "bound of a key", string(eval.Bound(a, nil)), "a\x00")
	equal(t, "bound of a range", string(eval.Bound(a, []byte("b"))), "b")
	equal(t, "bound of the rest", eval.Bound(a, []byte{0}) == nil, true)
}

func BenchmarkTxn(b *testing.B) {
	s := newStore().with("/registry/pods/default/x", strings.Repeat("v", 1000))
	kv := s.at("/registry/pods/default/x", s.rev)
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{compare(mod, "=", string(kv.Key), "", int(kv.ModRevision))},
		Success: ops{put(string(kv.Key), "new")}, Failure: ops{get(string(kv.Key), "")},
	}
	b.ReportAllocs()
	for b.Loop() {
		eval.TxnSpans(req)
		r := eval.Txn(s, req)
		r.SetRevision(ids.Revision(9))
		if len(r.Writes) != 1 {
			b.Fatal(r)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	s, req := newStore(), &pb.PutRequest{Key: []byte("/registry/pods/default/x"), Value: []byte("v")}
	b.ReportAllocs()
	for b.Loop() {
		eval.PutSpans(req)
		r := eval.Put(s, req)
		r.SetRevision(9)
	}
}
