// Package eval says what etcd's apply does to a request: which keys it writes and what it answers, given a view of the
// key space. The leader of a range uses it on its applied state, the coordinator of a transaction over several ranges on what it has
// locked, and the router on a revision for requests that turn out to change nothing.
//
// The rules are those of etcd 3.7 (server/etcdserver/txn): all compares, also those of nested transactions, are decided
// before anything is done; then the branches taken are checked; then the operations run in order, each seeing the
// writes before it.
//
// Revisions that are not known yet (those of the request's own writes, and of unordered writes below it) are left open and
// filled in by Result.SetRevision.
package eval

import (
	"bytes"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/range/latch"
)

// Value is a key as a View shows it.
type Value struct {
	// KV is nil if the key does not exist. It is not changed, and not kept in answers without being copied.
	KV *mvccpb.KeyValue
	// ModUnknown and CreateUnknown say that the key was written, or created, by a write which has no revision yet. It will be one
	// above View.Revision.
	ModUnknown, CreateUnknown bool
}

// View is what a request is evaluated on.
type View interface {
	// Get is the newest state of a key. Without withValue its value may be missing.
	Get(key []byte, withValue bool) (Value, error)
	// Scan visits the newest state of the keys in [start, end) that exist, in ascending order, until visit says false. An empty end is the
	// end of the key space. It is only asked for spans in which nothing is unordered.
	Scan(start, end []byte, visit func(*mvccpb.KeyValue) (bool, error)) error
	// ReadAt reads a revision of the past, between Compacted and Revision.
	ReadAt(o mvcc.RangeOptions) (mvcc.RangeResult, error)
	// LeaseExists tells whether a lease may be named.
	LeaseExists(id ids.LeaseID) bool
	// Revision is the store's; Compacted is the revision of the last compaction, zero if there was none.
	Revision() ids.Revision
	Compacted() ids.Revision
}

// Write is one write of a request.
type Write struct {
	Key, Value []byte
	// Lease is the lease that the key is attached to, also where the request said ignore_lease.
	Lease  ids.LeaseID
	Delete bool
	Sub    uint32
	// PrevKV takes what the key was before the write, nil if it did not exist; nil if nobody asked.
	PrevKV func(*mvccpb.KeyValue)
}

// Result is what a request does and answers. Exactly one of NeedOrdered, Err and a response is set.
type Result struct {
	// NeedOrdered says that the outcome depends on a revision which is not known yet: evaluate again
	// when nothing that the request reads is unordered.
	NeedOrdered bool
	// Err is etcd's error.
	Err error
	// Writes are in the order of their sub-revisions. Without any, the request changes nothing.
	Writes []Write

	Put    *pb.PutResponse
	Delete *pb.DeleteRangeResponse
	Txn    *pb.TxnResponse

	headers []header
	own     []pending
	lists   []list
}

// header is a header to be filled in; late ones come after a write of the request.
type header struct {
	h    *pb.ResponseHeader
	late bool
}

// pending is a key in an answer that the request itself has written.
type pending struct {
	kv      *mvccpb.KeyValue
	created bool
}

// list is a range read over the request's own writes. Filters and orders may ask for their revisions, so what of them is in
// the answer is known only with the revision.
type list struct {
	req  *pb.RangeRequest
	kvs  []*mvccpb.KeyValue // the whole span
	resp *pb.RangeResponse
}

// SetRevision fills in the revision: the one that the writes have got or, for a request that changes nothing, the one it
// was evaluated at.
func (r *Result) SetRevision(rev ids.Revision) {
	for _, h := range r.headers {
		h.h.Revision = int64(rev)
		if len(r.Writes) > 0 && !h.late {
			h.h.Revision--
		}
	}
	for _, p := range r.own {
		p.kv.ModRevision = int64(rev)
		if p.created {
			p.kv.CreateRevision = int64(rev)
		}
	}
	for _, l := range r.lists {
		arranged := Arrange(l.req, slices.Clone(l.kvs))
		l.resp.Kvs, l.resp.More, l.resp.Count = arranged.Kvs, arranged.More, arranged.Count
	}
}

// Header is the header of the whole answer.
func (r *Result) Header() *pb.ResponseHeader {
	switch {
	case r.Put != nil:
		return r.Put.Header
	case r.Delete != nil:
		return r.Delete.Header
	case r.Txn != nil:
		return r.Txn.Header
	}
	return nil
}

// Bound turns etcd's range_end into braid's end of a span: a nil range_end is the single key, "\x00" the end of the key space.
func Bound(key, rangeEnd []byte) (end []byte) {
	switch {
	case len(rangeEnd) == 0:
		return append(append(make([]byte, 0, len(key)+1), key...), 0)
	case len(rangeEnd) == 1 && rangeEnd[0] == 0:
		return nil
	}
	return rangeEnd
}

// evaluation is one request being evaluated.
type evaluation struct {
	v           View
	r           *Result
	own         map[string]ownWrite // the request's own writes, by key; nil if no operation comes after one
	path        []bool              // which branch each transaction takes, in order of appearance
	needOrdered bool
	err         error // of the view
}

// ownWrite is what a key has become by the request itself.
type ownWrite struct {
	deleted bool
	value   []byte
	lease   ids.LeaseID
}

// Put evaluates a put. The request has been validated.
func Put(v View, req *pb.PutRequest) Result {
	e := evaluation{v: v, r: &Result{}}
	e.checkPut(req)
	if e.open() {
		e.r.Put = e.put(req)
	}
	return e.result()
}

// DeleteRange evaluates a deletion. The request has been validated.
func DeleteRange(v View, req *pb.DeleteRangeRequest) Result {
	e := evaluation{v: v, r: &Result{}}
	e.r.Delete = e.deleteRange(req)
	return e.result()
}

// Txn evaluates a transaction. The request has been validated.
func Txn(v View, req *pb.TxnRequest) Result {
	e := evaluation{v: v, r: &Result{}}
	e.choose(req)
	if e.open() {
		rest := e.path
		e.checkTxn(req, &rest)
	}
	if e.open() {
		if ops := branch(req, e.path[0]); len(ops) > 1 || len(ops) == 1 && ops[0].GetRequestTxn() != nil {
			e.own = map[string]ownWrite{}
		}
		rest := e.path
		e.r.Txn = e.txn(req, &rest)
		e.r.headers = append(e.r.headers, header{e.r.Txn.Header, len(e.r.Writes) > 0})
	}
	return e.result()
}

func (e *evaluation) open() bool { return e.err == nil && e.r.Err == nil && !e.needOrdered }

func (e *evaluation) result() Result {
	switch {
	case e.err != nil:
		return Result{Err: e.err}
	case e.needOrdered:
		return Result{NeedOrdered: true}
	case e.r.Err != nil:
		return Result{Err: e.r.Err}
	}
	return *e.r
}

func (e *evaluation) header() *pb.ResponseHeader {
	h := &pb.ResponseHeader{}
	e.r.headers = append(e.r.headers, header{h, len(e.r.Writes) > 0})
	return h
}

// get is a key as the operation at hand sees it.
func (e *evaluation) get(key []byte) Value { return e.read(key, true) }

// state is get where nobody looks at the value: that is cheaper.
func (e *evaluation) state(key []byte) Value { return e.read(key, false) }

func (e *evaluation) read(key []byte, withValue bool) Value {
	v, err := e.v.Get(key, withValue)
	if err != nil && e.err == nil {
		e.err = err
	}
	return v
}

// checkPut finds what etcd finds wrong with a put before it runs anything.
func (e *evaluation) checkPut(req *pb.PutRequest) {
	if req.Lease != 0 && !e.v.LeaseExists(ids.LeaseID(req.Lease)) {
		e.r.Err = rpctypes.ErrGRPCLeaseNotFound
		return
	}
	if (req.IgnoreValue || req.IgnoreLease) && e.state(req.Key).KV == nil && e.err == nil {
		e.r.Err = rpctypes.ErrGRPCKeyNotFound
	}
}

func (e *evaluation) put(req *pb.PutRequest) *pb.PutResponse {
	w := Write{Key: req.Key, Value: req.Value, Lease: ids.LeaseID(req.Lease), Sub: uint32(len(e.r.Writes))}
	if req.IgnoreValue || req.IgnoreLease {
		kv := e.read(req.Key, req.IgnoreValue).KV
		if kv == nil {
			return nil
		}
		if req.IgnoreValue {
			w.Value = kv.Value
		}
		if req.IgnoreLease {
			w.Lease = ids.LeaseID(kv.Lease)
		}
	}
	resp := &pb.PutResponse{}
	if req.PrevKv {
		w.PrevKV = func(kv *mvccpb.KeyValue) { resp.PrevKv = kv }
	}
	e.r.Writes = append(e.r.Writes, w)
	resp.Header = e.header()
	if e.own != nil {
		e.own[string(req.Key)] = ownWrite{value: w.Value, lease: w.Lease}
	}
	return resp
}

func (e *evaluation) deleteRange(req *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	resp := &pb.DeleteRangeResponse{}
	// Puts and deletions of one transaction never overlap (router/check), so of the own writes only deletions matter.
	one := func(key []byte) {
		if e.own[string(key)].deleted {
			return
		}
		w := Write{Key: key, Delete: true, Sub: uint32(len(e.r.Writes))}
		if req.PrevKv {
			i := len(resp.PrevKvs)
			resp.PrevKvs = append(resp.PrevKvs, nil)
			w.PrevKV = func(kv *mvccpb.KeyValue) { resp.PrevKvs[i] = kv }
		}
		e.r.Writes = append(e.r.Writes, w)
		resp.Deleted++
		if e.own != nil {
			e.own[string(key)] = ownWrite{deleted: true}
		}
	}
	if len(req.RangeEnd) == 0 {
		if e.state(req.Key).KV != nil {
			one(req.Key)
		}
	} else {
		e.scan(req.Key, req.RangeEnd, func(kv *mvccpb.KeyValue) bool {
			one(kv.Key)
			return true
		})
	}
	resp.Header = e.header()
	return resp
}

// scan visits the keys of etcd's span, until visit says false. There are none if it ends before it begins.
func (e *evaluation) scan(key, rangeEnd []byte, visit func(*mvccpb.KeyValue) bool) {
	end := Bound(key, rangeEnd)
	if len(end) > 0 && bytes.Compare(key, end) >= 0 {
		return
	}
	err := e.v.Scan(key, end, func(kv *mvccpb.KeyValue) (bool, error) { return visit(kv), nil })
	if err != nil && e.err == nil {
		e.err = err
	}
}

// Spans are what a request latches.
type Spans struct {
	Reads, Writes []latch.Span
	// Ranges says that a read is of more than one key, so that the request cannot be evaluated on unordered writes.
	Ranges bool
}

// PutSpans are those of a put. A blind one, also with prev_kv, only writes.
func PutSpans(req *pb.PutRequest) (s Spans) {
	s.put(req)
	return s
}

// DeleteSpans are those of a deletion.
func DeleteSpans(req *pb.DeleteRangeRequest) (s Spans) {
	s.delete(req)
	return s
}

// TxnSpans are those of a transaction, all branches included.
func TxnSpans(req *pb.TxnRequest) (s Spans) {
	s.txn(req)
	return s
}

func (s *Spans) put(req *pb.PutRequest) {
	p := latch.Span{Start: req.Key}
	s.Writes = append(s.Writes, p)
	if req.IgnoreValue || req.IgnoreLease {
		s.Reads = append(s.Reads, p)
	}
}

func (s *Spans) delete(req *pb.DeleteRangeRequest) {
	if p, ok := s.read(req.Key, req.RangeEnd); ok {
		s.Writes = append(s.Writes, p)
	}
}

// read adds a read, unless nothing can be in it.
func (s *Spans) read(key, rangeEnd []byte) (latch.Span, bool) {
	if len(rangeEnd) == 0 {
		p := latch.Span{Start: key}
		s.Reads = append(s.Reads, p)
		return p, true
	}
	p := latch.Span{Start: key, End: Bound(key, rangeEnd)}
	if p.End == nil {
		p.End = []byte{}
	} else if bytes.Compare(key, p.End) >= 0 {
		return p, false
	}
	s.Ranges = true
	s.Reads = append(s.Reads, p)
	return p, true
}

func (s *Spans) txn(req *pb.TxnRequest) {
	for _, c := range req.Compare {
		s.read(c.Key, c.RangeEnd)
	}
	for _, ops := range [2][]*pb.RequestOp{req.Success, req.Failure} {
		for _, op := range ops {
			switch o := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				if o.RequestRange.Revision <= 0 {
					s.read(o.RequestRange.Key, o.RequestRange.RangeEnd)
				}
			case *pb.RequestOp_RequestPut:
				s.put(o.RequestPut)
			case *pb.RequestOp_RequestDeleteRange:
				s.delete(o.RequestDeleteRange)
			case *pb.RequestOp_RequestTxn:
				s.txn(o.RequestTxn)
			}
		}
	}
}

// ReadOnly tells whether a transaction cannot write, whatever its compares say. (etcd takes one with a nested
// transaction for a writing one, which no client can tell.)
func ReadOnly(req *pb.TxnRequest) bool {
	for _, ops := range [2][]*pb.RequestOp{req.Success, req.Failure} {
		for _, op := range ops {
			switch o := op.Request.(type) {
			case *pb.RequestOp_RequestPut, *pb.RequestOp_RequestDeleteRange:
				return false
			case *pb.RequestOp_RequestTxn:
				if !ReadOnly(o.RequestTxn) {
					return false
				}
			}
		}
	}
	return true
}
