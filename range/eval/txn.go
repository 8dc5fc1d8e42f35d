package eval

import (
	"bytes"
	"cmp"
	"math"
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
		return e.compareValue(c, e.read(c.Key, c.Target == pb.Compare_VALUE))
	}
	found, ok := false, true
	e.scan(c.Key, c.RangeEnd, func(kv *mvccpb.KeyValue) bool {
		found, ok = true, e.compareValue(c, Value{KV: kv})
		return ok
	})
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
			e.checkRevision(ids.Revision(o.RequestRange.Revision))
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

// checkRevision checks the revision that a range operation names. A negative one means the newest state, as zero does, but is held
// against the compaction first, which is at -1 as long as there was none: so it is in etcd.
func (e *evaluation) checkRevision(rev ids.Revision) {
	if rev == 0 {
		return
	}
	compacted := e.v.Compacted()
	if compacted == 0 {
		compacted = -1
	}
	switch {
	case rev > e.v.Revision():
		e.r.Err = rpctypes.ErrGRPCFutureRev
	case rev < compacted:
		e.r.Err = rpctypes.ErrGRPCCompacted
	}
}

// txn runs the operations of the branches taken.
func (e *evaluation) txn(req *pb.TxnRequest, path *[]bool) *pb.TxnResponse {
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
	resp := &pb.RangeResponse{}
	switch {
	case req.Revision > 0:
		res, err := e.v.ReadAt(past(req))
		if err != nil && e.err == nil {
			e.err = err
		}
		resp.Kvs, resp.Count, resp.More = res.KVs, res.Count, res.More
		if !DefaultOrder(req) {
			resp = Arrange(req, res.KVs)
		}
	case len(req.RangeEnd) == 0:
		resp = e.arrange(req, e.one(req.Key))
	default:
		resp = e.several(req)
	}
	resp.Header = e.header()
	return resp
}

// past is how to read what a request asks for of the past. If the keys have to be sorted, all of them are needed.
func past(req *pb.RangeRequest) mvcc.RangeOptions {
	o := mvcc.RangeOptions{Start: req.Key, End: Bound(req.Key, req.RangeEnd), Rev: ids.Revision(req.Revision)}
	if len(o.End) > 0 && bytes.Compare(o.Start, o.End) >= 0 {
		o.Start = o.End // nothing is between them
	}
	if DefaultOrder(req) {
		o.Limit, o.KeysOnly, o.CountOnly = int(max(0, req.Limit)), req.KeysOnly, req.CountOnly
		o.MinMod, o.MaxMod = ids.Revision(req.MinModRevision), ids.Revision(req.MaxModRevision)
		o.MinCreate, o.MaxCreate = ids.Revision(req.MinCreateRevision), ids.Revision(req.MaxCreateRevision)
	}
	return o
}

// one is a single key, if it exists, as the operation at hand sees it.
func (e *evaluation) one(key []byte) []*mvccpb.KeyValue {
	if own, ok := e.own[string(key)]; ok {
		if own.deleted {
			return nil
		}
		return []*mvccpb.KeyValue{e.ownKV(key, own)}
	}
	v := e.get(key)
	if v.KV == nil {
		return nil
	}
	if v.ModUnknown || v.CreateUnknown {
		e.needOrdered = true
	}
	return []*mvccpb.KeyValue{copyOf(v.KV)}
}

// several answers for a span. What lies behind the limit is counted, not kept.
func (e *evaluation) several(req *pb.RangeRequest) *pb.RangeResponse {
	var kvs []*mvccpb.KeyValue
	for key, own := range e.own { // sorted below
		if !own.deleted && mvcc.Contains(req.Key, Bound(req.Key, req.RangeEnd), []byte(key)) {
			kvs = append(kvs, e.ownKV([]byte(key), own))
		}
	}
	mine := len(kvs)
	keep := math.MaxInt
	if mine == 0 && !HasFilters(req) && DefaultOrder(req) {
		if keep = 0; !req.CountOnly {
			keep = enough(req)
		}
	}
	count := int64(mine)
	e.scan(req.Key, req.RangeEnd, func(kv *mvccpb.KeyValue) bool {
		if _, ok := e.own[string(kv.Key)]; ok {
			return true
		}
		if count++; len(kvs) < keep {
			kvs = append(kvs, copyOf(kv))
		}
		return true
	})
	if mine > 0 {
		slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	}
	resp := e.arrange(req, kvs)
	resp.Count = count
	return resp
}

// arrange is Arrange; if some of the keys are own writes, it is repeated when their revision is known.
func (e *evaluation) arrange(req *pb.RangeRequest, kvs []*mvccpb.KeyValue) *pb.RangeResponse {
	own := false
	for _, kv := range kvs {
		own = own || kv.ModRevision == 0
	}
	if !own || req.CountOnly {
		return Arrange(req, kvs)
	}
	resp := &pb.RangeResponse{}
	e.r.lists = append(e.r.lists, list{req, kvs, resp})
	return resp
}

func copyOf(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease,
	}
}

// ownKV is a key that the request itself has put. Its revision is left open.
func (e *evaluation) ownKV(key []byte, own ownWrite) *mvccpb.KeyValue {
	before := e.state(key)
	if before.CreateUnknown {
		e.needOrdered = true
	}
	kv := &mvccpb.KeyValue{Key: bytes.Clone(key), Value: own.value, Lease: int64(own.lease), Version: 1}
	if before.KV != nil {
		kv.Version, kv.CreateRevision = before.KV.Version+1, before.KV.CreateRevision
	}
	e.r.own = append(e.r.own, pending{kv, before.KV == nil})
	return kv
}

// Arrange makes etcd's answer to a range request, header aside, of all the keys in its span, in ascending order: filters,
// order, limit, count. The keys, and the slice of them, may be changed.
func Arrange(req *pb.RangeRequest, kvs []*mvccpb.KeyValue) *pb.RangeResponse {
	resp := &pb.RangeResponse{Count: int64(len(kvs))}
	if req.CountOnly {
		return resp
	}
	if sortsFirst(req) && !HasFilters(req) && req.Limit > 0 && len(kvs) > enough(req) {
		kvs = kvs[:enough(req)]
	}
	resp.Kvs = Select(req, kvs)
	if req.Limit > 0 && int64(len(resp.Kvs)) > req.Limit {
		resp.Kvs, resp.More = resp.Kvs[:req.Limit:req.Limit], true
	}
	if req.KeysOnly {
		for _, kv := range resp.Kvs {
			kv.Value = nil
			if req.SortTarget != pb.RangeRequest_VALUE {
				kv.Lease = 0 // etcd answers from its index, which has no leases
			}
		}
	}
	return resp
}

// enough is how many keys tell whether there are more than the limit.
func enough(req *pb.RangeRequest) int {
	if req.Limit <= 0 || req.Limit >= math.MaxInt {
		return math.MaxInt
	}
	return int(req.Limit) + 1
}

// sortsFirst tells whether the request names a target but no order. etcd sorts the answer then, after it has cut off what
// is behind the limit in the order of keys.
func sortsFirst(req *pb.RangeRequest) bool {
	return req.SortTarget != pb.RangeRequest_KEY && req.SortOrder == pb.RangeRequest_NONE
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
