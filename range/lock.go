package ranges

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/range/latch"
)

// lock is the latches of a transaction over several ranges between its Lock and its Prepare. It is bound to this leader's term, ends
// with its time-out, and is used up when the Prepare is proposed.
type lock struct {
	txn     ids.TxnID
	token   uint64
	term    ids.Term
	latch   latch.ID
	expires int // tick
	req     *braidpb.LockRequest
}

// lockRequest is what a lock latches. It waits until nothing is unordered in what it reads.
func lockRequest(m *braidpb.LockRequest) latch.Request {
	return latch.Request{Reads: latchSpans(m.GetReads()), Writes: latchSpans(m.GetWrites()), Kind: latch.Lock}
}

func latchSpans(in []*braidpb.Span) []latch.Span {
	var out []latch.Span
	for _, s := range in {
		x := latch.Span{Start: s.Start, End: s.End}
		switch {
		case s.ToEnd:
			x.End = []byte{}
		case len(s.End) == 0:
			x.End = nil
		}
		out = append(out, x)
	}
	return out
}

// grantLock turns a request that has its latches into a lock, and answers what is there to be read.
func (r *Replica) grantLock(p *pending) {
	kvs, fit, err := r.readLocked(p.req.Lock.Reads)
	switch {
	case err != nil:
		r.fail("reading for a lock", err)
		return
	case !fit:
		r.releaseOf(p)
		r.answer(p, &Response{Code: CodeTooLarge})
		return
	}
	l := &r.leader
	l.tokens++
	k := &lock{
		txn: txnID(p.req.Lock.Txn), token: l.tokens, term: r.role.Term, latch: p.latch,
		expires: r.now + r.cfg.Timing.LockTicks, req: p.req.Lock,
	}
	delete(l.holders, p.latch)
	p.latch = 0
	l.locks[k.txn] = k
	l.lockList = append(l.lockList, k)
	r.answer(p, &Response{Code: CodeOK, Lock: &braidpb.LockResponse{Token: k.token, Term: uint64(k.term), Kvs: kvs}})
}

// readLocked reads all keys in the spans, ascending, none twice. It tells whether they fit into an answer.
func (r *Replica) readLocked(spans []*braidpb.Span) (kvs [][]byte, fit bool, err error) {
	size := 0
	for _, s := range union(spans) {
		it, err := mvcc.NewIterator(r.host.Data(), s.Start, s.End, mvcc.Latest)
		if err != nil {
			return nil, false, err
		}
		for ok := it.First(); ok && size <= r.cfg.Limits.MaxLockBytes; ok = it.Next() {
			kv, err := it.KeyValue(false)
			var b []byte
			if err == nil {
				b, err = proto.Marshal(kv)
			}
			if err != nil {
				_ = it.Close()
				return nil, false, err
			}
			kvs = append(kvs, b)
			size += len(b)
		}
		if err := it.Close(); err != nil {
			return nil, false, err
		}
	}
	return kvs, size <= r.cfg.Limits.MaxLockBytes, nil
}

// union makes disjoint, ascending spans of spans; an empty end is the end of the key space.
func union(in []*braidpb.Span) []latch.Span {
	var all []latch.Span
	for _, s := range latchSpans(in) {
		if s.Point() {
			s.End = append(slices.Clone(s.Start), 0)
		}
		if len(s.End) == 0 || bytes.Compare(s.Start, s.End) < 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b latch.Span) int { return bytes.Compare(a.Start, b.Start) })
	var out []latch.Span
	for _, s := range all {
		if n := len(out); n > 0 && (len(out[n-1].End) == 0 || bytes.Compare(s.Start, out[n-1].End) <= 0) {
			if last := &out[n-1]; len(last.End) > 0 && (len(s.End) == 0 || bytes.Compare(s.End, last.End) > 0) {
				last.End = s.End
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// unlock gives a lock up, also one that is still waiting for its latches.
func (r *Replica) unlock(p *pending) {
	t := txnID(p.req.Unlock.Txn)
	if k := r.leader.locks[t]; k != nil && (k.token == p.req.Unlock.Token || p.req.Unlock.Token == 0) {
		r.dropLock(k)
	}
	for q := r.leader.live.first; q != nil; {
		next := q.next
		if q.req.Lock != nil && txnID(q.req.Lock.Txn) == t {
			r.answer(q, &Response{Code: CodeTimeout})
			r.releaseOf(q)
		}
		q = next
	}
	r.answer(p, &Response{Code: CodeOK})
}

// dropLock lets a lock lapse.
func (r *Replica) dropLock(k *lock) {
	r.removeLock(k)
	r.release(k.latch)
}

func (r *Replica) removeLock(k *lock) {
	delete(r.leader.locks, k.txn)
	r.leader.lockList = slices.DeleteFunc(r.leader.lockList, func(o *lock) bool { return o == k })
}

func (r *Replica) expireLocks() {
	for len(r.leader.lockList) > 0 && r.leader.lockList[0].expires <= r.now {
		r.dropLock(r.leader.lockList[0])
	}
}

// handlePrepare logs a Prepare under its lock. The answer comes when it is committed.
func (r *Replica) handlePrepare(p *pending) {
	m := p.req.Prepare
	t := txnID(m.Txn)
	k := r.leader.locks[t]
	if k != nil && (k.token != m.Token || k.term != ids.Term(m.Term)) {
		k = nil
	}
	switch x := r.txns.get(t); {
	case x != nil && x.decided:
		if k != nil {
			r.dropLock(k)
		}
		r.answer(p, &Response{Code: CodeTokenLapsed})
	case x != nil && x.prep != nil: // asked again
		r.answer(p, &Response{Code: CodeOK})
	case x != nil && x.proposed == r.role.Term:
		p.state = stateProposed
		x.waiters = append(x.waiters, p)
	case k == nil && !(r.cfg.Mutation.PrepareWithoutToken && r.leader.ready):
		r.answer(p, &Response{Code: CodeTokenLapsed})
	default:
		r.proposePrepare(p, t, k)
	}
}

// proposePrepare uses the lock up in the same call that appends the Prepare.
func (r *Replica) proposePrepare(p *pending, t ids.TxnID, k *lock) {
	locked := &braidpb.LockRequest{}
	if k != nil {
		locked = k.req
	}
	b, err := encodePrepare(stamp{term: r.role.Term, gen: p.req.Generation}, p.req.Prepare, locked)
	if err != nil {
		r.fail("encoding a prepare", err)
		return
	}
	code := CodeOK
	if len(b) > r.cfg.Limits.MaxTxnBytes {
		code = CodeTooLarge
	} else if r.host.Propose(b) != nil {
		code = CodeTokenLapsed
	}
	if code != CodeOK {
		if k != nil {
			r.dropLock(k)
		}
		r.answer(p, &Response{Code: code})
		return
	}
	x := r.txns.obtain(t)
	r.txns.propose(x, r.role.Term)
	x.waiters = append(x.waiters, p)
	p.state = stateProposed
	if k != nil {
		r.removeLock(k)
		x.latch = k.latch
	}
}
