package raftgroup

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/confchange"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
)

func toRaft(xs []ids.ReplicaID) []uint64 {
	if len(xs) == 0 {
		return nil
	}
	out := make([]uint64, len(xs))
	for i, x := range xs {
		out[i] = uint64(x)
	}
	return out
}

func fromRaft(xs []uint64) []ids.ReplicaID {
	if len(xs) == 0 {
		return nil
	}
	out := make([]ids.ReplicaID, len(xs))
	for i, x := range xs {
		out[i] = ids.ReplicaID(x)
	}
	return out
}

func (c *ConfState) toRaft() *raftpb.ConfState {
	return &raftpb.ConfState{
		Voters: toRaft(c.Voters), Learners: toRaft(c.Learners),
		VotersOutgoing: toRaft(c.VotersOutgoing), LearnersNext: toRaft(c.LearnersNext),
		AutoLeave: new(c.AutoLeave),
	}
}

func confFromRaft(index uint64, cs *raftpb.ConfState) *ConfState {
	return &ConfState{
		Index:  ids.Index(index),
		Voters: fromRaft(cs.GetVoters()), Learners: fromRaft(cs.GetLearners()),
		VotersOutgoing: fromRaft(cs.GetVotersOutgoing()), LearnersNext: fromRaft(cs.GetLearnersNext()),
		AutoLeave: cs.GetAutoLeave(),
	}
}

// contains tells whether a replica is part of a configuration.
func contains(cs *raftpb.ConfState, id uint64) bool {
	for _, list := range [][]uint64{cs.GetVoters(), cs.GetLearners(), cs.GetVotersOutgoing()} {
		for _, x := range list {
			if x == id {
				return true
			}
		}
	}
	return false
}

// ProposeConf proposes a change of the group's configuration: several changes at once, or one that is not simple,
// go through a joint configuration that Raft leaves by itself. Whether it takes place is known from the
// delivered entry (Entry.Conf), which also carries context. ErrConfChange says that it does not fit
// the current configuration or that an earlier one is not finished.
func (g *Group) ProposeConf(changes []ConfChange, context []byte) error {
	if !g.role.IsLeader {
		return ErrNotLeader
	}
	cc, err := confChange(changes, context)
	if err != nil {
		return err
	}
	if g.confPending > g.delivered {
		return fmt.Errorf("%w: entry %d may hold another one", ErrConfChange, g.confPending)
	}
	for _, c := range changes {
		if uint64(c.Replica) == g.replica && c.Type != AddVoter {
			return fmt.Errorf("%w: a leader does not remove or demote itself; leadership must move first", ErrConfChange)
		}
	}
	if err := g.tryConf(cc); err != nil {
		return err
	}
	g.wake()
	if err := g.rn.ProposeConfChange(cc); err != nil {
		g.s.counters.ProposalsDropped.Add(1)
		return ErrDropped
	}
	g.proposed()
	g.confPending = g.lastIndex()
	return nil
}

func confChange(changes []ConfChange, context []byte) (*raftpb.ConfChangeV2, error) {
	if len(changes) == 0 {
		return nil, fmt.Errorf("%w: nothing to change", ErrConfChange)
	}
	cc := &raftpb.ConfChangeV2{Context: context}
	for _, c := range changes {
		var typ raftpb.ConfChangeType
		switch c.Type {
		case AddVoter:
			typ = raftpb.ConfChangeAddNode
		case AddLearner:
			typ = raftpb.ConfChangeAddLearnerNode
		case RemoveReplica:
			typ = raftpb.ConfChangeRemoveNode
		default:
			return nil, fmt.Errorf("%w: unknown type %d", ErrConfChange, c.Type)
		}
		if c.Replica == 0 || c.Replica >= maxReplica {
			return nil, fmt.Errorf("%w: replica %d", ErrConfChange, c.Replica)
		}
		cc.Changes = append(cc.Changes, &raftpb.ConfChangeSingle{Type: &typ, NodeId: new(uint64(c.Replica))})
	}
	return cc, nil
}

// tryConf computes what the change would lead to. Raft panics on every replica when an impossible one is committed.
func (g *Group) tryConf(cc *raftpb.ConfChangeV2) error {
	st := g.rn.Status()
	progress := tracker.ProgressMap{}
	for id, pr := range st.Progress {
		pr := pr
		progress[id] = &pr
	}
	changer := confchange.Changer{
		Tracker:   tracker.ProgressTracker{Config: st.Config, Progress: progress, MaxInflight: 1},
		LastIndex: g.lastIndex(),
	}
	var cfg tracker.Config
	var err error
	if auto, joint := cc.EnterJoint(); joint {
		cfg, _, err = changer.EnterJoint(auto, cc.GetChanges()...)
	} else {
		cfg, _, err = changer.Simple(cc.GetChanges()...)
	}
	if err == nil && len(cfg.Voters[0]) == 0 {
		err = fmt.Errorf("no voter would be left")
	}
	if err != nil {
		return fmt.Errorf("%w: %v", ErrConfChange, err)
	}
	return nil
}

// applyConf brings a committed change into force and returns the entry that the machine gets. One that was in
// force when the process started is only handed on.
func (g *Group) applyConf(e *raftpb.Entry, out *Entry) error {
	var cc raftpb.ConfChangeI
	switch e.GetType() {
	case raftpb.EntryConfChange:
		c := &raftpb.ConfChange{}
		if err := proto.Unmarshal(e.GetData(), c); err != nil {
			return fmt.Errorf("raftgroup: group %d, configuration change in entry %d: %w", g.id, e.GetIndex(), err)
		}
		cc, out.Context = c, c.GetContext()
	case raftpb.EntryConfChangeV2:
		c := &raftpb.ConfChangeV2{}
		if err := proto.Unmarshal(e.GetData(), c); err != nil {
			return fmt.Errorf("raftgroup: group %d, configuration change in entry %d: %w", g.id, e.GetIndex(), err)
		}
		cc, out.Context = c, c.GetContext()
	}
	cs, index := g.log.Conf()
	if e.GetIndex() > index {
		last := g.lastWords()
		cs, index = g.rn.ApplyConfChange(cc), e.GetIndex()
		if last != nil && !isVoter(cs.GetVoters(), g.replica) {
			g.parting = last
		}
		if err := g.log.SetConf(index, cs); err != nil {
			return err
		}
	}
	out.Conf = confFromRaft(index, cs)
	out.Data = nil
	return nil
}

// parting is what a leader that its own change has removed still has to say.
//
// Raft steps down the moment it applies the change. If the others do not yet know it committed, they vote by the old
// configuration, in which the removed replica may be needed: it has the longest log, so it votes for nobody, and it must not
// campaign itself. So it repeats its commit index, in its own term and in the others' logs as it knew them, until they
// have heard it, somebody has a higher term, or two election time-outs have passed.
type parting struct {
	term uint64
	left int // ticks
	to   []partingWord
}

type partingWord struct{ replica, commit uint64 }

// lastWords notes what the followers may be told, nil if this replica does not lead.
func (g *Group) lastWords() *parting {
	if g.state != raft.StateLeader {
		return nil
	}
	p := &parting{term: g.term, left: 2 * g.s.cfg.ElectionTicks}
	g.Progress(func(f FollowerStatus) {
		p.to = append(p.to, partingWord{uint64(f.Replica), min(uint64(f.Match), g.committed)})
	})
	return p
}

func (g *Group) tickParting() {
	p := g.parting
	if p == nil {
		return
	}
	if p.left--; p.left < 0 || g.term != p.term || len(p.to) == 0 {
		g.parting = nil
		return
	}
	for _, w := range p.to {
		m := &wireMessage{typ: raftpb.MsgHeartbeat, to: w.replica, from: g.replica, term: p.term, commit: w.commit}
		g.send(m.link())
	}
}

// heardParting notes that a follower has heard.
func (g *Group) heardParting(replica, term uint64) {
	if p := g.parting; p != nil && term == p.term {
		p.to = slices.DeleteFunc(p.to, func(w partingWord) bool { return w.replica == replica })
	}
}

var _ raft.Storage = groupStorage{}
