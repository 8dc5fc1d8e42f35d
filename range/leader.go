package ranges

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/range/latch"
)

// leader is what a replica has in addition while it leads. Requests which are proposed when leadership is lost stay in their slots; all
// else is forgotten.
type leader struct {
	// own is the first delivered entry of our term, zero before it is delivered; or, if readiness was lost since, the end of
	// the log then. ready is set once the ordered cursor is at or past it (O5).
	own   ids.Index
	ready bool
	// reporting: what is delivered is reported to the order leader at once.
	reporting bool
	// dropping: a proposal was dropped. Nothing is proposed before the next tick.
	dropping bool

	latches *latch.Set
	holders map[latch.ID]*pending // requests which wait for latches, or hold them
	granted deque[latch.ID]       // to be run
	overlay overlay
	built   builder

	live     pendings        // all that are not answered, by arrival
	notReady deque[*pending] // wait for ready
	later    deque[*pending] // wait for all that was numbered when they were evaluated; ascending p.after
	retry    deque[*pending] // wait for the next tick
	locks    map[ids.TxnID]*lock
	lockList []*lock // by time of grant
	tokens   uint64
}

func (l *leader) reset() {
	live, tokens, reporting := l.live, l.tokens, l.reporting
	*l = leader{latches: latch.New(), holders: map[latch.ID]*pending{}, overlay: newOverlay(), locks: map[ids.TxnID]*lock{}, live: live, tokens: tokens, reporting: reporting}
}

// idle tells that no request waits and no lock is held.
func (l *leader) idle() bool { return l.live.n == 0 && len(l.lockList) == 0 }

// pending is a request on its way.
type pending struct {
	req      *Request
	state    pendingState
	answered bool
	deadline int // tick
	arrived  int // tick
	latch    latch.ID
	kind     latch.Kind
	after    ids.Seq // in later: goes on when this is applied
	result   eval.Result

	// one and many are the writes in the overlay, once the request has a seq.
	one  [1]unordered
	many []unordered

	prev, next *pending // in pendings
}

// pendingState is where a request stands.
type pendingState uint8

const (
	stateNew pendingState = iota
	stateNotReady
	stateLatching // waits for latches
	stateOrdered  // holds latches, waits in later to be evaluated again
	stateRead     // holds none, waits in later to be answered "read instead"
	stateRetry
	stateProposed // has a seq, or its Prepare is proposed: can no longer be called off
)

// pendings is a list of requests that are not answered.
type pendings struct {
	first, last *pending
	n           int
}

func (l *pendings) add(p *pending) {
	p.prev, l.last = l.last, p
	if p.prev != nil {
		p.prev.next = p
	} else {
		l.first = p
	}
	l.n++
}

func (l *pendings) remove(p *pending) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	p.prev, p.next = nil, nil
	l.n--
}

// Role tells of a change of leadership or term, before entries of it are delivered and events handled in it.
func (r *Replica) Role(role Role) {
	was := r.role
	r.role = role
	if r.failed {
		return
	}
	if role.Leader != 0 {
		r.policy.ledOnce = true
	}
	if was.IsLeader == role.IsLeader && was.Term == role.Term {
		return
	}
	if was.IsLeader {
		invariant.Check(r.leader.built.n == 0, "R2", "range %d: %d requests are numbered and not proposed as the role changes", r.id, r.leader.built.n)
		r.resign()
	}
	if role.IsLeader {
		r.host.ProgressReset(r.id)
		r.policy.apart, r.policy.lost = 0, 0
		for _, x := range r.txns.list {
			x.since = r.now
		}
		r.startReporting()
	}
}

// resign gives up what only a leader has. What is not proposed is certainly not done.
func (r *Replica) resign() {
	r.host.ProgressReset(r.id)
	r.leader.reporting = false
	r.forgetLatches()
	for p := r.leader.live.first; p != nil; {
		next := p.next
		if p.state != stateProposed || r.cfg.Mutation.CertainTooEarly {
			r.answer(p, &Response{Code: CodeNotLeader, Leader: r.role.Leader})
		}
		p = next
	}
	r.leader.reset()
}

// forgetLatches cuts everything loose that hangs on latches and overlay.
func (r *Replica) forgetLatches() {
	for i := range r.window.slots.Len() {
		if p := r.window.slots.At(i).p; p != nil {
			p.latch, p.one[0], p.many = 0, unordered{}, nil
		}
	}
	for _, x := range r.txns.list {
		x.latch = 0
	}
}

// unready takes readiness back, in office: the state misses items. Locks lapse; what waits is kept; what is in flight stays, and
// the leader becomes ready again when all of it is applied.
func (r *Replica) unready() {
	r.proposeBuilt()
	r.forgetLatches()
	led := r.leader.own != 0
	r.leader.reset()
	if led {
		r.leader.own = r.host.LastIndex()
	}
	for p := r.leader.live.first; p != nil; p = p.next {
		if p.state != stateProposed {
			p.latch, p.state = 0, stateNotReady
			r.leader.notReady.PushBack(p)
		}
	}
}

// becomeReady lets a leader evaluate once it has applied, in order, everything up to an entry of its own term (O5).
func (r *Replica) becomeReady() {
	l := &r.leader
	if l.ready || !r.role.IsLeader || l.own == 0 || r.stalled() {
		return
	}
	if r.cursor.index < l.own && !r.cfg.Mutation.NoO5 {
		return
	}
	invariant.Check(r.window.slots.Len() == 0 || r.cfg.Mutation.NoO5, "O5", "range %d: ready with %d seqs that are not applied", r.id, r.window.slots.Len())
	l.ready = true
	if !r.cfg.Mutation.NoRelatch {
		for _, x := range r.txns.list {
			if x.prep != nil && !x.decided {
				x.latch = l.latches.Inherit(lockedBy(x.prep))
			}
		}
	}
	r.logger.Info("ready to lead", "term", uint64(r.role.Term), "seq", uint64(r.cursor.seq), "waiting", l.notReady.Len())
	for n := l.notReady.Len(); n > 0; n-- {
		if p := l.notReady.PopFront(); !p.answered {
			r.begin(p)
		}
	}
}

// lockedBy is what an inherited Prepare latches: what its lock did, and in any case what it writes.
func lockedBy(p *prepare) latch.Request {
	req := lockRequest(p.locked)
	for _, w := range p.writes {
		req.Reads = append(req.Reads, latch.Span{Start: w.Key})
		req.Writes = append(req.Writes, latch.Span{Start: w.Key})
	}
	return req
}

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
