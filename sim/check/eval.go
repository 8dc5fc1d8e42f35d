package check

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// result is what a request does to a state: its events in sub order, and its answer (without
// header), or the reason why it is refused.
type result struct {
	events  []Event
	answer  any
	refusal Refusal
	cuts    cuts
}

// cuts holds, for answers whose limit cut a list sorted by something else than the key, the whole
// list: etcd may choose other keys of equal rank.
type cuts map[*pb.RangeResponse][]*mvccpb.KeyValue

// evaluator runs one request on the state at revision rev; what it writes gets rev+1.
type evaluator struct {
	view
	events    []Event
	compacted int64
	cuts      cuts
}

// evaluate runs a write or a transaction on the state at rev. compacted is the revision below which
// reads are refused; 0 judges none.
func evaluate(src source, rev, compacted int64, req any) (result, error) {
	e := &evaluator{view: view{src: src, rev: rev, own: map[string]*mvccpb.KeyValue{}}, compacted: compacted}
	switch r := req.(type) {
	case *pb.PutRequest:
		if ref := e.checkPut(r); ref != NotJudged {
			return result{refusal: ref}, nil
		}
		ans := e.put(r)
		return result{events: e.events, answer: ans}, nil
	case *pb.DeleteRangeRequest:
		ans := e.deleteRange(r)
		return result{events: e.events, answer: ans}, nil
	case *pb.RangeRequest:
		if ref := e.checkRange(r); ref != NotJudged {
			return result{refusal: ref}, nil
		}
		ans := e.rangeKeys(r)
		return result{answer: ans, cuts: e.cuts}, nil
	case *pb.CompactionRequest:
		switch {
		case r.Revision <= compacted:
			return result{refusal: Compacted}, nil
		case r.Revision > rev:
			return result{refusal: FutureRevision}, nil
		}
		return result{answer: &pb.CompactionResponse{}}, nil
	case *pb.TxnRequest:
		// etcd decides every branch, nested ones too, on the state before the transaction.
		path := e.branches(r, nil)
		if ref := e.checkTxn(r, &cursor{path: path}); ref != NotJudged {
			return result{refusal: ref}, nil
		}
		ans := e.txn(r, &cursor{path: path})
		return result{events: e.events, answer: ans, cuts: e.cuts}, nil
	}
	return result{}, fmt.Errorf("a request of type %T", req)
}

// cursor hands out the outcomes of nested transactions in the order in which branches met them.
type cursor struct{ path []bool }

func (c *cursor) next() bool {
	b := c.path[0]
	c.path = c.path[1:]
	return b
}

func branch(r *pb.TxnRequest, ok bool) []*pb.RequestOp {
	if ok {
		return r.Success
	}
	return r.Failure
}

func (e *evaluator) branches(r *pb.TxnRequest, path []bool) []bool {
	ok := !slices.ContainsFunc(r.Compare, func(c *pb.Compare) bool { return !e.compare(c) })
	path = append(path, ok)
	for _, op := range branch(r, ok) {
		if t := op.GetRequestTxn(); t != nil {
			path = e.branches(t, path)
		}
	}
	return path
}

func (e *evaluator) checkTxn(r *pb.TxnRequest, c *cursor) Refusal {
	for _, op := range branch(r, c.next()) {
		ref := NotJudged
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			ref = e.checkRange(o.RequestRange)
		case *pb.RequestOp_RequestPut:
			ref = e.checkPut(o.RequestPut)
		case *pb.RequestOp_RequestTxn:
			ref = e.checkTxn(o.RequestTxn, c)
		}
		if ref != NotJudged {
			return ref
		}
	}
	return NotJudged
}

func (e *evaluator) txn(r *pb.TxnRequest, c *cursor) *pb.TxnResponse {
	ok := c.next()
	resp := &pb.TxnResponse{Succeeded: ok}
	for _, op := range branch(r, ok) {
		out := &pb.ResponseOp{}
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: e.rangeKeys(o.RequestRange)}
		case *pb.RequestOp_RequestPut:
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: e.put(o.RequestPut)}
		case *pb.RequestOp_RequestDeleteRange:
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: e.deleteRange(o.RequestDeleteRange)}
		case *pb.RequestOp_RequestTxn:
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: e.txn(o.RequestTxn, c)}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

func (e *evaluator) checkPut(r *pb.PutRequest) Refusal {
	if (r.IgnoreValue || r.IgnoreLease) && e.get(string(r.Key)) == nil {
		return KeyNotFound
	}
	return NotJudged
}

func (e *evaluator) put(r *pb.PutRequest) *pb.PutResponse {
	prev := e.get(string(r.Key))
	ev := Event{Revision: e.rev + 1, Sub: int64(len(e.events)), Key: string(r.Key), Value: string(r.Value), Lease: r.Lease}
	if prev != nil && r.IgnoreValue {
		ev.Value = string(prev.Value)
	}
	if prev != nil && r.IgnoreLease {
		ev.Lease = prev.Lease
	}
	e.own[ev.Key] = written(prev, ev, e.rev+1)
	e.events = append(e.events, ev)
	resp := &pb.PutResponse{}
	if r.PrevKv {
		resp.PrevKv = prev
	}
	return resp
}

func (e *evaluator) deleteRange(r *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	kvs := e.scan(span{string(r.Key), string(r.RangeEnd)})
	for _, kv := range kvs {
		e.events = append(e.events, Event{Revision: e.rev + 1, Sub: int64(len(e.events)), Key: string(kv.Key), Delete: true})
		e.own[string(kv.Key)] = nil
	}
	resp := &pb.DeleteRangeResponse{Deleted: int64(len(kvs))}
	if r.PrevKv {
		resp.PrevKvs = kvs
	}
	return resp
}

func (e *evaluator) compare(c *pb.Compare) bool {
	kvs := e.scan(span{string(c.Key), string(c.RangeEnd)})
	if len(kvs) == 0 {
		return c.Target != pb.Compare_VALUE && holds(c, &mvccpb.KeyValue{})
	}
	return !slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !holds(c, kv) })
}

func holds(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var order int
	switch c.Target {
	case pb.Compare_VALUE:
		order = bytes.Compare(kv.Value, c.GetValue())
	case pb.Compare_CREATE:
		order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		order = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		order = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		order = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	case pb.Compare_LESS:
		return order < 0
	default:
		return order == 0
	}
}

func (e *evaluator) checkRange(r *pb.RangeRequest) Refusal {
	switch {
	case r.Revision <= 0:
		return NotJudged
	case r.Revision > e.rev:
		return FutureRevision
	case r.Revision < e.compacted:
		return Compacted
	}
	return NotJudged
}

// rangeKeys answers a Range with the keys in the order asked for; equal sort keys stay in key order, which
// sameButForTies knows to be one of several right answers.
func (e *evaluator) rangeKeys(r *pb.RangeRequest) *pb.RangeResponse {
	all, total := e.candidates(r)
	resp := &pb.RangeResponse{Count: int64(total)}
	if r.CountOnly {
		return resp
	}
	if r.Limit > 0 && int64(len(all)) > r.Limit {
		if r.SortTarget != pb.RangeRequest_KEY {
			if e.cuts == nil {
				e.cuts = cuts{}
			}
			e.cuts[resp] = all
		}
		all, resp.More = all[:r.Limit], true
	}
	resp.Kvs = all
	return resp
}

// candidates are all keys that a Range may return, filtered, stripped and sorted, but not limited; total counts the
// span's keys before the filters, as etcd does.
func (e *evaluator) candidates(r *pb.RangeRequest) (all []*mvccpb.KeyValue, total int) {
	v := &e.view
	if r.Revision > 0 {
		v = &view{src: e.src, rev: r.Revision}
	}
	found := v.scan(span{string(r.Key), string(r.RangeEnd)})
	total = len(found)
	if r.SortOrder == pb.RangeRequest_NONE && r.Limit > 0 && int64(total) > r.Limit+1 && !revisionFilters(r) {
		// Without a sort order etcd takes the first limit+1 keys before it sorts, whatever the sort target.
		found = found[:r.Limit+1]
	}
	for _, kv := range found {
		if r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision || kv.ModRevision < r.MinModRevision ||
			r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision || kv.CreateRevision < r.MinCreateRevision {
			continue
		}
		all = append(all, kv)
	}
	if r.SortTarget != pb.RangeRequest_KEY || r.SortOrder == pb.RangeRequest_DESCEND {
		slices.SortStableFunc(all, func(a, b *mvccpb.KeyValue) int {
			if r.SortOrder == pb.RangeRequest_DESCEND {
				a, b = b, a
			}
			return bySortTarget(r.SortTarget, a, b)
		})
	}
	if r.KeysOnly {
		for i, kv := range all {
			all[i] = &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version}
			if r.SortTarget == pb.RangeRequest_VALUE {
				all[i].Lease = kv.Lease // etcd answers the other cases from its index, which has no leases
			}
		}
	}
	return all, total
}

func revisionFilters(r *pb.RangeRequest) bool {
	return r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
}

func bySortTarget(t pb.RangeRequest_SortTarget, a, b *mvccpb.KeyValue) int {
	switch t {
	case pb.RangeRequest_VERSION:
		return cmp.Compare(a.Version, b.Version)
	case pb.RangeRequest_CREATE:
		return cmp.Compare(a.CreateRevision, b.CreateRevision)
	case pb.RangeRequest_MOD:
		return cmp.Compare(a.ModRevision, b.ModRevision)
	case pb.RangeRequest_VALUE:
		return bytes.Compare(a.Value, b.Value)
	}
	return bytes.Compare(a.Key, b.Key)
}
