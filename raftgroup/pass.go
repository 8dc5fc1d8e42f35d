package raftgroup

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	"github.com/braidkv/braid/storage/raftlog"
)

// maxRounds bounds how often a pass goes on with work that it has made for itself before other groups get their turn.
const maxRounds = 8

// A pass over a group has two halves. Between them, what the groups of the worker have appended is handed to the disk, so that the
// fsync for which others wait runs while machines apply what is committed.

// firstHalf takes in what waits and hands out what others wait for.
func (g *Group) firstHalf() {
	in := g.take()
	for i, a := range in.acks {
		g.acknowledge(a)
		in.acks[i] = nil
	}
	for _, f := range in.control {
		f(g)
	}
	for i := range in.messages {
		g.receive(&in.messages[i])
	}
	if g.alone && !g.dead {
		g.alone = false
		g.Campaign()
	}
	g.compareRole()
	if !g.dead {
		if len(in.events) > 0 {
			g.quiet.active = true
			g.machine.Handle(in.events)
		}
		if in.tick {
			g.tick()
		}
		if g.rn.HasReady() {
			g.ready()
		}
	}
	g.giveBack(in)
}

// secondHalf delivers, lets the machine apply, and goes on with what comes of it.
func (g *Group) secondHalf() {
	if !g.dead {
		g.work()
		g.endPass()
	}
}

// take swaps the inbox for an empty one.
func (g *Group) take() inbox {
	g.mu.Lock()
	in := g.in
	g.in, g.spare = g.spare, inbox{}
	g.queued = false
	g.mu.Unlock()
	return in
}

// giveBack keeps the emptied slices for reuse.
func (g *Group) giveBack(in inbox) {
	clear(in.control)
	clear(in.messages)
	clear(in.events)
	in.acks, in.control, in.messages, in.events = in.acks[:0], in.control[:0], in.messages[:0], in.events[:0]
	in.bytes, in.tick = 0, false
	g.mu.Lock()
	g.spare = in
	g.mu.Unlock()
}

// work goes on until there is nothing left to do, or for maxRounds.
func (g *Group) work() {
	for range maxRounds {
		g.deliverAll()
		for range maxRounds {
			if !g.rn.HasReady() {
				break
			}
			g.ready()
			g.deliverAll()
		}
		g.machine.Flush()
		if !g.rn.HasReady() {
			return
		}
	}
	g.mu.Lock()
	g.scheduleLocked()
}

func (g *Group) acknowledge(a *ack) {
	if g.dead {
		return
	}
	g.log.Durable()
	g.stepAll(a.self)
	g.freeAck(a)
}

func (g *Group) freeAck(a *ack) {
	clear(a.out)
	a.self, a.out = nil, a.out[:0]
	if len(g.freeAcks) < maxRounds {
		g.freeAcks = append(g.freeAcks, a)
	}
}

// stepAll steps Raft's messages to itself.
func (g *Group) stepAll(ms []*raftpb.Message) {
	for _, m := range ms {
		switch m.GetType() {
		case raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
			g.suspect = true
		}
		if err := g.rn.Step(m); err != nil && !stepIgnored(err) {
			g.logger.Error("raft refuses its own message", "type", m.GetType().String(), "err", err)
		}
	}
}

// receive steps what another replica has sent.
func (g *Group) receive(in *inMessage) {
	if g.dead {
		return
	}
	if in.quiesce != nil {
		g.hearQuiesce(in.node, in.quiesce)
		return
	}
	m := in.m
	switch m.GetType() {
	case raftpb.MsgHeartbeatResp:
		// Followers answer the last heartbeats after their leader has fallen silent.
		g.heardParting(m.GetFrom(), m.GetTerm())
		g.notes.probing = true
	case raftpb.MsgHeartbeat:
		g.wake()
		if in.note {
			g.quiet.active = true
			g.notes.unspoken++
		}
	default:
		g.wake()
		g.quiet.active = true
	}
	switch m.GetType() {
	case raftpb.MsgSnap:
		g.offered(in.node, m)
		return
	case raftpb.MsgApp:
		if g.restore != nil {
			return // entries stay away until the state is there
		}
	case raftpb.MsgTimeoutNow:
		if g.drain.on {
			return // a node about to stop takes no leadership
		}
	}
	if !g.routine(m) {
		g.suspect = true
	}
	if err := g.rn.Step(m); err != nil && !stepIgnored(err) {
		g.logger.Debug("message not taken", "type", m.GetType().String(), "from", m.GetFrom(), "err", err)
	}
}

// routine tells that a message cannot change the role: it is of the current term and fits the current part.
func (g *Group) routine(m *raftpb.Message) bool {
	if m.GetTerm() != g.term || g.suspect {
		return false
	}
	switch m.GetType() {
	case raftpb.MsgAppResp, raftpb.MsgHeartbeatResp:
		return g.state == raft.StateLeader
	case raftpb.MsgApp, raftpb.MsgHeartbeat:
		return g.state == raft.StateFollower && g.lead == m.GetFrom()
	}
	return false
}

// deliverBirth hands the machine the entry that stands for the group's first configuration. The log does not hold it.
func (g *Group) deliverBirth() {
	g.newborn = false
	cs, index := g.log.Conf()
	g.delivered = raftlog.BirthIndex
	g.machine.Deliver([]Entry{{Index: raftlog.BirthIndex, Term: raftlog.BirthTerm, Conf: confFromRaft(index, cs)}})
}

// compareRole makes sure that the machine knows the role in which it is called next (R2).
func (g *Group) compareRole() {
	if !g.suspect || g.dead {
		return
	}
	g.suspect = false
	st := g.rn.BasicStatus()
	if st.GetTerm() == g.term && st.Lead == g.lead && st.RaftState == g.state {
		return
	}
	g.term, g.lead, g.state = st.GetTerm(), st.Lead, st.RaftState
	if g.newborn {
		g.updateRole()
		g.deliverBirth()
	}
	if g.rn.HasReady() {
		g.ready()
	} else {
		g.updateRole()
	}
}

// ready works off one Ready of Raft. What followers wait for leaves before anything else is done.
func (g *Group) ready() {
	rd := g.rn.Ready()
	g.s.counters.Readies.Add(1)
	g.unready = 0
	if !raft.IsEmptyHardState(rd.HardState) {
		g.term, g.committed = rd.HardState.GetTerm(), rd.HardState.GetCommit()
	}
	if rd.SoftState != nil {
		g.lead, g.state = rd.SoftState.Lead, rd.SoftState.RaftState
	}
	var store *raftpb.Message
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			store = m
		case raft.LocalApplyThread:
			g.applies = append(g.applies, m)
		default:
			g.send(m)
		}
	}
	g.notes = noteState{}
	if store != nil {
		g.store(store, rd.MustSync)
	}
	g.updateRole()
	g.askEarlyReads()
	for _, rs := range rd.ReadStates {
		g.readState(rs)
	}
}

// deliverAll delivers what Raft has handed out as committed. While state is being installed it waits.
func (g *Group) deliverAll() {
	for i := 0; i < len(g.applies) && !g.dead; i++ { // one delivery may cause another
		m := g.applies[i]
		g.applies[i] = nil
		if g.restore != nil {
			g.restore.held = append(g.restore.held, m)
			continue
		}
		g.deliver(m.GetEntries())
		g.stepAll(m.GetResponses())
	}
	g.applies = g.applies[:0]
}

// store hands an append to the log.
func (g *Group) store(m *raftpb.Message, mustSync bool) {
	a := raftlog.Append{Entries: m.GetEntries(), MustSync: mustSync}
	if m.Term != nil {
		a.HardState = &raftlog.HardState{Term: m.GetTerm(), Vote: m.GetVote(), Commit: m.GetCommit()}
	}
	if s := m.GetSnapshot(); s != nil {
		md := s.GetMetadata()
		a.Reset = &raftlog.Reset{Index: md.GetIndex(), Term: md.GetTerm(), Conf: md.GetConfState()}
	}
	k := g.newAck()
	for _, r := range m.GetResponses() {
		if r.GetTo() == g.replica {
			k.self = append(k.self, r)
		} else if node := g.peers(ids.ReplicaID(r.GetTo())); node != 0 {
			k.out = append(k.out, letter{node, encodeMessage(r)})
		}
	}
	a.Done = k
	if !g.log.Append(a) {
		g.s.counters.MessagesSent.Add(uint64(len(k.out)))
		return
	}
	for _, l := range k.out {
		g.sendLetter(l.to, l.body)
	}
	self := k.self
	g.freeAck(k)
	g.stepAll(self)
}

func (g *Group) newAck() *ack {
	if n := len(g.freeAcks); n > 0 {
		a := g.freeAcks[n-1]
		g.freeAcks = g.freeAcks[:n-1]
		return a
	}
	return &ack{g: g}
}

// send sends a message to another replica. Plain heartbeats are merged per node at the end of the pass.
func (g *Group) send(m *raftpb.Message) {
	node := g.peers(ids.ReplicaID(m.GetTo()))
	if node == 0 {
		g.s.counters.MessagesDropped.Add(1)
		return
	}
	switch m.GetType() {
	case raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp:
		if len(m.GetContext()) == 0 {
			kind := byte(beatAsk)
			if m.GetType() == raftpb.MsgHeartbeatResp {
				kind = beatAnswer
				if g.notes.unspoken > 0 {
					g.notes.unspoken--
					return
				}
			}
			g.w.addBeat(node, beat{
				group: g.id, kind: kind,
				to: m.GetTo(), from: m.GetFrom(), term: m.GetTerm(), commit: m.GetCommit(),
			})
			g.s.counters.BeatsSent.Add(1)
			return
		}
	case raftpb.MsgApp:
		if g.note(m) {
			return
		}
	case raftpb.MsgSnap:
		g.s.counters.SnapshotsSent.Add(1)
		g.offers[m.GetTo()] = 0
	}
	g.sendLetter(node, encodeMessage(m))
}

func (g *Group) sendLetter(node ids.NodeID, body []byte) {
	g.s.counters.MessagesSent.Add(1)
	g.s.out.SendRaft(node, g.id, body)
}

// updateRole tells the machine and everybody else of a change.
func (g *Group) updateRole() {
	if g.term == uint64(g.role.Term) && g.lead == uint64(g.role.LeaderReplica) && (g.state == raft.StateLeader) == g.role.IsLeader {
		return
	}
	r := Role{Term: ids.Term(g.term), LeaderReplica: ids.ReplicaID(g.lead), IsLeader: g.state == raft.StateLeader}
	if g.lead != 0 {
		r.Leader = g.peers(r.LeaderReplica)
	}
	if r.IsLeader {
		// An older change may lie anywhere in the log.
		g.confPending = g.lastIndex()
	}
	g.role, g.transferee = r, 0
	clear(g.offers)
	g.quiet.active = true
	g.s.counters.RoleChanges.Add(1)
	g.published.Store(&r)
	g.logger.Info("raft role", "term", uint64(r.Term), "leader", r.Leader.String(), "leading", r.IsLeader)
	g.machine.Role(r)
}

// deliver hands committed entries to the machine (R1).
func (g *Group) deliver(ents []*raftpb.Entry) {
	out := g.ents[:0]
	for _, e := range ents {
		index := e.GetIndex()
		ent := Entry{Index: ids.Index(index), Term: ids.Term(e.GetTerm()), Data: e.GetData()}
		if e.GetType() != raftpb.EntryNormal {
			if err := g.applyConf(e, &ent); err != nil {
				g.s.fail(err)
				g.dead = true
				return
			}
		}
		if index <= g.delivered {
			continue // the machine has installed a later state
		}
		if index != g.delivered+1 {
			invariant.Fail("R1", "group %d: entry %d follows entry %d", g.id, index, g.delivered)
		}
		g.delivered = index
		out = append(out, ent)
	}
	if len(out) > 0 {
		g.quiet.active = true
		g.s.counters.EntriesDelivered.Add(uint64(len(out)))
		g.machine.Deliver(out)
	}
	clear(out)
	g.ents = out[:0]
}

// endPass does what must not happen inside Raft or the machine.
func (g *Group) endPass() {
	g.prepareSnapshot()
	g.settleQuiet()
	g.checkDrain()
}

// tick passes a tick on.
func (g *Group) tick() {
	if g.quiet.quiesced {
		g.machine.Tick()
		return
	}
	g.ticks++
	if g.tickQuiet() {
		g.machine.Tick()
		return
	}
	g.rn.Tick()
	g.suspect = true
	g.compareRole()
	g.machine.Tick()
	g.tickSnapshots()
	g.tickDrain()
	g.tickParting()
	if g.ticks%g.s.cfg.ElectionTicks == 0 && g.transferee != 0 && g.rn.BasicStatus().LeadTransferee == 0 {
		g.transferee = 0 // Raft has given up
	}
}
