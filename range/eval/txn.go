package eval

import (
	"bytes"
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
)

// choose decides all compares, in order, and notes the branch of each transaction that is reached.
func (e *evaluation) choose(req *pb.TxnRequest) {
	ok := true
	for _, c := range req.Compare {
		if ok = e.compare(c); !ok || !e.open() {
			break
		}
	}
	e.path = append(e.path, ok)
	for _, op := range branch(req, ok) {
		if !e.open() {
			return
		}
		if t := op.GetRequestTxn(); t != nil {
			e.choose(t)
		}
	}
}

func branch(req *pb.TxnRequest, succeeded bool) []*pb.RequestOp {
	if succeeded {
		return req.Success
	}
	return req.Failure
}

func take(path *[]bool) bool {
	ok := (*path)[0]
	*path = (*path)[1:]
	return ok
}

// compare decides one compare. A compare of a range holds if it holds for every key in it; if there is none, for a
// key that does not exist.
func (e *evaluation) compare(c *pb.Compare) bool {
	if len(c.RangeEnd) == 0 {
		return e.compareValue(c, e.get(c.Key))
	}
	end := Bound(c.Key, c.RangeEnd)
	found, ok := false, true
	if len(end) == 0 || bytes.Compare(c.Key, end) < 0 {
		e.scan(c.Key, end, func(kv *mvccpb.KeyValue) {
			found = true
			ok = ok && e.compareValue(c, Value{KV: kv})
		})
	}
	if !found {
		return e.compareValue(c, Value{})
	}
	return ok
}

func (e *evaluation) compareValue(c *pb.Compare, v Value) bool {
	kv := v.KV
	if kv == nil {
		if c.Target == pb.Compare_VALUE {
			return false // there is no way to name the value of a key that does not exist
		}
		kv = &mvccpb.KeyValue{}
	}
	var result int
	switch c.Target {
	case pb.Compare_VALUE:
		result = bytes.Compare(kv.Value, c.GetValue())
	case pb.Compare_CREATE:
		result = e.compareRevision(kv.CreateRevision, v.CreateUnknown, c.GetCreateRevision())
	case pb.Compare_MOD:
		result = e.compareRevision(kv.ModRevision, v.ModUnknown, c.GetModRevision())
	case pb.Compare_VERSION:
		result = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		result = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return result == 0
	case pb.Compare_NOT_EQUAL:
		return result != 0
	case pb.Compare_GREATER:
		return result > 0
	case pb.Compare_LESS:
		return result < 0
	}
	return true
}

// compareRevision knows of an unknown revision only that it is above the store's.
func (e *evaluation) compareRevision(rev int64, unknown bool, with int64) int {
	if !unknown {
		return cmp.Compare(rev, with)
	}
	if ids.Revision(with) > e.v.Revision() {
		e.needOrdered = true
	}
	return 1
}

// checkTxn finds what etcd finds wrong with the branches taken before it runs anything.
func (e *evaluation) checkTxn(req *pb.TxnRequest, path *[]bool) {
	for _, op := range branch(req, take(path)) {
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			switch rev := ids.Revision(o.RequestRange.Revision); {
			case rev == 0:
			case rev > e.v.Revision():
				e.r.Err = rpctypes.ErrGRPCFutureRev
			case rev < e.v.Compacted():
				e.r.Err = rpctypes.ErrGRPCCompacted
			}
		case *pb.RequestOp_RequestPut:
			e.checkPut(o.RequestPut)
		case *pb.RequestOp_RequestTxn:
			e.checkTxn(o.RequestTxn, path)
		}
		if !e.open() {
			return
		}
	}
}

// txn runs the operations of the branches taken.
func (e *evaluation) txn(req *pb.TxnRequest, path *[]bool) *pb.TxnResponse {
	if e.own == nil {
		e.own = map[string]*ownWrite{}
	}
	ok := take(path)
	ops := branch(req, ok)
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: ok, Responses: make([]*pb.ResponseOp, len(ops))}
	for i, op := range ops {
		out := &pb.ResponseOp{}
		resp.Responses[i] = out
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: e.rangeOp(o.RequestRange)}
		case *pb.RequestOp_RequestPut:
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: e.put(o.RequestPut)}
		case *pb.RequestOp_RequestDeleteRange:
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: e.deleteRange(o.RequestDeleteRange)}
		case *pb.RequestOp_RequestTxn:
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: e.txn(o.RequestTxn, path)}
		}
		if !e.open() {
			return resp
		}
	}
	return resp
}

// rangeOp reads inside a transaction: the state before it with its own writes on top, or a revision of the past.
func (e *evaluation) rangeOp(req *pb.RangeRequest) *pb.RangeResponse {
	var kvs []*mvccpb.KeyValue
	if req.Revision > 0 {
		res, err := e.v.ReadAt(mvcc.RangeOptions{Start: req.Key, End: Bound(req.Key, req.RangeEnd), Rev: ids.Revision(req.Revision)})
		if err != nil {
			e.err = err
			return nil
		}
		kvs = res.KVs
	} else {
		kvs = e.current(req)
	}
	resp := Arrange(req, kvs)
	resp.Header = e.header()
	return resp
}

// current is what a range op without a revision sees.
func (e *evaluation) current(req *pb.RangeRequest) (kvs []*mvccpb.KeyValue) {
	add := func(kv *mvccpb.KeyValue) {
		c := *&mvccpb.KeyValue{Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
		kvs = append(kvs, &c)
	}
	if len(req.RangeEnd) == 0 {
		if kv, ok := e.ownKV(req.Key); ok {
			if kv != nil {
				kvs = append(kvs, kv)
			}
			return kvs
		}
		v := e.get(req.Key)
		if v.ModUnknown || v.CreateUnknown {
			e.needOrdered = true
		}
		if v.KV != nil {
			add(v.KV)
		}
		return kvs
	}
	end := Bound(req.Key, req.RangeEnd)
	if len(end) > 0 && bytes.Compare(req.Key, end) >= 0 {
		return nil
	}
	e.scan(req.Key, end, func(kv *mvccpb.KeyValue) {
		if e.own[string(kv.Key)] == nil {
			add(kv)
		}
	})
	for k := range e.own { // sorted below
		if !mvcc.Contains(req.Key, end, []byte(k)) {
			continue
		}
		if kv, _ := e.ownKV([]byte(k)); kv != nil {
			kvs = append(kvs, kv)
		}
	}
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return kvs
}

// ownKV is a key that the request itself has written, with its revision left open; nil if deleted. ok says that it has
// written it.
func (e *evaluation) ownKV(key []byte) (kv *mvccpb.KeyValue, ok bool) {
	own := e.own[string(key)]
	if own == nil {
		return nil, false
	}
	if own.deleted {
		return nil, true
	}
	before := e.get(key)
	if before.CreateUnknown {
		e.needOrdered = true
	}
	kv = &mvccpb.KeyValue{Key: own.kv.Key, Value: own.kv.Value, Lease: own.kv.Lease, Version: 1}
	created := before.KV == nil
	if !created {
		kv.Version, kv.CreateRevision = before.KV.Version+1, before.KV.CreateRevision
	}
	e.r.own = append(e.r.own, pending{kv, created})
	return kv, true
}

// Arrange makes etcd's answer to a range request, header aside, of all the keys in its span, in ascending order: filters,
// order, limit, count. The keys may be changed.
func Arrange(req *pb.RangeRequest, kvs []*mvccpb.KeyValue) *pb.RangeResponse {
	resp := &pb.RangeResponse{Count: int64(len(kvs))}
	if req.CountOnly {
		return resp
	}
	resp.Kvs = Select(req, kvs)
	if req.Limit > 0 && int64(len(resp.Kvs)) > req.Limit {
		resp.Kvs, resp.More = resp.Kvs[:req.Limit:req.Limit], true
	}
	if req.KeysOnly {
		for _, kv := range resp.Kvs {
			kv.Value = nil
		}
	}
	return resp
}

// Select filters and sorts keys that come in ascending order as a range request says; limit and keys_only are the caller's. Keys that
// compare equal stay in ascending order.
func Select(req *pb.RangeRequest, kvs []*mvccpb.KeyValue) []*mvccpb.KeyValue {
	if HasFilters(req) {
		kvs = slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool {
			return req.MaxModRevision != 0 && kv.ModRevision > req.MaxModRevision || req.MinModRevision != 0 && kv.ModRevision < req.MinModRevision ||
				req.MaxCreateRevision != 0 && kv.CreateRevision > req.MaxCreateRevision || req.MinCreateRevision != 0 && kv.CreateRevision < req.MinCreateRevision
		})
	}
	if DefaultOrder(req) {
		return kvs
	}
	var by func(a, b *mvccpb.KeyValue) int
	switch req.SortTarget {
	case pb.RangeRequest_VERSION:
		by = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case pb.RangeRequest_CREATE:
		by = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case pb.RangeRequest_MOD:
		by = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case pb.RangeRequest_VALUE:
		by = func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	default:
		by = func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) }
	}
	if req.SortOrder == pb.RangeRequest_DESCEND {
		slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int { return by(b, a) })
	} else {
		slices.SortStableFunc(kvs, by)
	}
	return kvs
}

// DefaultOrder tells whether the answer is in ascending order of keys. A sort target other than the key without an order means ascending, as in
// etcd.
func DefaultOrder(req *pb.RangeRequest) bool {
	return req.SortTarget == pb.RangeRequest_KEY && req.SortOrder != pb.RangeRequest_DESCEND
}

// HasFilters tells whether the request restricts revisions.
func HasFilters(req *pb.RangeRequest) bool {
	return req.MinModRevision != 0 || req.MaxModRevision != 0 || req.MinCreateRevision != 0 || req.MaxCreateRevision != 0
}
