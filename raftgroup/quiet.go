package raftgroup

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
)

// quietState is a group's way into and out of silence.
//
// A leader with nothing to do for QuiesceTicks, whose followers all have its whole log, all of it committed, and have
// answered within the last quorum check, tells them so and stops ticking. A follower that finds the
// same stops too. From then on it trusts the leader's node for as long as the transport says that the process it knows
// is there: a lost connection or another incarnation wakes it, and its election time-out starts to run. What wakes a
// leader is a proposal, a read, any message but a late heartbeat answer, or a change of a follower's connection; it pings its
// followers at once, before its next quorum check can count.
//
// A follower that cannot fall silent says so, which wakes the leader; one that has not got the word soon asks for votes, which
// wakes it too. While a follower's node is down, its groups stay awake.
type quietState struct {
	active   bool // there was work since the last tick
	idle     int  // ticks without
	quiesced bool

	heard     *quiesce // a leader's word, to be judged at the end of the pass
	heardFrom ids.NodeID

	trusted     ids.NodeID // while quiesced as a follower
	incarnation uint64
}

// tickQuiet counts idle ticks and falls silent when it may. It must come before Raft's tick: a heartbeat behind the last
// word would wake the followers.
func (g *Group) tickQuiet() (silent bool) {
	q := &g.quiet
	if q.active {
		q.active, q.idle = false, min(q.idle, 0)
		return false
	}
	q.idle++
	if q.idle < g.s.cfg.QuiesceTicks || !g.mayQuiesce() {
		return false
	}
	last := g.lastIndex()
	term, err := g.log.Term(last)
	if err != nil {
		return false
	}
	word := quiesce{from: g.replica, term: g.term, index: last, logTerm: term, incarnation: g.s.cfg.Incarnation}
	g.Progress(func(f FollowerStatus) {
		word.to = uint64(f.Replica)
		g.sendLetter(f.Node, encodeQuiesce(word))
	})
	g.fallSilent()
	return true
}

// mayQuiesce tells whether a leader and all its followers are at rest.
func (g *Group) mayQuiesce() bool {
	if g.idler == nil || g.state != raft.StateLeader || g.transferee != 0 || g.drain.on || g.restore != nil {
		return false
	}
	cs, _ := g.log.Conf()
	if !g.atRest() || len(cs.GetVotersOutgoing()) > 0 || !g.idler.Idle() {
		return false
	}
	ok, last := true, ids.Index(g.lastIndex())
	g.Progress(func(f FollowerStatus) {
		st, known := g.s.peer(f.Node)
		ok = ok && known && st.up && f.Active && f.State == stateReplicate && f.Match == last
	})
	return ok
}

// atRest tells that the whole log is durable here, committed and delivered.
func (g *Group) atRest() bool {
	last := g.lastIndex()
	return last == g.committed && last == g.delivered && g.log.Outstanding() == 0
}

// hearQuiesce notes a leader's word if it is about our log and leader, and contradicts otherwise.
func (g *Group) hearQuiesce(from ids.NodeID, q *quiesce) {
	if q.index == 0 {
		g.hearRefusal(q)
		return
	}
	if !g.takesWord(q) {
		g.refuseQuiesce(from, q)
		return
	}
	beat := &wireMessage{typ: raftpb.MsgHeartbeat, to: g.replica, from: q.from, term: q.term, commit: q.index}
	if err := g.rn.Step(beat.link()); err != nil {
		return
	}
	g.quiet.heard, g.quiet.heardFrom = q, from
}

func (g *Group) takesWord(q *quiesce) bool {
	if g.idler == nil || g.restore != nil || g.state != raft.StateFollower || q.term != g.term || q.from != g.lead {
		return false
	}
	for g.rn.HasReady() {
		g.ready()
	}
	term, err := g.log.Term(q.index)
	return g.lastIndex() == q.index && err == nil && term == q.logTerm
}

// refuseQuiesce answers a leader's word with one that has no index.
func (g *Group) refuseQuiesce(to ids.NodeID, q *quiesce) {
	g.sendLetter(to, encodeQuiesce(quiesce{to: q.from, from: g.replica, term: q.term}))
}

// hearRefusal wakes a leader; what keeps the follower awake may last.
func (g *Group) hearRefusal(q *quiesce) {
	if g.state == raft.StateLeader && g.term == q.term {
		g.wake()
		g.quiet.idle = -10 * g.s.cfg.QuiesceTicks
	}
}

// settleQuiet follows a leader into silence at the end of the pass, and lets an idle machine's ticks stop.
func (g *Group) settleQuiet() {
	q := &g.quiet
	if h := q.heard; h != nil {
		q.heard = nil
		st, known := g.s.peer(q.heardFrom)
		if known && st.up && st.incarnation == h.incarnation && !g.drain.on &&
			g.state == raft.StateFollower && g.term == h.term && g.lead == h.from && g.atRest() && g.lastIndex() == h.index {
			q.trusted, q.incarnation = q.heardFrom, h.incarnation
			g.fallSilent()
		} else {
			g.refuseQuiesce(q.heardFrom, h)
		}
	}
	if q.quiesced {
		g.skipTick.Store(g.idler.Idle())
	}
}

func (g *Group) fallSilent() {
	g.quiet.idle = 0
	if g.quiet.quiesced {
		return // a follower whose leader has spoken twice
	}
	g.quiet.quiesced = true
	g.s.counters.Quiesced.Add(1)
}

// wake ends the silence.
func (g *Group) wake() {
	if !g.quiet.quiesced {
		return
	}
	g.quiet.quiesced, g.quiet.trusted = false, 0
	g.skipTick.Store(false)
	g.s.counters.Woken.Add(1)
	if g.state == raft.StateLeader {
		// Messages of Raft to itself must name one of its threads as sender.
		beat := &raftpb.Message{Type: raftpb.MsgBeat.Enum(), From: new(raft.LocalAppendThread)}
		if err := g.rn.Step(beat); err != nil {
			g.logger.Error("raft refuses its own message", "type", "MsgBeat", "err", err)
		}
	}
}

// peerChanged reacts to a change of the connection to a node.
func (g *Group) peerChanged(node ids.NodeID, st peerState) {
	if g.dead {
		return
	}
	if g.quiet.quiesced && g.state != raft.StateLeader {
		if node == g.quiet.trusted && (!st.up || st.incarnation != g.quiet.incarnation) {
			g.wake()
		}
		return
	}
	var lost []uint64
	affected := false
	g.Progress(func(f FollowerStatus) {
		if f.Node == node {
			affected = true
			if !st.up {
				lost = append(lost, uint64(f.Replica))
			}
		}
	})
	if affected {
		g.wake()
	}
	for _, id := range lost {
		g.rn.ReportUnreachable(id)
	}
}
