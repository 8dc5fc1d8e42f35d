package ranges

import (
	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
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
