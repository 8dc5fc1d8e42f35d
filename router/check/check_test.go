package check_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/router/check"
)

const (
	emptyKey = "etcdserver: key is not provided"
	sortOpt  = "etcdserver: invalid sort option"
	value    = "etcdserver: value is provided"
	lease    = "etcdserver: lease is provided"
	tooMany  = "etcdserver: too many operations in txn request"
	notFound = "etcdserver: key not found"
	dup      = "etcdserver: duplicate key given in txn request"
)

// want checks code and text of an error; an empty text is none.
func want(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	if text == "" {
		if err != nil {
			t.Errorf("%s: %v, want none", what, err)
		}
		return
	}
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() != code || s.Message() != text {
		t.Errorf("%s: %v, want %v %q", what, err, code, text)
	}
}

func put(k string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(k), Value: []byte("v")}}}
}

func del(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(end)}}}
}

func get(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func nested(then, otherwise []*pb.RequestOp) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: then, Failure: otherwise}}}
}

type ops = []*pb.RequestOp

func TestSingle(t *testing.T) {
	k := []byte("k")
	for _, c := range []struct {
		what string
		err  error
		text string
	}{
		{"range", check.Range(&pb.RangeRequest{Key: k, RangeEnd: []byte{0}, SortOrder: pb.RangeRequest_DESCEND, SortTarget: pb.RangeRequest_VALUE}), ""},
		{"range without a key", check.Range(&pb.RangeRequest{RangeEnd: []byte{0}}), emptyKey},
		{"range without a key, badly sorted", check.Range(&pb.RangeRequest{SortOrder: 3}), emptyKey},
		{"range with an unknown order", check.Range(&pb.RangeRequest{Key: k, SortOrder: 3}), sortOpt},
		{"range with a negative order", check.Range(&pb.RangeRequest{Key: k, SortOrder: -1}), sortOpt},
		{"range with an unknown target", check.Range(&pb.RangeRequest{Key: k, SortTarget: 5}), sortOpt},
		{"put", check.Put(&pb.PutRequest{Key: k}), ""},
		{"put without a key", check.Put(&pb.PutRequest{Value: k}), emptyKey},
		{"put, ignoring the value", check.Put(&pb.PutRequest{Key: k, IgnoreValue: true, Lease: 7}), ""},
		{"put, ignoring the value it has", check.Put(&pb.PutRequest{Key: k, IgnoreValue: true, Value: k}), value},
		{"put, ignoring the lease", check.Put(&pb.PutRequest{Key: k, IgnoreLease: true, Value: k}), ""},
		{"put, ignoring the lease it has", check.Put(&pb.PutRequest{Key: k, IgnoreLease: true, Lease: 7}), lease},
		{"put, ignoring both that it has", check.Put(&pb.PutRequest{Key: k, IgnoreLease: true, Lease: 7, IgnoreValue: true, Value: k}), value},
		{"deletion", check.DeleteRange(&pb.DeleteRangeRequest{Key: k, RangeEnd: []byte("a")}), ""},
		{"deletion without a key", check.DeleteRange(&pb.DeleteRangeRequest{RangeEnd: []byte{0}}), emptyKey},
	} {
		want(t, c.what, c.err, codes.InvalidArgument, c.text)
	}
}

func TestRangeStream(t *testing.T) {
	const sorts, filters = "RangeStream does not support custom sort orders", "RangeStream does not support revision filters"
	for _, c := range []struct {
		r    *pb.RangeRequest
		text string
	}{
		{&pb.RangeRequest{}, ""},
		{&pb.RangeRequest{SortOrder: pb.RangeRequest_ASCEND}, ""},
		{&pb.RangeRequest{SortTarget: pb.RangeRequest_MOD}, ""}, // no order, so no other one than that of keys
		{&pb.RangeRequest{SortOrder: pb.RangeRequest_DESCEND}, sorts},
		{&pb.RangeRequest{SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_MOD}, sorts},
		{&pb.RangeRequest{SortOrder: pb.RangeRequest_DESCEND, MinModRevision: 1}, sorts},
		{&pb.RangeRequest{MinModRevision: 1}, filters},
		{&pb.RangeRequest{MaxModRevision: 1}, filters},
		{&pb.RangeRequest{MinCreateRevision: 1}, filters},
		{&pb.RangeRequest{MaxCreateRevision: -1}, filters},
	} {
		c.r.Key = []byte("k")
		want(t, c.r.String(), check.RangeStream(c.r), codes.Unimplemented, c.text)
	}
	want(t, "no key", check.RangeStream(&pb.RangeRequest{MinModRevision: 1}), codes.InvalidArgument, emptyKey)
}

func TestTxn(t *testing.T) {
	many := func(n int, prefix string) (out ops) {
		for i := range n {
			out = append(out, put(fmt.Sprint(prefix, i)))
		}
		return out
	}
	cmps := func(n int) (out []*pb.Compare) {
		for range n {
			out = append(out, &pb.Compare{Key: []byte("c")})
		}
		return out
	}
	chain := func(depth int) *pb.RequestOp {
		o := nested(nil, nil)
		for range depth - 1 {
			o = nested(nil, ops{o})
		}
		return o
	}
	badPut := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("k"), IgnoreValue: true, Value: []byte("v")}}}
	badLease := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("k"), IgnoreLease: true, Lease: 1}}}
	for _, c := range []struct {
		what string
		r    *pb.TxnRequest
		text string
	}{
		{"empty", &pb.TxnRequest{}, ""},
		{"one of each", &pb.TxnRequest{Compare: cmps(1), Success: ops{put("a"), del("b", "c"), get(&pb.RangeRequest{Key: []byte("a")}), nested(nil, nil)}}, ""},
		{"compare without a key", &pb.TxnRequest{Compare: []*pb.Compare{{}}}, emptyKey},
		{"range without a key", &pb.TxnRequest{Success: ops{get(&pb.RangeRequest{})}}, emptyKey},
		{"badly sorted range", &pb.TxnRequest{Failure: ops{get(&pb.RangeRequest{Key: []byte("a"), SortTarget: 9})}}, sortOpt},
		{"put without a key", &pb.TxnRequest{Failure: ops{put("")}}, emptyKey},
		{"deletion without a key", &pb.TxnRequest{Success: ops{del("", "x")}}, emptyKey},
		{"ignored value", &pb.TxnRequest{Success: ops{badPut}}, value},
		{"ignored lease in a child", &pb.TxnRequest{Success: ops{nested(nil, ops{badLease})}}, lease},
		{"compare without a key in a child", &pb.TxnRequest{Success: ops{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Compare: []*pb.Compare{{}}}}}}}, emptyKey},
		{"empty operation", &pb.TxnRequest{Success: ops{{}}}, notFound},
		{"empty operation in a child", &pb.TxnRequest{Failure: ops{nested(ops{{}}, nil)}}, notFound},
		{"128 of everything", &pb.TxnRequest{Compare: cmps(128), Success: many(128, "a"), Failure: many(128, "a")}, ""},
		{"129 compares", &pb.TxnRequest{Compare: cmps(129)}, tooMany},
		{"129 in then", &pb.TxnRequest{Success: many(129, "a")}, tooMany},
		{"129 in else", &pb.TxnRequest{Failure: many(129, "a")}, tooMany},
		{"too many before a missing key", &pb.TxnRequest{Compare: []*pb.Compare{{}}, Failure: many(129, "a")}, tooMany},
		{"child with what the parent left", &pb.TxnRequest{Success: append(many(99, "a"), nested(many(28, "b"), nil))}, ""},
		{"child with one more", &pb.TxnRequest{Success: append(many(99, "a"), nested(many(29, "b"), nil))}, tooMany},
		{"child of a parent with many compares", &pb.TxnRequest{Compare: cmps(100), Success: ops{nested(nil, many(29, "b"))}}, tooMany},
		{"child of a parent whose other branch is long", &pb.TxnRequest{Failure: many(100, "a"), Success: ops{nested(nil, many(29, "b"))}}, tooMany},
		{"128 deep, and empty", &pb.TxnRequest{Success: ops{chain(128)}}, ""},
		{"129 deep", &pb.TxnRequest{Success: ops{chain(129)}}, tooMany},
	} {
		want(t, c.what, check.Txn(c.r, 128), codes.InvalidArgument, c.text)
	}
}

// TestDuplicates has each case in then and in else, and the other way round.
func TestDuplicates(t *testing.T) {
	in, out := del("a", "b"), del("abb", "abc")
	for _, c := range []struct {
		what string
		ops  ops
		text string
	}{
		{"two puts", ops{put("abc"), put("b"), put("abc")}, dup},
		{"put, delete", ops{put("abc"), del("abc", "")}, dup},
		{"put, delete a span around", ops{put("abc"), in}, dup},
		{"put, delete a span that ends before", ops{put("abc"), out}, ""},
		{"put at the end of a deleted span", ops{put("b"), in}, ""},
		{"put at its start", ops{put("a"), in}, dup},
		{"put behind a deleted key", ops{put("a\x00"), del("a", "")}, ""},
		{"put below everything from a key on", ops{put("a"), del("b", "\x00")}, ""},
		{"put within everything from a key on", ops{put("c"), del("b", "\x00")}, dup},
		{"put in an inverted span", ops{put("b"), del("c", "a")}, ""},
		{"put in an empty span", ops{put("b"), del("b", "b")}, ""},
		{"deletions over deletions", ops{del("abc", ""), in, del("abc", ""), in, del("a", "\x00")}, ""},
		{"put between two deletions", ops{del("a", "c"), del("d", "f"), put("c")}, ""},
		{"put in the second of two deletions", ops{del("d", "f"), del("a", "c"), put("e")}, dup},
		{"put behind a short deletion within a long one", ops{del("a", "z"), del("b", "c"), put("y")}, dup},
		{"put, delete in a child", ops{put("abc"), nested(ops{in}, nil)}, dup},
		{"put, delete in a child's else", ops{put("abc"), nested(nil, ops{in})}, dup},
		{"delete, put in a child", ops{in, nested(ops{put("abc")}, nil)}, dup},
		{"put, put in a child", ops{put("abc"), nested(nil, ops{put("abc")})}, dup},
		{"put in both branches of a child", ops{nested(ops{put("abc")}, ops{put("abc")})}, ""},
		{"put in one branch of a child, delete in the other", ops{nested(ops{put("abc")}, ops{in})}, ""},
		{"put in both branches of two children", ops{nested(ops{put("abc")}, ops{put("abc")}), nested(ops{put("abc")}, ops{put("abc")})}, dup},
		{"put in one child's then and another's else", ops{nested(ops{put("abc")}, nil), nested(nil, ops{put("abc")})}, dup},
		{"delete elsewhere, put in both branches of a child", ops{out, nested(ops{put("abc")}, ops{put("abc")})}, ""},
		{"delete in two children", ops{nested(ops{in}, nil), nested(ops{in}, ops{in})}, ""},
		{"delete in a child, put in a later one", ops{nested(ops{in}, nil), nested(ops{put("abc")}, nil)}, dup},
		{"put in a child, delete in a later one", ops{nested(ops{put("abc")}, nil), nested(ops{in}, nil)}, dup},
		{"put in a grandchild, delete in a child", ops{nested(ops{nested(nil, ops{put("abc")})}, nil), nested(nil, ops{in})}, dup},
		{"put in a grandchild, delete in its uncle's other branch", ops{nested(ops{nested(nil, ops{put("abc")})}, ops{nested(ops{in}, nil)})}, ""},
		{"reads", ops{put("abc"), get(&pb.RangeRequest{Key: []byte("abc")}), get(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("b")})}, ""},
	} {
		for _, r := range []*pb.TxnRequest{{Success: c.ops}, {Failure: c.ops}, {Success: c.ops, Failure: c.ops}} {
			want(t, c.what, check.Txn(r, 128), codes.InvalidArgument, c.text)
		}
		back := ops{}
		for _, o := range c.ops {
			back = append(ops{o}, back...)
		}
		want(t, c.what+", backwards", check.Txn(&pb.TxnRequest{Success: back}, 128), codes.InvalidArgument, c.text)
	}
	want(t, "put in then and in else", check.Txn(&pb.TxnRequest{Success: ops{put("a")}, Failure: ops{put("a")}}, 128), codes.OK, "")
}

// one is a write somewhere in a tree of operations: where tells which branch of which transaction leads to it.
type one struct {
	where []string // "<op>then" or "<op>else"
	put   bool
	key   string
	end   string
}

func flatten(list ops, where []string) (out []one) {
	for i, o := range list {
		switch r := o.Request.(type) {
		case *pb.RequestOp_RequestPut:
			out = append(out, one{where: where, put: true, key: string(r.RequestPut.Key)})
		case *pb.RequestOp_RequestDeleteRange:
			out = append(out, one{where: where, key: string(r.RequestDeleteRange.Key), end: string(r.RequestDeleteRange.RangeEnd)})
		case *pb.RequestOp_RequestTxn:
			in := func(branch string) []string { return append(append([]string{}, where...), fmt.Sprint(i, branch)) }
			out = append(out, flatten(r.RequestTxn.Success, in("then"))...)
			out = append(out, flatten(r.RequestTxn.Failure, in("else"))...)
		}
	}
	return out
}

// apart tells whether two writes can never happen together: some transaction has them in different branches.
func apart(a, b one) bool {
	for i := range min(len(a.where), len(b.where)) {
		if a.where[i] != b.where[i] {
			return strings.TrimRight(a.where[i], "thenls") == strings.TrimRight(b.where[i], "thenls")
		}
	}
	return false
}

func (d one) deletes(k string) bool {
	switch d.end {
	case "":
		return k == d.key
	case "\x00":
		return k >= d.key
	}
	return k >= d.key && k < d.end
}

func clash(a, b one) bool {
	switch {
	case apart(a, b):
		return false
	case a.put && b.put:
		return a.key == b.key
	case a.put:
		return b.deletes(a.key)
	case b.put:
		return a.deletes(b.key)
	}
	return false
}

func genOps(t *rapid.T, depth int) (out ops) {
	keys := rapid.SampledFrom([]string{"a", "a\x00", "b", "c", "d", "e", "f", "g", "h"})
	for range rapid.IntRange(0, 4).Draw(t, "n") {
		switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
		case kind < 2 && depth > 0:
			out = append(out, nested(genOps(t, depth-1), genOps(t, depth-1)))
		case kind < 4:
			out = append(out, put(keys.Draw(t, "key")))
		default:
			out = append(out, del(keys.Draw(t, "key"), rapid.SampledFrom([]string{"", "", "\x00", "b", "c", "d", "h"}).Draw(t, "end")))
		}
	}
	return out
}

// TestDuplicatesAgainstPairs holds the check to what it means: every pair of writes is looked at.
func TestDuplicatesAgainstPairs(t *testing.T) {
	found := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		list := genOps(t, 3)
		all, bad := flatten(list, nil), false
		for i := range all {
			for j := range i {
				bad = bad || clash(all[i], all[j])
			}
		}
		found[bad]++
		if err := check.Txn(&pb.TxnRequest{Success: list}, 128); (err != nil) != bad {
			t.Fatalf("%v: %v, want an error: %v", list, err, bad)
		}
	})
	if found[true] == 0 || found[false] == 0 {
		t.Errorf("one-sided: %v", found)
	}
}

// TestWideTxn: the work stays small where a naive check would look at pairs of a hundred thousand writes.
func TestWideTxn(t *testing.T) {
	k := func(i, j, l int) string { return fmt.Sprintf("%02d/%02d/%02d", i, j, l) }
	list := ops{}
	for i := range 42 {
		mid := ops{}
		for j := range 42 {
			leaf := ops{}
			for l := range 42 {
				if l%2 == 0 {
					leaf = append(leaf, put(k(i, j, l)))
				} else {
					leaf = append(leaf, del(k(i, j, l), ""))
				}
			}
			mid = append(mid, nested(leaf, nil))
		}
		list = append(list, nested(nil, mid))
	}
	r := &pb.TxnRequest{Success: list}
	want(t, "apart", check.Txn(r, 128), codes.OK, "")
	list[41] = nested(ops{del("00/00/00", "")}, nil)
	want(t, "the last one meets the first", check.Txn(r, 128), codes.InvalidArgument, dup)
}

func BenchmarkTxn(b *testing.B) {
	r := &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: bytes.Repeat([]byte("k"), 40)}}, Success: ops{put("k")}, Failure: ops{get(&pb.RangeRequest{Key: []byte("k")})},
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := check.Txn(r, 128); err != nil {
			b.Fatal(err)
		}
	}
}
