package raftgroup

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	"github.com/braidkv/braid/storage/raftlog"
)

// preparedSnapshot is what a leader offers to followers that the log cannot help.
//
// Raft asks for a snapshot in the middle of whatever it is doing, possibly inside a method of the machine. So it is told
// to wait, the machine is asked at the end of the pass, and Raft, which asks again with the follower's next
// sign of life, gets the answer then. It is used for a few ticks only, so that it does not grow old.
type preparedSnapshot struct {
	wanted bool
	snap   *raftpb.Snapshot // nil: none
	age    int              // ticks
}

// groupStorage is the group's log as Raft sees it.
type groupStorage struct {
	*raftlog.GroupLog
	g *Group
}

// Snapshot is part of raft.Storage.
func (s groupStorage) Snapshot() (*raftpb.Snapshot, error) {
	p := &s.g.snap
	if p.snap != nil {
		return p.snap, nil
	}
	p.wanted = true
	return nil, raft.ErrSnapshotTemporarilyUnavailable
}

// prepareSnapshot asks the machine, outside of its other methods.
func (g *Group) prepareSnapshot() {
	p := &g.snap
	if !p.wanted {
		return
	}
	p.wanted = false
	meta, ok := g.machine.SnapshotMeta()
	first, _ := g.log.FirstIndex()
	if !ok || uint64(meta.Index)+1 < first || meta.Index == 0 {
		return
	}
	// A replica refuses a state in which it is not a member; the machine will be ahead of its being added soon.
	now, _ := g.log.Conf()
	conf := meta.Conf.toRaft()
	for _, id := range slices.Concat(now.GetVoters(), now.GetLearners()) {
		if !contains(conf, id) {
			return
		}
	}
	p.age = 0
	p.snap = &raftpb.Snapshot{
		Data: meta.Data,
		Metadata: &raftpb.SnapshotMetadata{
			Index: new(uint64(meta.Index)), Term: new(uint64(meta.Term)), ConfState: conf,
		},
	}
}

// tickSnapshots lets a prepared snapshot expire and offers one again to followers from which nothing has been heard of the
// last: the offer may be lost, or the follower may have failed to install it.
func (g *Group) tickSnapshots() {
	if p := &g.snap; p.snap != nil {
		if p.age++; p.age > 4*g.s.cfg.HeartbeatTicks {
			p.snap = nil
		}
	}
	if len(g.offers) == 0 || g.state != raft.StateLeader {
		return
	}
	var again, gone []uint64
	g.rn.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		n, offered := g.offers[id]
		switch {
		case !offered:
		case pr.State != tracker.StateSnapshot:
			gone = append(gone, id)
		case n >= g.s.cfg.SnapshotTicks:
			again, gone = append(again, id), append(gone, id)
		default:
			g.offers[id] = n + 1
		}
	})
	for _, id := range gone {
		delete(g.offers, id)
	}
	for _, id := range again {
		g.rn.ReportSnapshot(id, raft.SnapshotFailure)
	}
}

// restore is a state that the machine is installing.
type restore struct {
	id    uint64
	index uint64            // at least this is wanted
	held  []*raftpb.Message // deliveries that wait for the outcome; Raft bounds their bytes
}

// offered deals with a leader's offer of a snapshot. Raft resets its log when it sees one, so it must not see it before the
// machine has the state. An offer that Raft would not take is its business.
//
// While the machine is at it, appends are dropped and nothing is delivered to it. So what our log has and what becomes
// committed of it stays below the snapshot's index: the entry there is another one, or none. Votes and heartbeats go
// on.
func (g *Group) offered(from ids.NodeID, m *raftpb.Message) {
	md := m.GetSnapshot().GetMetadata()
	if g.restore != nil {
		return
	}
	// Raft's log is ours only when nothing is unready.
	for g.rn.HasReady() {
		g.ready()
	}
	here, err := g.log.Term(md.GetIndex())
	matches := err == nil && here == md.GetTerm()
	if m.GetTerm() < g.term || md.GetIndex() <= g.committed || matches || !contains(md.GetConfState(), g.replica) {
		g.suspect = true
		if err := g.rn.Step(m); err != nil {
			g.logger.Debug("snapshot not taken", "err", err)
		}
		return
	}
	// Take on the leader and its term: later the snapshot is stepped in whatever term is current then.
	g.suspect = true
	beat := &wireMessage{typ: raftpb.MsgHeartbeat, to: g.replica, from: m.GetFrom(), term: m.GetTerm()}
	if err := g.rn.Step(beat.link()); err != nil {
		g.logger.Debug("heartbeat not taken", "err", err)
		return
	}
	g.restores++
	r := &restore{id: g.restores, index: md.GetIndex()}
	g.restore = r
	g.logger.Info("installing state from another node", "from", from.String(), "index", md.GetIndex())
	meta := SnapMeta{
		Index: ids.Index(md.GetIndex()), Term: ids.Term(md.GetTerm()),
		Conf: *confFromRaft(md.GetIndex(), md.GetConfState()), Data: m.GetSnapshot().GetData(),
	}
	g.machine.Restore(from, meta, func(installed *SnapMeta) {
		g.control(func(g *Group) { g.restored(r.id, installed) })
	})
}

// restored lets Raft know what the machine has installed.
func (g *Group) restored(id uint64, meta *SnapMeta) {
	if g.restore == nil || g.restore.id != id || g.dead {
		return
	}
	want, held := g.restore.index, g.restore.held
	g.restore = nil
	if meta == nil {
		g.logger.Warn("state not installed", "index", want)
		for _, m := range held {
			g.deliver(m.GetEntries())
			g.stepAll(m.GetResponses())
		}
		return
	}
	for _, m := range held {
		g.stepAll(m.GetResponses())
	}
	if uint64(meta.Index) < want || g.state == raft.StateLeader {
		invariant.Fail("R1", "group %d: state of entry %d installed, %d wanted, delivered %d, %v", g.id, meta.Index, want, g.delivered, g.state)
	}
	g.s.counters.SnapshotsRestored.Add(1)
	g.delivered = uint64(meta.Index)
	// The state is of committed entries, whatever the term it was offered in. The sender must be the current leader, for Raft
	// takes it for that; zero if there is none.
	w := &wireMessage{typ: raftpb.MsgSnap, to: g.replica, from: g.lead, term: g.term}
	m := w.link()
	m.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		Index: new(uint64(meta.Index)), Term: new(uint64(meta.Term)), ConfState: meta.Conf.toRaft(),
	}}
	g.suspect = true
	if err := g.rn.Step(m); err != nil {
		invariant.Fail("R1", "group %d: raft refuses the installed state of entry %d: %v", g.id, meta.Index, err)
	}
	g.logger.Info("state installed", "index", uint64(meta.Index))
}
