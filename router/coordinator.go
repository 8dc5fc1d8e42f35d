package router

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
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
	asked         bool // for its lock, and it may have given it
	lock          *braidpb.LockResponse
	ops           []*braidpb.WriteOp
}

// coordination is one attempt at a transaction over several ranges (or one that reads the past of another range than it writes).
//
//	lock       the participants in ascending order, so that nobody waits in a circle; they say what is there to be read
//	evaluate   what it writes; if that is nothing, the locks are given back and it is answered as a read
//	prepare    every participant logs its part, those that were only read too: it is what makes their locks outlive a leader
//	commit     in the order log, which decides
//
// Until a commit is proposed, giving up is certain (O6): it leaves nothing behind but locks and prepares, which unlock, abort or time-outs
// release, and nobody else proposes the commit. From then on what is not known is ambiguous. Every attempt has a transaction ID of its own.
type coordination struct {
	*call
	v     *order.View
	w     *write
	txn   ids.TxnID
	parts []*participant     // ascending range ID
	kvs   []*mvccpb.KeyValue // what is locked for reading, ascending
}

// coordinate carries a request out over several ranges. errTryAgain and errReadInstead say that it is certainly not done.
func (k *call) coordinate(v *order.View, w *write, descs []*braidpb.RangeDescriptor) (eval.Result, error) {
	c := &coordination{call: k, v: v, w: w, txn: k.s.b.NewTxnID(), parts: participants(w, descs)}
	if code, err := c.lock(); code != ranges.CodeOK || err != nil {
		c.unlock() // before there is any waiting
		if err == nil {
			err = c.settle(c.v, code)
		}
		return eval.Result{}, err
	}
	res, err := c.evaluate()
	if err == nil && (res.Err != nil || len(res.Writes) == 0) {
		err = errReadInstead
	}
	if err != nil {
		c.unlock()
		return eval.Result{}, err
	}
	c.distribute(res.Writes)
	deadline := uint64(c.s.b.View().Position) + deadlinePositions
	err = c.prepare(deadline)
	if err == nil {
		err = c.over() // the client may have left
	}
	if err != nil {
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

// lock takes the participants' locks one after the other. If there is no error and the code is not OK, it is that of
// the one who refused.
func (c *coordination) lock() (ranges.Code, error) {
	for _, p := range c.parts {
		p.asked = true
		req := &ranges.Request{Lock: &braidpb.LockRequest{Txn: order.TxnIDProto(c.txn), Reads: p.reads, Writes: p.writes}}
		resp, err := c.ask(c.v, p.desc, req)
		switch {
		case err != nil:
			return 0, err
		case resp.Code == ranges.CodeAmbiguous || resp.Code == ranges.CodeReadInstead:
			return 0, errTryAgain // a lock changes nothing, so it is no matter whether it was given
		case resp.Code != ranges.CodeOK:
			p.asked = false
			return resp.Code, nil
		}
		p.lock = resp.Lock
		for _, b := range p.lock.GetKvs() {
			kv := &mvccpb.KeyValue{}
			if err := proto.Unmarshal(b, kv); err != nil {
				return 0, fmt.Errorf("router: range %d sent a malformed key: %w", p.id, err)
			}
			c.kvs = append(c.kvs, kv)
		}
	}
	slices.SortFunc(c.kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return ranges.CodeOK, nil
}

// evaluate evaluates the request on what is locked, and on the past as far as it asks for that.
func (c *coordination) evaluate() (eval.Result, error) {
	var past []span
	if c.w.txn != nil {
		past = pastReads(c.w.txn)
	}
	lv := &lockedView{kvs: c.kvs, view: view{r: c.s.b.Reader()}}
	if len(past) > 0 {
		rev, err := c.linearizable(past)
		if err != nil {
			return eval.Result{}, err
		}
		lv.rev = rev
	}
	lv.compacted = c.s.b.View().CompactRevision
	res := c.w.evaluate(lv)
	if len(past) > 0 {
		if compacted, err := c.compacted(past); err != nil {
			return eval.Result{}, err
		} else if compacted != lv.compacted {
			return eval.Result{}, errTryAgain // what was read of the past may have been removed meanwhile
		}
	}
	for _, w := range res.Writes {
		if w.PrevKV != nil {
			x, _ := lv.Get(w.Key, true)
			w.PrevKV(x.KV)
		}
	}
	return res, nil
}

// distribute gives every write to the participant that has its key.
func (c *coordination) distribute(writes []eval.Write) {
	for i := range writes {
		w := &writes[i]
		for _, p := range c.parts {
			if mvcc.Contains(p.desc.GetStart(), p.desc.GetEnd(), w.Key) {
				p.ops = append(p.ops, &braidpb.WriteOp{Key: w.Key, Value: w.Value, Lease: int64(w.Lease), Delete: w.Delete, Sub: uint64(w.Sub)})
				break
			}
		}
	}
}

// prepare has all participants log their parts, at once, and waits until all are known committed, or one is not. On an error nothing
// was committed in the order log, nor will be.
func (c *coordination) prepare(deadline uint64) error {
	all := c.rangeIDs()
	var votes votes
	err := c.wait(func(done func()) {
		votes.left, votes.done = len(c.parts), done
		for _, p := range c.parts {
			req := &ranges.Request{Prepare: &braidpb.PrepareRequest{
				Txn: order.TxnIDProto(c.txn), Token: p.lock.GetToken(), Term: p.lock.GetTerm(), Deadline: deadline, Participants: all, Writes: p.ops,
			}}
			c.address(c.v, p.desc, req)
			req.Done = votes.add
			c.s.b.Submit(p.id, req)
		}
	})
	if err != nil {
		return err
	}
	switch code := votes.refusal(); code {
	case ranges.CodeOK:
		return nil
	case ranges.CodeAmbiguous, ranges.CodeTimeout, ranges.CodeReadInstead:
		return errTryAgain // whether it is prepared does not matter: it will be aborted
	default:
		return outcome(code)
	}
}

// votes are the participants' answers to Prepare. They come from anywhere, also when nobody waits for them any more.
type votes struct {
	mu   sync.Mutex
	left int
	code ranges.Code // the first refusal
	done func()      // nil when called
}

func (v *votes) add(r *ranges.Response) {
	v.mu.Lock()
	v.left--
	if v.code == ranges.CodeOK {
		v.code = r.Code
	}
	var done func()
	if v.left == 0 || v.code != ranges.CodeOK { // one refusal is enough
		done, v.done = v.done, nil
	}
	v.mu.Unlock()
	if done != nil {
		done()
	}
}

func (v *votes) refusal() ranges.Code {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.code
}

// commit proposes the decision and waits for the one that wins.
func (c *coordination) commit(deadline uint64, writes []eval.Write) (ids.Revision, error) {
	m := &braidpb.TxnCommit{Txn: order.TxnIDProto(c.txn), Participants: c.rangeIDs(), Deadline: deadline, AuthRevision: uint64(c.v.AuthRevision)}
	for _, p := range c.parts {
		m.Generations = append(m.Generations, &braidpb.Generation{Generation: p.desc.GetGeneration()})
	}
	for i := range writes {
		if l := int64(writes[i].Lease); l != 0 && !slices.Contains(m.Leases, l) {
			m.Leases = append(m.Leases, l)
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
	case errors.Is(err, order.ErrTxnLease) && c.w.namesLease():
		// It may be the one that the request names. (One of a key that keeps its lease is no error.)
	case errors.Is(err, order.ErrTxnAborted):
		return 0, errTryAgain
	}
	return 0, err
}

// namesLease tells whether the request itself names a lease.
func (w *write) namesLease() bool {
	return w.put.GetLease() != 0 || w.txn != nil && txnNamesLease(w.txn)
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

// unlock gives locks back, also one that was asked for and not answered; who does not hear of it lets them lapse.
func (c *coordination) unlock() {
	for _, p := range c.parts {
		if !p.asked {
			continue
		}
		req := &ranges.Request{
			Unlock: &braidpb.UnlockRequest{Txn: order.TxnIDProto(c.txn), Token: p.lock.GetToken()}, // token 0: whatever it is
			Done:   func(*ranges.Response) {},
		}
		c.address(c.v, p.desc, req)
		c.s.b.Submit(p.id, req)
	}
}

// abort has the order log decide against the transaction, for which no commit was proposed, and gives back what is still locked. If the abort
// is lost, participants that have waited long enough propose their own.
func (c *coordination) abort(deadline uint64) {
	cmd := &braidpb.TxnAbort{Txn: order.TxnIDProto(c.txn), Participants: c.rangeIDs(), Deadline: deadline}
	c.s.b.Propose(&braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Abort{Abort: cmd}}, 0, nil)
	c.unlock()
}

// lockedView is what a transaction has locked, for evaluation; the past is read from the engine.
type lockedView struct {
	view
	kvs []*mvccpb.KeyValue // ascending keys
}

func (v *lockedView) search(key []byte) int {
	return sort.Search(len(v.kvs), func(i int) bool { return bytes.Compare(v.kvs[i].Key, key) >= 0 })
}

func (v *lockedView) Get(key []byte, _ bool) (eval.Value, error) {
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
