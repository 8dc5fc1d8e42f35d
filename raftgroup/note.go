package raftgroup

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/braidkv/braid/internal/ids"
)

// When a commit index moves and there is nothing to append, Raft tells each follower by an append without entries, which each answers.
// With many groups that is half of all messages. Where nothing can come of the answer, the index travels as a note instead: a heartbeat
// among the others of the pass which the follower's group takes in and does not answer.
//
// An append without entries is also how a leader finds out that earlier ones are lost. Those are the ones it sends on
// a heartbeat's answer, and they stay what they are.

// noteState is a group's part in this.
type noteState struct {
	probing  bool // leader: a heartbeat's answer was stepped since the last Ready
	unspoken int  // follower: notes stepped since the last Ready, whose answers are not sent
}

// note sends a leader's message as a note, if it is one that may, and reports whether it did.
func (g *Group) note(m *raftpb.Message) bool {
	if m.GetType() != raftpb.MsgApp || len(m.GetEntries()) > 0 || g.notes.probing || g.state != raft.StateLeader || m.GetTerm() != g.term {
		return false
	}
	ok := false
	g.rn.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		// As in every heartbeat, the follower is known to have what it is told to be committed.
		ok = ok || id == m.GetTo() && pr.State == tracker.StateReplicate && !pr.MsgAppFlowPaused && pr.Match >= m.GetCommit()
	})
	if !ok {
		return false
	}
	g.w.addBeat(g.peers(ids.ReplicaID(m.GetTo())), beat{
		group: g.id, kind: beatNote, to: m.GetTo(), from: m.GetFrom(), term: m.GetTerm(), commit: m.GetCommit(),
	})
	g.s.counters.NotesSent.Add(1)
	return true
}
