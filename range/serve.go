package ranges

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/range/latch"
)

// handleRequest takes a request in.
func (r *Replica) handleRequest(q *Request) {
	p := &pending{req: q, arrived: r.now, deadline: r.now + q.TimeoutTicks}
	if q.TimeoutTicks <= 0 {
		p.deadline = r.now + r.cfg.Timing.RequestTicks
	}
	r.leader.live.add(p)
	if code := r.admit(p); code != CodeOK {
		r.answer(p, &Response{Code: code, Leader: r.role.Leader})
		return
	}
	switch {
	case q.Unlock != nil:
		r.unlock(p)
	case q.Prepare != nil:
		r.handlePrepare(p)
	case q.Lock != nil && r.leader.locks[txnID(q.Lock.Txn)] != nil: // asked again: the answer got lost
		r.dropLock(r.leader.locks[txnID(q.Lock.Txn)])
		r.begin(p)
	case !r.leader.ready:
		p.state = stateNotReady
		r.leader.notReady.PushBack(p)
	default:
		r.begin(p)
	}
	r.runGranted()
}

// admit says whether a request may come in.
func (r *Replica) admit(p *pending) Code {
	q := p.req
	switch {
	case !r.role.IsLeader:
		return CodeNotLeader
	case q.Unlock != nil:
		return CodeOK
	case q.Generation != r.gen:
		return CodeGeneration
	case q.AuthRevision < r.host.OrderView().AuthRevision:
		return CodeAuthRevision
	case q.Prepare == nil && (r.leader.live.n > r.cfg.Limits.MaxWaiting || r.window.bytes > r.cfg.Limits.MaxUnorderedBytes):
		return CodeOverloaded
	}
	return CodeOK
}

// begin takes a request's latches. A request that is begun again starts here.
func (r *Replica) begin(p *pending) {
	l := &r.leader
	if l.dropping {
		r.retryLater(p)
		return
	}
	req := spansOf(p.req)
	p.kind = req.Kind
	id, granted := l.latches.Acquire(req)
	p.latch = id
	l.holders[id] = p
	if granted {
		r.run(p)
	} else {
		p.state = stateLatching
	}
}

// release gives latches up; who gets them is run soon.
func (r *Replica) release(id latch.ID) {
	if id == 0 {
		return
	}
	delete(r.leader.holders, id)
	r.grant(r.leader.latches.Release(id))
}

func (r *Replica) grant(ids []latch.ID) {
	for _, id := range ids {
		r.leader.granted.PushBack(id)
	}
}

func (r *Replica) releaseOf(p *pending) {
	id := p.latch
	p.latch = 0
	r.release(id)
}

// runGranted runs the requests that have got their latches.
func (r *Replica) runGranted() {
	for r.leader.granted.Len() > 0 {
		id := r.leader.granted.PopFront()
		if p := r.leader.holders[id]; p != nil && p.state == stateLatching {
			r.run(p)
		}
	}
}

// run evaluates a request that has its latches.
func (r *Replica) run(p *pending) {
	if r.leader.dropping {
		r.releaseOf(p)
		r.retryLater(p)
		return
	}
	if p.req.Lock != nil {
		r.grantLock(p)
		return
	}
	if !r.fits(p) {
		r.proposeBuilt()
		if r.leader.dropping {
			r.releaseOf(p)
			r.retryLater(p)
			return
		}
	}
	out, err := r.evaluate(p)
	if err != nil {
		r.fail("evaluating a request", err)
		return
	}
	switch out {
	case outcomeWrite:
		r.number(p)
	case outcomeTooLarge:
		r.releaseOf(p)
		r.answer(p, &Response{Code: CodeTooLarge})
	case outcomeWait:
		r.waitLater(p, stateOrdered)
	case outcomeNothing:
		r.releaseOf(p)
		if p.after == 0 {
			r.answer(p, &Response{Code: CodeReadInstead})
			return
		}
		r.waitLater(p, stateRead)
	}
}

// waitLater has a request wait until everything numbered so far is applied.
func (r *Replica) waitLater(p *pending, s pendingState) {
	p.state, p.after = s, r.nextSeq()-1
	r.leader.later.PushBack(p)
	r.orderedThrough()
}

func (r *Replica) retryLater(p *pending) {
	p.state = stateRetry
	r.leader.retry.PushBack(p)
}

// orderedThrough goes on with what waited for the order.
func (r *Replica) orderedThrough() {
	l := &r.leader
	for l.later.Len() > 0 && (*l.later.At(0)).after <= r.cursor.seq {
		p := l.later.PopFront()
		switch {
		case p.answered:
		case p.state == stateRead:
			r.answer(p, &Response{Code: CodeReadInstead})
		case p.state == stateOrdered:
			p.state = stateLatching
			l.granted.PushBack(p.latch)
		}
	}
}

// answer answers a request, once.
func (r *Replica) answer(p *pending, resp *Response) {
	if p.answered {
		return
	}
	p.answered = true
	r.leader.live.remove(p)
	if p.req.Done != nil {
		p.req.Done(resp)
	}
}

// applied answers a request whose write was applied.
func (r *Replica) applied(p *pending, rev ids.Revision) {
	r.releaseOf(p)
	if p.answered {
		return
	}
	p.result.SetRevision(rev)
	r.answer(p, &Response{Code: CodeOK, Revision: rev, Put: p.result.Put, Delete: p.result.Delete, Txn: p.result.Txn})
}

// voided goes on with a request whose write the order log has refused.
func (r *Replica) voided(p *pending, why braidpb.VoidReason) {
	held := p.latch != 0
	r.releaseOf(p)
	switch {
	case why == braidpb.VoidReason_VOID_GENERATION:
		r.answer(p, &Response{Code: CodeGeneration})
	case why == braidpb.VoidReason_VOID_AUTH:
		r.answer(p, &Response{Code: CodeAuthRevision})
	case namesLease(p.req):
		r.answer(p, &Response{Code: CodeLeaseNotFound})
	case !held || p.answered: // no longer ours to evaluate
		r.answer(p, &Response{Code: CodeNotLeader, Leader: r.role.Leader})
	default: // ignore_lease: evaluated again without the lease
		p.result = eval.Result{}
		r.begin(p)
	}
}

// namesLease tells whether a request itself attaches a lease, other than by ignore_lease.
func namesLease(q *Request) bool {
	if q.Put != nil {
		return q.Put.Lease != 0
	}
	return q.Txn != nil && txnNamesLease(q.Txn)
}

func txnNamesLease(t *pb.TxnRequest) bool {
	for _, ops := range [2][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range ops {
			if op.GetRequestPut().GetLease() != 0 {
				return true
			}
			if n := op.GetRequestTxn(); n != nil && txnNamesLease(n) {
				return true
			}
		}
	}
	return false
}

// tickRequests answers what has waited too long, and tries again what was dropped.
func (r *Replica) tickRequests() {
	l := &r.leader
	l.dropping = false
	r.expireLocks()
	expired := false
	for p := l.live.first; p != nil; {
		next := p.next
		if p.deadline <= r.now || p.state == stateNotReady && r.now-p.arrived >= r.cfg.Timing.NotReadyTicks {
			expired = true
			r.expire(p)
		}
		p = next
	}
	if expired {
		for _, d := range []*deque[*pending]{&l.notReady, &l.later} {
			for n := d.Len(); n > 0; n-- {
				if p := d.PopFront(); !p.answered {
					d.PushBack(p)
				}
			}
		}
	}
	for n := l.retry.Len(); n > 0; n-- {
		if p := l.retry.PopFront(); !p.answered {
			r.begin(p)
		}
	}
	r.runGranted()
}

// expire answers a request whose time is over. What is proposed may still be done (O6), and keeps its latches.
func (r *Replica) expire(p *pending) {
	switch {
	case p.state == stateProposed:
		r.answer(p, &Response{Code: CodeAmbiguous})
		return
	case p.deadline <= r.now:
		r.answer(p, &Response{Code: CodeTimeout})
	default:
		r.answer(p, &Response{Code: CodeNotLeader, Leader: r.role.Leader})
	}
	r.releaseOf(p)
}
