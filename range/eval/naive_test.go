package eval_test

import (
	"bytes"
	"math"
	"sort"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
)

// naive carries a transaction out on a store the way etcd's apply does, knowing the revision: step by step, each
// operation on the real state. It shares nothing with the package but the types.
type naive struct {
	s       *store
	rev     ids.Revision // of the writes
	changed bool
}

// runNaive returns the answer, or etcd's error and an unchanged store.
func runNaive(s *store, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	branches := map[*pb.TxnRequest]bool{}
	decide(s, req, branches)
	if err := examine(s, req, branches); err != nil {
		return nil, err
	}
	n := &naive{s: s, rev: s.rev + 1}
	resp := n.txn(req, branches)
	if n.changed {
		s.rev++
	}
	resp.Header.Revision = int64(s.rev)
	return resp, nil
}

func chosen(req *pb.TxnRequest, branches map[*pb.TxnRequest]bool) []*pb.RequestOp {
	if branches[req] {
		return req.Success
	}
	return req.Failure
}

func decide(s *store, req *pb.TxnRequest, branches map[*pb.TxnRequest]bool) {
	branches[req] = true
	for _, c := range req.Compare {
		branches[req] = branches[req] && holds(s, c)
	}
	for _, op := range chosen(req, branches) {
		if t := op.GetRequestTxn(); t != nil {
			decide(s, t, branches)
		}
	}
}

func holds(s *store, c *pb.Compare) bool {
	kvs := rangeOf(s, c.Key, c.RangeEnd, s.rev)
	if len(kvs) == 0 {
		if c.Target == pb.Compare_VALUE {
			return false
		}
		kvs = []*mvccpb.KeyValue{{}}
	}
	for _, kv := range kvs {
		var d int
		switch c.Target {
		case pb.Compare_VALUE:
			d = bytes.Compare(kv.Value, c.GetValue())
		case pb.Compare_CREATE:
			d = diff(kv.CreateRevision, c.GetCreateRevision())
		case pb.Compare_MOD:
			d = diff(kv.ModRevision, c.GetModRevision())
		case pb.Compare_VERSION:
			d = diff(kv.Version, c.GetVersion())
		case pb.Compare_LEASE:
			d = diff(kv.Lease, c.GetLease())
		}
		ok, known := map[pb.Compare_CompareResult]bool{
			pb.Compare_EQUAL: d == 0, pb.Compare_NOT_EQUAL: d != 0, pb.Compare_GREATER: d > 0, pb.Compare_LESS: d < 0,
		}[c.Result]
		if known && !ok {
			return false
		}
	}
	return true
}

func diff(a, b int64) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

func rangeOf(s *store, key, rangeEnd []byte, rev ids.Revision) (kvs []*mvccpb.KeyValue) {
	for _, kv := range s.span(nil, nil, rev) {
		in := bytes.Equal(kv.Key, key)
		if len(rangeEnd) > 0 {
			in = bytes.Compare(kv.Key, key) >= 0 && (bytes.Equal(rangeEnd, []byte{0}) || bytes.Compare(kv.Key, rangeEnd) < 0)
		}
		if in {
			kvs = append(kvs, kv)
		}
	}
	return kvs
}

func examine(s *store, req *pb.TxnRequest, branches map[*pb.TxnRequest]bool) error {
	for _, op := range chosen(req, branches) {
		if r := op.GetRequestRange(); r != nil && r.Revision != 0 {
			first := s.compacted
			if first == 0 {
				first = -1
			}
			if ids.Revision(r.Revision) > s.rev {
				return rpctypes.ErrGRPCFutureRev
			}
			if ids.Revision(r.Revision) < first {
				return rpctypes.ErrGRPCCompacted
			}
		}
		if p := op.GetRequestPut(); p != nil {
			if p.Lease != 0 && !s.leases[ids.LeaseID(p.Lease)] {
				return rpctypes.ErrGRPCLeaseNotFound
			}
			if (p.IgnoreValue || p.IgnoreLease) && s.at(string(p.Key), s.rev) == nil {
				return rpctypes.ErrGRPCKeyNotFound
			}
		}
		if t := op.GetRequestTxn(); t != nil {
			if err := examine(s, t, branches); err != nil {
				return err
			}
		}
	}
	return nil
}

// now is the revision that a read sees.
func (n *naive) now() ids.Revision {
	if n.changed {
		return n.rev
	}
	return n.rev - 1
}

func (n *naive) txn(req *pb.TxnRequest, branches map[*pb.TxnRequest]bool) *pb.TxnResponse {
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: branches[req]}
	for _, op := range chosen(req, branches) {
		out := &pb.ResponseOp{}
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: n.rangeOp(o.RequestRange)}
		case *pb.RequestOp_RequestPut:
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: n.put(o.RequestPut)}
		case *pb.RequestOp_RequestDeleteRange:
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: n.deleteRange(o.RequestDeleteRange)}
		case *pb.RequestOp_RequestTxn:
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: n.txn(o.RequestTxn, branches)}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

func (n *naive) put(p *pb.PutRequest) *pb.PutResponse {
	resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: int64(n.rev)}}
	before := n.s.at(string(p.Key), n.rev)
	value, lease := p.Value, p.Lease
	if p.IgnoreValue {
		value = before.Value
	}
	if p.IgnoreLease {
		lease = before.Lease
	}
	if p.PrevKv {
		resp.PrevKv = before
	}
	n.s.put(p.Key, value, ids.LeaseID(lease), n.rev)
	n.changed = true
	return resp
}

func (n *naive) deleteRange(d *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	resp := &pb.DeleteRangeResponse{}
	for _, kv := range rangeOf(n.s, d.Key, d.RangeEnd, n.now()) {
		if d.PrevKv {
			resp.PrevKvs = append(resp.PrevKvs, kv)
		}
		n.s.set(string(kv.Key), n.rev, nil)
		n.changed = true
		resp.Deleted++
	}
	resp.Header = &pb.ResponseHeader{Revision: int64(n.now())}
	return resp
}

func (n *naive) rangeOp(r *pb.RangeRequest) *pb.RangeResponse {
	rev := n.now()
	if r.Revision > 0 {
		rev = ids.Revision(r.Revision)
	}
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: int64(n.now())}}
	var kvs []*mvccpb.KeyValue
	for _, kv := range rangeOf(n.s, r.Key, r.RangeEnd, rev) {
		kvs = append(kvs, proto.Clone(kv).(*mvccpb.KeyValue))
	}
	resp.Count = int64(len(kvs))
	if r.CountOnly {
		return resp
	}
	filters := r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
	if r.SortOrder == pb.RangeRequest_NONE && !filters && r.Limit > 0 && r.Limit < math.MaxInt64 && len(kvs) > int(r.Limit)+1 {
		kvs = kvs[:r.Limit+1] // etcd asks its index for no more
	}
	for _, kv := range kvs {
		if (r.MinModRevision == 0 || kv.ModRevision >= r.MinModRevision) && (r.MaxModRevision == 0 || kv.ModRevision <= r.MaxModRevision) &&
			(r.MinCreateRevision == 0 || kv.CreateRevision >= r.MinCreateRevision) && (r.MaxCreateRevision == 0 || kv.CreateRevision <= r.MaxCreateRevision) {
			resp.Kvs = append(resp.Kvs, kv)
		}
	}
	sort.SliceStable(resp.Kvs, func(i, j int) bool {
		a, b := resp.Kvs[i], resp.Kvs[j]
		if r.SortOrder == pb.RangeRequest_DESCEND {
			a, b = b, a
		}
		switch r.SortTarget {
		case pb.RangeRequest_VERSION:
			return a.Version < b.Version
		case pb.RangeRequest_CREATE:
			return a.CreateRevision < b.CreateRevision
		case pb.RangeRequest_MOD:
			return a.ModRevision < b.ModRevision
		case pb.RangeRequest_VALUE:
			return bytes.Compare(a.Value, b.Value) < 0
		}
		return bytes.Compare(a.Key, b.Key) < 0
	})
	if r.Limit > 0 && len(resp.Kvs) > int(r.Limit) {
		resp.Kvs, resp.More = resp.Kvs[:r.Limit], true
	}
	for _, kv := range resp.Kvs {
		if r.KeysOnly {
			kv.Value = nil
			if r.SortTarget != pb.RangeRequest_VALUE {
				kv.Lease = 0
			}
		}
	}
	return resp
}
