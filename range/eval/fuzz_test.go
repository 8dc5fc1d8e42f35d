package eval_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/router/check"
)

// FuzzTxn evaluates whatever comes over the wire and passes the checks, as the naive model does.
func FuzzTxn(f *testing.F) {
	for _, r := range []*pb.TxnRequest{
		{},
		{Compare: []*pb.Compare{compare(mod, "=", "a", "", 2), compare(value, "!=", "a", "\x00", "x")}, Success: ops{put("a", "2"), get("a", "\x00")}, Failure: ops{del("a", "c")}},
		{Success: ops{del("b", ""), nested(&pb.TxnRequest{Failure: ops{put("c", "")}}), getOp(&pb.RangeRequest{Key: []byte("a"), Revision: 2, Limit: 1})}},
		{Success: ops{put("x", ""), getOp(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, SortTarget: pb.RangeRequest_MOD, SortOrder: pb.RangeRequest_DESCEND, MinModRevision: 3, KeysOnly: true})}},
		{Success: ops{putOp(&pb.PutRequest{Key: []byte("b"), IgnoreValue: true, Lease: 7, PrevKv: true}), putOp(&pb.PutRequest{Key: []byte("l"), IgnoreLease: true})}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &pb.TxnRequest{}
		if proto.Unmarshal(b, req) != nil || check.Txn(req, 128) != nil {
			return
		}
		s := newStore().with("a", "1", "b", "2", "c", "3")
		s.leases[7] = true
		s.rev++
		s.put([]byte("l"), []byte("4"), 7, s.rev)
		s.compacted = 2
		n := s.clone()
		want, wantErr := runNaive(n, req)
		got := eval.Txn(s, req)
		if !errors.Is(got.Err, wantErr) || got.NeedOrdered {
			t.Fatalf("%v: %v, want %v", req, got.Err, wantErr)
		}
		if wantErr != nil {
			return
		}
		spans := eval.TxnSpans(req)
		s.apply(&got)
		if d := cmp.Diff(want, got.Txn, protocmp.Transform()); d != "" || s.rev != n.rev {
			t.Fatalf("%v: revision %d, want %d; (-want +got)\n%s", req, s.rev, n.rev, d)
		}
		if len(got.Writes) > 0 && len(spans.Writes) == 0 {
			t.Fatalf("%v writes and latches nothing", req)
		}
	})
}
