package eval_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/range/eval"
)

// drawer makes requests. Puts and deletions of one transaction do not meet, as router/check sees to.
type drawer struct {
	t   *rapid.T
	rev ids.Revision
	// what one transaction has used: keys put, and whether it deletes. To keep them apart without looking, one transaction puts only even keys
	// or deletes only odd ones.
	put map[string]bool
}

var evenKeys, oddKeys = []string{"a", "c", "e", "g", "i"}, []string{"b", "d", "f", "h"}

func (d *drawer) key() []byte {
	return []byte(rapid.SampledFrom(append(append([]string{}, evenKeys...), oddKeys...)).Draw(d.t, "key"))
}

func (d *drawer) end() []byte {
	if e := rapid.SampledFrom([]string{"", "", "\x00", "c", "e", "j"}).Draw(d.t, "end"); e != "" {
		return []byte(e)
	}
	return nil
}

func (d *drawer) compare() *pb.Compare {
	c := &pb.Compare{
		Key: d.key(), RangeEnd: d.end(), Result: pb.Compare_CompareResult(rapid.IntRange(0, 3).Draw(d.t, "result")),
		Target: pb.Compare_CompareTarget(rapid.IntRange(0, 4).Draw(d.t, "target")),
	}
	small := func() int64 { return int64(rapid.IntRange(0, 3).Draw(d.t, "operand")) }
	rev := func() int64 { return rapid.Int64Range(0, int64(d.rev)+1).Draw(d.t, "operand") }
	switch c.Target {
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: []byte(rapid.SampledFrom([]string{"", "x", "y"}).Draw(d.t, "operand"))}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: rev()}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: rev()}
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: small()}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: small()}
	}
	return c
}

func (d *drawer) rangeOp() *pb.RangeRequest {
	r := &pb.RangeRequest{
		Key: d.key(), RangeEnd: d.end(), Limit: int64(rapid.IntRange(-1, 4).Draw(d.t, "limit")),
		KeysOnly: rapid.IntRange(0, 3).Draw(d.t, "keys only") == 0, CountOnly: rapid.IntRange(0, 5).Draw(d.t, "count only") == 0,
	}
	if rapid.Bool().Draw(d.t, "sorted") {
		r.SortOrder = pb.RangeRequest_SortOrder(rapid.IntRange(0, 2).Draw(d.t, "order"))
		r.SortTarget = pb.RangeRequest_SortTarget(rapid.IntRange(0, 4).Draw(d.t, "target"))
	}
	for _, f := range []*int64{&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision} {
		if rapid.IntRange(0, 6).Draw(d.t, "filter") == 0 {
			*f = rapid.Int64Range(1, int64(d.rev)+2).Draw(d.t, "bound")
		}
	}
	if rapid.IntRange(0, 3).Draw(d.t, "past") == 0 {
		r.Revision = rapid.Int64Range(-2, int64(d.rev)+1).Draw(d.t, "revision")
	}
	return r
}

func (d *drawer) ops(depth int) (out []*pb.RequestOp) {
	for range rapid.IntRange(0, 4).Draw(d.t, "operations") {
		op := &pb.RequestOp{}
		switch kind := rapid.IntRange(0, 8).Draw(d.t, "kind"); {
		case kind < 3:
			op.Request = &pb.RequestOp_RequestRange{RequestRange: d.rangeOp()}
		case kind < 6:
			p := &pb.PutRequest{Key: []byte(rapid.SampledFrom(evenKeys).Draw(d.t, "put")), PrevKv: rapid.Bool().Draw(d.t, "prev")}
			if d.put[string(p.Key)] {
				continue
			}
			d.put[string(p.Key)] = true
			p.IgnoreValue = rapid.IntRange(0, 4).Draw(d.t, "ignore value") == 0
			p.IgnoreLease = rapid.IntRange(0, 4).Draw(d.t, "ignore lease") == 0
			if !p.IgnoreValue {
				p.Value = []byte(rapid.SampledFrom([]string{"", "x", "y", "z"}).Draw(d.t, "value"))
			}
			if !p.IgnoreLease {
				p.Lease = int64(rapid.SampledFrom([]int{0, 0, 1, 1, 2, 3}).Draw(d.t, "lease"))
			}
			op.Request = &pb.RequestOp_RequestPut{RequestPut: p}
		case kind < 7 || depth == 0:
			// Single keys, or a span in which no transaction puts anything.
			r := &pb.DeleteRangeRequest{Key: []byte(rapid.SampledFrom(oddKeys).Draw(d.t, "delete")), PrevKv: rapid.Bool().Draw(d.t, "prev")}
			if rapid.Bool().Draw(d.t, "span") {
				r.RangeEnd = append(append([]byte{}, r.Key...), '~')
			}
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}
		default:
			op.Request = &pb.RequestOp_RequestTxn{RequestTxn: d.txn(depth - 1)}
		}
		out = append(out, op)
	}
	return out
}

func (d *drawer) txn(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range rapid.IntRange(0, 2).Draw(d.t, "compares") {
		r.Compare = append(r.Compare, d.compare())
	}
	r.Success, r.Failure = d.ops(depth), d.ops(depth)
	return r
}

// TestRandom carries the same requests out here and naively, and wants equal answers, errors and states, revisions included.
func TestRandom(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := newStore()
		s.leases[1], s.leases[2] = true, true
		for _, k := range append([]string{"b~", "d~"}, oddKeys...) {
			if rapid.Bool().Draw(t, "exists") {
				s.with(k, "x")
			}
		}
		n := s.clone()
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			if rapid.IntRange(0, 7).Draw(t, "compaction") == 0 {
				s.compacted = ids.Revision(rapid.Int64Range(int64(s.compacted), int64(s.rev)).Draw(t, "compacted"))
				n.compacted = s.compacted
			}
			d := drawer{t: t, rev: s.rev, put: map[string]bool{}}
			req := d.txn(2)
			before := s.rev
			want, wantErr := runNaive(n, req)
			got := eval.Txn(s, req)
			if !errors.Is(got.Err, wantErr) || got.NeedOrdered {
				t.Fatalf("%v: %v (need ordered %v), want %v", req, got.Err, got.NeedOrdered, wantErr)
			}
			s.apply(&got)
			if wantErr != nil {
				seen[wantErr.Error()]++
				continue
			}
			if d := cmp.Diff(want, got.Txn, protocmp.Transform()); d != "" {
				t.Fatalf("%v at %d: (-want +got)\n%s", req, before, d)
			}
			if s.rev != n.rev || got.Header() != got.Txn.Header {
				t.Fatalf("%v: revision %d, want %d", req, s.rev, n.rev)
			}
			if eval.ReadOnly(req) && s.rev != before {
				t.Fatalf("%v is called read-only and writes", req)
			}
			for i, w := range got.Writes {
				if int(w.Sub) != i {
					t.Fatalf("%v: write %d is called %d", req, i, w.Sub)
				}
				inSpans(t, req, w)
			}
			if d := cmp.Diff(n.span(nil, nil, n.rev), s.span(nil, nil, s.rev), protocmp.Transform()); d != "" {
				t.Fatalf("state after %v: (-want +got)\n%s", req, d)
			}
			seen["ok"]++
			if len(got.Writes) > 0 {
				seen["writes"]++
			}
		}
	})
	for _, what := range []string{"ok", "writes", "rpc error: code = OutOfRange desc = etcdserver: mvcc: required revision has been compacted"} {
		if seen[what] == 0 {
			t.Errorf("never seen: %s (%v)", what, seen)
		}
	}
}

// inSpans checks that a write is latched.
func inSpans(t *rapid.T, req *pb.TxnRequest, w eval.Write) {
	for _, sp := range eval.TxnSpans(req).Writes {
		p := sp
		p.Start, p.End = w.Key, nil
		if sp.Overlaps(p) {
			return
		}
	}
	t.Fatalf("%v writes %q, which is not latched", req, w.Key)
}
