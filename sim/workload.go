package sim

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// keys are few, so that clients collide, and lie on both sides of the split keys.
var keys = []string{"a1", "a2", "b1", "c1", "c2", "d1", "e1", "f1"}

// splits cut between the keys above.
var splits = []string{"b", "c", "d", "e", "f"}

// client is one closed loop of requests against a cluster.
type client struct {
	c    *Cluster
	id   int
	n    int
	seen map[string]int64 // last mod revision this client has seen of a key
}

func (cl *client) key() string { return keys[cl.c.World.Rand.IntN(len(keys))] }

func (cl *client) value() string {
	cl.n++
	return fmt.Sprintf("%d.%d", cl.id, cl.n)
}

func put(k, v string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(k), Value: []byte(v)}}}
}

func get(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(k), RangeEnd: []byte(end)}}}
}

func del(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(end), PrevKv: true}}}
}

func modIs(k string, rev int64) *pb.Compare {
	return &pb.Compare{Key: []byte(k), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
}

func versionIs(k string, v int64) *pb.Compare {
	return &pb.Compare{Key: []byte(k), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{Version: v}}
}

// next draws a request: a *pb.PutRequest, *pb.RangeRequest, *pb.DeleteRangeRequest, *pb.TxnRequest or *pb.CompactionRequest.
func (cl *client) next() any {
	r := cl.c.World.Rand
	switch p := r.IntN(100); {
	case p < 25:
		return &pb.PutRequest{Key: []byte(cl.key()), Value: []byte(cl.value()), PrevKv: r.IntN(3) == 0}
	case p < 40: // compare-and-swap as kube-apiserver does it
		k := cl.key()
		return &pb.TxnRequest{Compare: []*pb.Compare{modIs(k, cl.seen[k])}, Success: []*pb.RequestOp{put(k, cl.value())}, Failure: []*pb.RequestOp{get(k, "")}}
	case p < 48: // decided by version: may be evaluated on unordered writes
		k := cl.key()
		return &pb.TxnRequest{Compare: []*pb.Compare{versionIs(k, int64(r.IntN(3)))}, Success: []*pb.RequestOp{put(k, cl.value())}, Failure: []*pb.RequestOp{put(k, cl.value())}}
	case p < 60: // several keys, most often of several ranges
		a, b := cl.key(), cl.key()
		for b == a {
			b = cl.key()
		}
		ops := []*pb.RequestOp{put(a, cl.value()), put(b, cl.value())}
		if r.IntN(3) == 0 {
			ops[1] = del(b, "")
		}
		t := &pb.TxnRequest{Success: ops}
		if r.IntN(2) == 0 {
			t.Compare = []*pb.Compare{modIs(a, cl.seen[a])}
			t.Failure = []*pb.RequestOp{get(a, ""), get(b, "")}
		}
		return t
	case p < 64:
		return &pb.DeleteRangeRequest{Key: []byte(cl.key()), PrevKv: r.IntN(2) == 0}
	case p < 67:
		return &pb.DeleteRangeRequest{Key: []byte("b"), RangeEnd: []byte("d"), PrevKv: true}
	case p < 70: // reads over several ranges in one transaction
		return &pb.TxnRequest{Success: []*pb.RequestOp{get("a", "z"), get(cl.key(), "")}}
	case p < 78:
		return &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Limit: int64(r.IntN(4))}
	case p < 84:
		return &pb.RangeRequest{Key: []byte(cl.key()), Serializable: true}
	case p < 85:
		return &pb.CompactionRequest{Revision: 0} // the driver fills the revision in
	default:
		return &pb.RangeRequest{Key: []byte(cl.key())}
	}
}

// learn remembers the revisions that an answer showed.
func (cl *client) learn(resp any) {
	switch r := resp.(type) {
	case *pb.RangeResponse:
		for _, kv := range r.GetKvs() {
			cl.seen[string(kv.Key)] = kv.ModRevision
		}
	case *pb.TxnResponse:
		for _, op := range r.Responses {
			cl.learn(op.GetResponseRange())
		}
	}
}
