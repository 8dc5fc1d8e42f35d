package check

import (
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// header returns the revision that an answer names.
func header(resp any) (int64, bool) {
	h, ok := resp.(interface{ GetHeader() *pb.ResponseHeader })
	if !ok || h.GetHeader() == nil {
		return 0, false
	}
	return h.GetHeader().Revision, true
}

// paired tells whether an answer is of the type that its request gets.
func paired(req, resp any) bool {
	ok := false
	switch req.(type) {
	case *pb.PutRequest:
		_, ok = resp.(*pb.PutResponse)
	case *pb.DeleteRangeRequest:
		_, ok = resp.(*pb.DeleteRangeResponse)
	case *pb.TxnRequest:
		_, ok = resp.(*pb.TxnResponse)
	case *pb.RangeRequest:
		_, ok = resp.(*pb.RangeResponse)
	case *pb.CompactionRequest:
		_, ok = resp.(*pb.CompactionResponse)
	}
	return ok
}

// mayWrite tells whether a request can change anything in some state.
func mayWrite(req any) bool {
	switch r := req.(type) {
	case *pb.PutRequest, *pb.DeleteRangeRequest:
		return true
	case *pb.TxnRequest:
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if op.GetRequestPut() != nil || op.GetRequestDeleteRange() != nil {
				return true
			}
			if t := op.GetRequestTxn(); t != nil && mayWrite(t) {
				return true
			}
		}
	}
	return false
}

// wrote tells from an answer whether the request changed anything.
func wrote(resp any) bool {
	switch r := resp.(type) {
	case *pb.PutResponse:
		return true
	case *pb.DeleteRangeResponse:
		return r.GetDeleted() > 0
	case *pb.TxnResponse:
		for _, op := range r.Responses {
			if op.GetResponsePut() != nil || op.GetResponseDeleteRange().GetDeleted() > 0 {
				return true
			}
			if t := op.GetResponseTxn(); t != nil && wrote(t) {
				return true
			}
		}
	}
	return false
}

// serializable tells whether a request may be answered from the past of one node.
func serializable(req any) bool {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return r.Serializable
	case *pb.TxnRequest:
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if !op.GetRequestRange().GetSerializable() {
				return false
			}
		}
		return true
	}
	return false
}

// oldest is the lowest revision that a request asks to read by number, 0 if it asks for none.
// Of a transaction only the branches that were taken count.
func oldest(req, resp any) int64 {
	low := int64(0)
	note := func(rev int64) {
		if rev > 0 && (low == 0 || rev < low) {
			low = rev
		}
	}
	switch r := req.(type) {
	case *pb.RangeRequest:
		note(r.Revision)
	case *pb.TxnRequest:
		t, ok := resp.(*pb.TxnResponse)
		if !ok {
			for _, op := range slices.Concat(r.Success, r.Failure) {
				note(op.GetRequestRange().GetRevision())
				note(oldest(op.GetRequestTxn(), nil))
			}
			return low
		}
		for i, op := range branch(r, t.Succeeded) {
			note(op.GetRequestRange().GetRevision())
			if n := op.GetRequestTxn(); n != nil && i < len(t.Responses) {
				note(oldest(n, t.Responses[i].GetResponseTxn()))
			}
		}
	}
	return low
}

// difference describes how an answer differs from the right one, "" if it does not.
func difference(req any, res result, got any) string {
	return res.cuts.difference(req, res.answer, got)
}

func (c cuts) difference(req, want, got any) string {
	switch w := want.(type) {
	case *pb.PutResponse:
		g := got.(*pb.PutResponse)
		if !proto.Equal(w.PrevKv, g.GetPrevKv()) {
			return fmt.Sprintf("prev_kv %s, want %s", show(g.GetPrevKv()), show(w.PrevKv))
		}
	case *pb.DeleteRangeResponse:
		g := got.(*pb.DeleteRangeResponse)
		if w.Deleted != g.GetDeleted() || !sameKVs(w.PrevKvs, g.GetPrevKvs()) {
			return fmt.Sprintf("deleted %d %s, want %d %s", g.GetDeleted(), showAll(g.GetPrevKvs()), w.Deleted, showAll(w.PrevKvs))
		}
	case *pb.RangeResponse:
		return c.rangeDifference(req.(*pb.RangeRequest), w, got.(*pb.RangeResponse))
	case *pb.TxnResponse:
		return c.txnDifference(req.(*pb.TxnRequest), w, got.(*pb.TxnResponse))
	}
	return ""
}

func (c cuts) txnDifference(req *pb.TxnRequest, want, got *pb.TxnResponse) string {
	if want.Succeeded != got.GetSucceeded() {
		return fmt.Sprintf("succeeded %v, want %v", got.GetSucceeded(), want.Succeeded)
	}
	ops := branch(req, want.Succeeded)
	if len(got.Responses) != len(want.Responses) {
		return fmt.Sprintf("%d answers, want %d", len(got.Responses), len(want.Responses))
	}
	for i, w := range want.Responses {
		g := got.Responses[i]
		diff := ""
		switch x := w.Response.(type) {
		case *pb.ResponseOp_ResponseRange:
			if g.GetResponseRange() == nil {
				diff = "not a range answer"
			} else {
				diff = c.difference(ops[i].GetRequestRange(), x.ResponseRange, g.GetResponseRange())
			}
		case *pb.ResponseOp_ResponsePut:
			if g.GetResponsePut() == nil {
				diff = "not a put answer"
			} else {
				diff = c.difference(nil, x.ResponsePut, g.GetResponsePut())
			}
		case *pb.ResponseOp_ResponseDeleteRange:
			if g.GetResponseDeleteRange() == nil {
				diff = "not a delete answer"
			} else {
				diff = c.difference(nil, x.ResponseDeleteRange, g.GetResponseDeleteRange())
			}
		case *pb.ResponseOp_ResponseTxn:
			if g.GetResponseTxn() == nil {
				diff = "not a txn answer"
			} else {
				diff = c.difference(ops[i].GetRequestTxn(), x.ResponseTxn, g.GetResponseTxn())
			}
		}
		if diff != "" {
			return fmt.Sprintf("operation %d: %s", i, diff)
		}
	}
	return ""
}

func (c cuts) rangeDifference(req *pb.RangeRequest, want, got *pb.RangeResponse) string {
	if want.Count != got.Count || want.More != got.More || len(want.Kvs) != len(got.Kvs) {
		return fmt.Sprintf("count %d, more %v, %d keys %s, want %d, %v, %d keys %s",
			got.Count, got.More, len(got.Kvs), showAll(got.Kvs), want.Count, want.More, len(want.Kvs), showAll(want.Kvs))
	}
	if sameKVs(want.Kvs, got.Kvs) {
		return ""
	}
	all := want.Kvs
	if cut, ok := c[want]; ok {
		all = cut
	}
	if req.SortTarget != pb.RangeRequest_KEY && sameButForTies(req, all, got.Kvs) {
		return ""
	}
	return fmt.Sprintf("keys %s, want %s", showAll(got.Kvs), showAll(want.Kvs))
}

// sameButForTies accepts any order among equal sort keys, and any choice among them where the limit cuts. all is
// the whole list in one right order. Values that are not in the answer cannot be told apart.
func sameButForTies(req *pb.RangeRequest, all, got []*mvccpb.KeyValue) bool {
	byKey := map[string]*mvccpb.KeyValue{}
	for _, kv := range all {
		byKey[string(kv.Key)] = kv
	}
	for i, kv := range got {
		if bySortTarget(req.SortTarget, kv, all[i]) != 0 || !proto.Equal(byKey[string(kv.Key)], kv) {
			return false
		}
		delete(byKey, string(kv.Key))
	}
	return true
}

func sameKVs(a, b []*mvccpb.KeyValue) bool {
	return slices.EqualFunc(a, b, func(x, y *mvccpb.KeyValue) bool { return proto.Equal(x, y) })
}

func show(kv *mvccpb.KeyValue) string {
	if kv == nil {
		return "none"
	}
	s := fmt.Sprintf("%s=%q@%d/%d/v%d", kv.Key, clip(string(kv.Value), 24), kv.CreateRevision, kv.ModRevision, kv.Version)
	if kv.Lease != 0 {
		s += fmt.Sprintf("/lease %x", kv.Lease)
	}
	return s
}

func showAll(kvs []*mvccpb.KeyValue) string {
	const most = 12
	s := "["
	for i, kv := range kvs {
		if i == most {
			return s + fmt.Sprintf(" and %d more]", len(kvs)-most)
		}
		if i > 0 {
			s += " "
		}
		s += show(kv)
	}
	return s + "]"
}
