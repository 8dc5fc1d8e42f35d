package router

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"sort"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
	"github.com/braidkv/braid/range/eval"
)

// deadlinePositions is how many order positions a transaction over several ranges may take. The order log grows by some thousand a second
// at most; participants give up on a transaction long before, by ticks. The deadline is what lets everybody forget it.
const deadlinePositions = 1 << 17

// participant is one range of a transaction.
type participant struct {
	desc          *braidpb.RangeDescriptor
	id            ids.RangeID
	reads, writes []*braidpb.Span
	lock          *braidpb.LockResponse
	ops           []*braidpb.WriteOp
	prepared      bool
}

// coordination is one attempt at a transaction over several ranges. The order log decides it: until a TxnCommit is proposed,
// giving up leaves nothing behind but locks and prepares, which an abort or their own time-outs release; from then on, what is
// not known is ambiguous.
type coordination struct {
	*call
	v     *order.View
	w     *write
	txn   ids.TxnID
	parts []*participant // ascending range ID: everybody locks in this order, so nobody waits in a circle
	kvs   []*mvccpb.KeyValue
}

// coordinate carries a request out over several ranges. errTryAgain says that it is certainly not done.
func (k *call) coordinate(v *order.View, w *write, descs []*braidpb.RangeDescriptor) (eval.Result, error) {
	c := &coordination{call: k, v: v, w: w, txn: k.s.b.NewTxnID()}
	for _, d := range descs {
		p := &participant{desc: d, id: ids.RangeID(d.GetId())}
		p.reads, p.writes = cutSpans(w, d)
		c.parts = append(c.parts, p)
	}
	slices.SortFunc(c.parts, func(a, b *participant) int { return cmp.Compare(a.id, b.id) })
	if err := c.lock(); err != nil {
		c.unlock()
		return eval.Result{}, err
	}
	res, err := c.evaluate()
	if err != nil || res.Err != nil || len(res.Writes) == 0 {
		c.unlock()
		if err == nil {
			err = errReadInstead
		}
		return eval.Result{}, err
	}
	c.distribute(res.Writes)
	deadline := uint64(c.s.b.View().Position) + deadlinePositions
	if err := c.prepare(deadline); err != nil {
		c.abort(deadline)
		return eval.Result{}, err
	}
	rev, err := c.commit(deadline, res.Writes)
	if err != nil {
		return eval.Result{}, err
	}
	res.SetRevision(rev)
	return res, nil
}

// cutSpans are the parts of a request's spans that lie in a range. Keys whose former value is wanted are read too.
func cutSpans(w *write, d *braidpb.RangeDescriptor) (reads, writes []*braidpb.Span) {
	cut := func(sp span) *braidpb.Span {
		if bytes.Compare(sp.start, d.GetStart()) < 0 {
			sp.start = d.GetStart()
		}
		if len(d.GetEnd()) > 0 && (len(sp.end) == 0 || bytes.Compare(sp.end, d.GetEnd()) > 0) {
			sp.end = d.GetEnd()
		}
		if len(sp.end) > 0 && bytes.Compare(sp.start, sp.end) >= 0 {
			return nil
		}
		if len(sp.end) == len(sp.start)+1 && sp.end[len(sp.start)] == 0 && bytes.Equal(sp.end[:len(sp.start)], sp.start) {
			return &braidpb.Span{Start: sp.start} // a single key
		}
		return &braidpb.Span{Start: sp.start, End: sp.end, ToEnd: len(sp.end) == 0}
	}
	all := w.spans()
	for _, sp := range keySpans(nil, all.Reads) {
		if x := cut(sp); x != nil {
			reads = append(reads, x)
		}
	}
	prev := wantsPrev(w)
	for _, sp := range keySpans(nil, all.Writes) {
		if x := cut(sp); x != nil {
			writes = append(writes, x)
			if prev {
				reads = append(reads, x)
			}
		}
	}
	return reads, writes
}

// wantsPrev tells whether some put of the request asks for the former value, or is read back by the request, so that its former
// state must be known.
func wantsPrev(w *write) bool {
	if w.txn == nil {
		return w.put.GetPrevKv()
	}
	return txnWantsPrev(w.txn)
}

func txnWantsPrev(t *pb.TxnRequest) bool {
	for _, ops := range [2][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range ops {
			if op.GetRequestPut().GetPrevKv() || op.GetRequestTxn() != nil && txnWantsPrev(op.GetRequestTxn()) {
				return true
			}
		}
	}
	return false
}

// lock takes the participants' locks one after the other.
func (c *coordination) lock() error {
	for _, p := range c.parts {
		req := &ranges.Request{Lock: &braidpb.LockRequest{Txn: txnProto(c.txn), Reads: p.reads, Writes: p.writes}}
		resp, err := c.ask(c.v, p.desc, req)
		if err != nil {
			return err
		}
		switch resp.Code {
		case ranges.CodeOK:
			p.lock = resp.Lock
		case ranges.CodeAmbiguous, ranges.CodeReadInstead:
			return errTryAgain // a lock that was given and is not known lapses
		default:
			return c.settle(c.v, resp.Code)
		}
		for _, b := range p.lock.GetKvs() {
			kv := &mvccpb.KeyValue{}
			if err := proto.Unmarshal(b, kv); err != nil {
				return status.Errorf(codes.Internal, "braid: range %d sent a malformed key", p.id)
			}
			c.kvs = append(c.kvs, kv)
		}
	}
	slices.SortFunc(c.kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return nil
}

// evaluate evaluates the request on what is locked.
func (c *coordination) evaluate() (eval.Result, error) {
	if c.w.txn != nil {
		if past := pastReads(c.w.txn); len(past) > 0 {
			if _, err := c.linearizable(past); err != nil {
				return eval.Result{}, err
			}
		}
	}
	v := c.s.b.View()
	lv := &lockedView{kvs: c.kvs, view: view{r: c.s.b.Reader(), rev: v.Revision, compacted: v.CompactRevision}}
	res := c.w.evaluate(lv)
	if c.s.b.View().CompactRevision != v.CompactRevision {
		return eval.Result{}, errTryAgain // what was read of the past may have been removed meanwhile
	}
	for _, w := range res.Writes {
		if w.PrevKV != nil {
			x, _ := lv.Get(w.Key)
			w.PrevKV(x.KV)
		}
	}
	return res, nil
}

// distribute gives every write to the participant that has its key.
func (c *coordination) distribute(writes []eval.Write) {
	for _, w := range writes {
		for _, p := range c.parts {
			if mvcc.Contains(p.desc.GetStart(), p.desc.GetEnd(), w.Key) {
				p.ops = append(p.ops, &braidpb.WriteOp{Key: w.Key, Value: w.Value, Lease: int64(w.Lease), Delete: w.Delete, Sub: uint64(w.Sub)})
			}
		}
	}
}

// prepare has all participants log their parts, at once, and waits until all are known committed. On an error nothing was
// committed, nor will be.
func (c *coordination) prepare(deadline uint64) error {
	all := c.rangeIDs()
	var mu sync.Mutex
	codes := make([]ranges.Code, len(c.parts))
	err := c.wait(func(done func()) {
		left := len(c.parts)
		for i, p := range c.parts {
			req := &ranges.Request{
				Prepare: &braidpb.PrepareRequest{
					Txn: txnProto(c.txn), Token: p.lock.GetToken(), Term: p.lock.GetTerm(), Deadline: deadline, Participants: all, Writes: p.ops,
				},
			}
			c.address(c.v, p.desc, req)
			req.Done = func(r *ranges.Response) {
				mu.Lock()
				codes[i] = r.Code
				left--
				last := left == 0
				mu.Unlock()
				if last {
					done()
				}
			}
			c.s.b.Submit(p.id, req)
		}
	})
	if err != nil {
		return err
	}
	for i, code := range codes {
		switch code {
		case ranges.CodeOK:
			c.parts[i].prepared = true
		case ranges.CodeAmbiguous, ranges.CodeTimeout, ranges.CodeReadInstead:
			err = errTryAgain // whether it is prepared does not matter: it will be aborted
		default:
			if out := outcome(code); err == nil || !errors.Is(out, errTryAgain) {
				err = out
			}
		}
	}
	return err
}

// commit proposes the decision and waits for the one that wins.
func (c *coordination) commit(deadline uint64, writes []eval.Write) (ids.Revision, error) {
	m := &braidpb.TxnCommit{Txn: txnProto(c.txn), Participants: c.rangeIDs(), Deadline: deadline, AuthRevision: uint64(c.v.AuthRevision)}
	for _, p := range c.parts {
		m.Generations = append(m.Generations, &braidpb.Generation{Generation: p.desc.GetGeneration()})
	}
	for _, w := range writes {
		if w.Lease != 0 && !slices.Contains(m.Leases, int64(w.Lease)) {
			m.Leases = append(m.Leases, int64(w.Lease))
		}
	}
	res, err := c.propose(&braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Commit{Commit: m}})
	switch {
	case err == nil && res.Committed:
		return res.Revision, nil
	case err == nil: // an abort was first
		return 0, errTryAgain
	case errors.Is(err, order.ErrFull): // the commit is not even proposed
		c.abort(deadline)
	case errors.Is(err, order.ErrTxnLease) && !c.w.namesLease():
		return 0, errTryAgain // the lease of a key that keeps it (ignore_lease)
	case errors.Is(err, order.ErrTxnLease):
	case errors.Is(err, order.ErrTxnAborted):
		return 0, errTryAgain
	}
	return 0, err
}

// namesLease tells whether the request itself names a lease.
func (w *write) namesLease() bool {
	if w.txn == nil {
		return w.put.GetLease() != 0
	}
	return txnNamesLease(w.txn)
}

func txnNamesLease(t *pb.TxnRequest) bool {
	for _, ops := range [2][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range ops {
			if op.GetRequestPut().GetLease() != 0 || op.GetRequestTxn() != nil && txnNamesLease(op.GetRequestTxn()) {
				return true
			}
		}
	}
	return false
}

func (c *coordination) rangeIDs() []uint64 {
	out := make([]uint64, len(c.parts))
	for i, p := range c.parts {
		out[i] = uint64(p.id)
	}
	return out
}

// unlock gives locks back; who does not hear of it lets them lapse.
func (c *coordination) unlock() {
	for _, p := range c.parts {
		if p.lock == nil {
			continue
		}
		req := &ranges.Request{
			Unlock: &braidpb.UnlockRequest{Txn: txnProto(c.txn), Token: p.lock.GetToken()},
			Done:   func(*ranges.Response) {},
		}
		c.address(c.v, p.desc, req)
		c.s.b.Submit(p.id, req)
	}
}

// abort has the order log decide against the transaction, for which no commit was proposed, and gives back what is still locked.
func (c *coordination) abort(deadline uint64) {
	cmd := &braidpb.TxnAbort{Txn: txnProto(c.txn), Participants: c.rangeIDs(), Deadline: deadline}
	c.s.b.Propose(&braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Abort{Abort: cmd}}, 0, nil)
	c.unlock()
}

func txnProto(t ids.TxnID) *braidpb.TxnID {
	return &braidpb.TxnID{Node: uint64(t.Node), Incarnation: t.Incarnation, Counter: t.Counter}
}

// lockedView is what a transaction has locked, for evaluation; the past is read from the engine.
type lockedView struct {
	view
	kvs []*mvccpb.KeyValue // ascending keys
}

func (v *lockedView) search(key []byte) int {
	return sort.Search(len(v.kvs), func(i int) bool { return bytes.Compare(v.kvs[i].Key, key) >= 0 })
}

func (v *lockedView) Get(key []byte) (eval.Value, error) {
	if i := v.search(key); i < len(v.kvs) && bytes.Equal(v.kvs[i].Key, key) {
		return eval.Value{KV: v.kvs[i]}, nil
	}
	return eval.Value{}, nil
}

func (v *lockedView) Scan(start, end []byte, visit func(*mvccpb.KeyValue) (bool, error)) error {
	for i := v.search(start); i < len(v.kvs) && (len(end) == 0 || bytes.Compare(v.kvs[i].Key, end) < 0); i++ {
		if more, err := visit(v.kvs[i]); err != nil || !more {
			return err
		}
	}
	return nil
}
