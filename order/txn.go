package order

import (
	"container/heap"
	"slices"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// decisions are those that the state keeps: the ones whose deadline is not passed. After its deadline a commit would be an
// abort anyway, so there is nothing to remember.
type decisions struct {
	byTxn map[ids.TxnID]*Decision
	due   deadlines
}

func newDecisions() decisions { return decisions{byTxn: map[ids.TxnID]*Decision{}} }

func (d *decisions) add(x *Decision) {
	d.byTxn[x.Txn] = x
	heap.Push(&d.due, x)
}

// sorted lists them by transaction.
func (d *decisions) sorted() []*Decision {
	out := slices.Clone(d.due)
	slices.SortFunc(out, func(a, b *Decision) int {
		if a.Txn.Less(b.Txn) {
			return -1
		}
		return 1
	})
	return out
}

// deadlines is a heap by deadline.
type deadlines []*Decision

func (h deadlines) Len() int           { return len(h) }
func (h deadlines) Less(i, j int) bool { return h[i].Deadline < h[j].Deadline }
func (h deadlines) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *deadlines) Push(x any)        { *h = append(*h, x.(*Decision)) }
func (h *deadlines) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return x
}

// forgetDecisions drops those whose deadline is passed.
func (s *State) forgetDecisions() {
	for len(s.decisions.due) > 0 && s.decisions.due[0].Deadline < s.at.Position {
		d := heap.Pop(&s.decisions.due).(*Decision)
		if s.decisions.byTxn[d.Txn] == d {
			delete(s.decisions.byTxn, d.Txn)
			s.dirty.decision(d.Txn)
		}
	}
}

func (s *State) applyCommit(c *braidpb.TxnCommit, r *Result) {
	txn, deadline := TxnIDOf(c.GetTxn()), ids.Position(c.GetDeadline())
	if d := s.decisions.byTxn[txn]; d != nil && !(s.mutation.has(CommitAfterAbort) && !d.Commit) {
		d.tell(r)
		if !d.Commit {
			r.Err = ErrTxnAborted
		}
		return
	}
	r.Err = s.refuseCommit(c)
	r.late = r.Err == ErrTxnDeadline
	s.decide(&Decision{Txn: txn, Commit: r.Err == nil, Deadline: deadline}, c.GetParticipants()).tell(r)
}

// refuseCommit says why a commit is an abort.
func (s *State) refuseCommit(c *braidpb.TxnCommit) error {
	switch {
	case s.at.Position > ids.Position(c.GetDeadline()):
		return ErrTxnDeadline
	case ids.AuthRevision(c.GetAuthRevision()) != s.auth:
		return ErrTxnAuth
	}
	gens := c.GetGenerations()
	for i, p := range c.GetParticipants() {
		r := s.find(ids.RangeID(p))
		if r == nil || i >= len(gens) || ids.Generation(gens[i].GetGeneration()) != r.generation {
			return ErrTxnGeneration
		}
	}
	for _, l := range c.GetLeases() {
		if l != 0 && s.leaseGone(ids.LeaseID(l)) {
			return ErrTxnLease
		}
	}
	return nil
}

func (s *State) applyAbort(c *braidpb.TxnAbort, r *Result) {
	txn := TxnIDOf(c.GetTxn())
	if d := s.decisions.byTxn[txn]; d != nil {
		d.tell(r)
		return
	}
	d := &Decision{Txn: txn, Deadline: ids.Position(c.GetDeadline())}
	r.late = s.at.Position > d.Deadline
	s.decide(d, c.GetParticipants()).tell(r)
}

// decide takes a decision: all participants get it as an item, and it is kept until its deadline. Past the deadline it is not kept: then
// there may have been another one before, which every participant has then got before this one.
func (s *State) decide(d *Decision, participants []uint64) *Decision {
	if d.Commit {
		s.revision++
		d.Revision = s.revision
	}
	for _, p := range participants {
		if r := s.find(ids.RangeID(p)); r != nil {
			s.addItem(r, &braidpb.Item{Kind: &braidpb.Item_Decision{Decision: &braidpb.DecisionItem{
				Txn: TxnIDProto(d.Txn), Commit: d.Commit, Revision: int64(d.Revision), Deadline: uint64(d.Deadline),
			}}})
		}
	}
	if s.at.Position <= d.Deadline {
		s.decisions.add(d)
		s.dirty.decision(d.Txn)
	}
	s.effects.Decisions = append(s.effects.Decisions, *d)
	return d
}

// tell fills in what a command's owner learns.
func (d *Decision) tell(r *Result) {
	r.Committed, r.Revision = d.Commit, d.Revision
}
