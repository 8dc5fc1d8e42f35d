package check_test

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/router/check"
)

// FuzzTxn: whatever comes over the wire is let through or refused with a status, and the same in every order of the two branches.
func FuzzTxn(f *testing.F) {
	for _, r := range []*pb.TxnRequest{
		{}, {Compare: []*pb.Compare{{}}}, {Success: ops{{}}},
		{Success: ops{put("a"), del("a", "\x00"), nested(ops{put("b")}, ops{del("b", "c"), get(&pb.RangeRequest{Key: []byte("a"), SortOrder: 7})})}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &pb.TxnRequest{}
		if proto.Unmarshal(b, r) != nil {
			return
		}
		err := check.Txn(r, 16)
		if err != nil && status.Code(err) != codes.InvalidArgument {
			t.Fatalf("%v: %v", r, err)
		}
		r.Success, r.Failure = r.Failure, r.Success
		if back := check.Txn(r, 16); (back == nil) != (err == nil) {
			t.Fatalf("%v: %v, and with its branches exchanged %v", r, err, back)
		}
	})
}
