package order

import (
	"slices"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// proposals are those of this node that wait for their outcome. They are sent to the order leader, again and again until the
// outcome is applied here or the time is over; a command may therefore be in the log twice, and the first one counts.
type proposals struct {
	cfg     *Config
	counter uint64
	byID    map[ids.TxnID]*proposal   // by proposal ID
	byTxn   map[ids.TxnID][]*proposal // those about a transaction, by arrival
	order   []*proposal               // by arrival; settled ones go when the next tick comes
	unsent  []*proposal               // to be sent with the next flush
	letter  braidpb.OrderProposal
}

// proposal is one of them.
type proposal struct {
	id       ids.TxnID
	cmd      *braidpb.OrderCommand
	done     func(Result)
	deadline uint64 // tick
	sent     uint64 // tick
	inUnsent bool
	ever     bool // it was sent: it may be in the log
	settled  bool

	// For the decision of a transaction:
	txn    ids.TxnID
	commit bool // TxnCommit rather than TxnAbort
	// certain: whatever is decided before the transaction's deadline is seen here, so if nothing was seen when
	// the deadline is passed, it is an abort.
	certain bool
	first   *placedDecision // in the batch being settled
}

func (p *proposals) init(cfg *Config) {
	p.cfg, p.byID, p.byTxn = cfg, map[ids.TxnID]*proposal{}, map[ids.TxnID][]*proposal{}
}

// add takes one.
func (p *proposals) add(e Propose, m *Machine) {
	if e.Done == nil {
		e.Done = func(Result) {}
	}
	if len(p.byID) >= p.cfg.Limits.MaxProposals {
		e.Done(Result{Err: ErrFull})
		return
	}
	p.counter++
	x := &proposal{
		id:  ids.TxnID{Node: p.cfg.Node, Incarnation: p.cfg.Incarnation, Counter: p.counter},
		cmd: e.Cmd, done: e.Done, deadline: m.now + uint64(p.cfg.Timing.ProposalTimeoutTicks),
	}
	if e.TimeoutTicks > 0 {
		x.deadline = m.now + uint64(e.TimeoutTicks)
	}
	x.cmd.Proposal = TxnIDProto(x.id)
	switch k := e.Cmd.GetKind().(type) {
	case *braidpb.OrderCommand_Commit:
		x.txn, x.commit = TxnIDOf(k.Commit.GetTxn()), true
		x.certain = m.state.at.Position <= ids.Position(k.Commit.GetDeadline())
	case *braidpb.OrderCommand_Abort:
		x.txn = TxnIDOf(k.Abort.GetTxn())
		x.certain = m.state.at.Position <= ids.Position(k.Abort.GetDeadline())
	}
	if d := m.state.decisions.byTxn[x.txn]; d != nil && !x.txn.IsZero() {
		x.settle(x.outcome(d, m.state.at.Position))
		return
	}
	p.byID[x.id] = x
	if !x.txn.IsZero() {
		p.byTxn[x.txn] = append(p.byTxn[x.txn], x)
	}
	p.order = append(p.order, x)
	p.send1(x)
}

func (p *proposals) send1(x *proposal) {
	if !x.inUnsent && !x.settled {
		x.inUnsent = true
		p.unsent = append(p.unsent, x)
	}
}

// outcome is what a decision means for a proposal.
func (x *proposal) outcome(d *Decision, at ids.Position) Result {
	r := Result{Proposal: x.id, Position: at}
	d.tell(&r)
	if x.commit && !d.Commit {
		r.Err = ErrTxnAborted
	}
	return r
}

func (x *proposal) settle(r Result) {
	if x.settled {
		return
	}
	x.settled = true
	if r.late && !x.certain {
		r = Result{Proposal: x.id, Err: ErrAmbiguous}
	}
	x.done(r)
}

// settle answers those whose outcome was applied with the last batch: first those who decided, as they know the reason, then whoever
// else proposed about the same transaction.
func (p *proposals) settle(m *Machine) {
	for i := range m.decided {
		d := &m.decided[i]
		for _, x := range p.byTxn[d.Txn] {
			if x.first == nil {
				x.first = d
			}
		}
	}
	for i := range m.outcomes {
		r := &m.outcomes[i]
		x := p.byID[r.Proposal]
		switch {
		case x == nil:
		case x.first != nil && x.first.at < r.Position:
			// Decided earlier in this batch. If the deadline lies between, the state had forgotten that at r.Position.
			p.settle1(x, x.decided(x.first))
		default:
			p.settle1(x, *r)
		}
	}
	for i := range m.decided {
		for _, x := range slices.Clone(p.byTxn[m.decided[i].Txn]) {
			p.settle1(x, x.decided(x.first))
		}
	}
	m.outcomes, m.decided = m.outcomes[:0], m.decided[:0]
}

// settle1 answers one, and forgets it except in order.
func (p *proposals) settle1(x *proposal, r Result) {
	delete(p.byID, x.id)
	if !x.txn.IsZero() {
		l := p.byTxn[x.txn]
		if l = slices.DeleteFunc(l, func(y *proposal) bool { return y == x }); len(l) == 0 {
			delete(p.byTxn, x.txn)
		} else {
			p.byTxn[x.txn] = l
		}
	}
	x.first = nil
	x.settle(r)
}

// decided is what a decision just taken means for a proposal.
func (x *proposal) decided(d *placedDecision) Result {
	r := x.outcome(&d.Decision, d.at)
	r.late = d.at > d.Deadline
	return r
}

// skipped deals with a state that was installed: what happened to the proposals in the part of the log that was skipped is not
// known, except for transactions whose decision the state still has. Whoever does not know must not try again (O6): a command
// that has done its work might fail the second time.
func (p *proposals) skipped(m *Machine) {
	for _, x := range p.order {
		switch {
		case x.settled:
		case !x.txn.IsZero():
			if d := m.state.decisions.byTxn[x.txn]; d != nil {
				p.settle1(x, x.outcome(d, m.state.at.Position))
			} else {
				x.certain = x.certain && m.state.at.Position <= x.txnDeadline()
			}
		case x.ever:
			p.settle1(x, Result{Proposal: x.id, Err: ErrAmbiguous})
		}
	}
}

func (x *proposal) txnDeadline() ids.Position {
	if c := x.cmd.GetCommit(); c != nil {
		return ids.Position(c.GetDeadline())
	}
	return ids.Position(x.cmd.GetAbort().GetDeadline())
}

// leaderChanged has all of them sent again.
func (p *proposals) leaderChanged() {
	for _, x := range p.order {
		p.send1(x)
	}
}

// tick ends those whose time is over, and sends again what may have been lost on the way to another node.
func (p *proposals) tick(m *Machine) {
	kept := p.order[:0]
	for _, x := range p.order {
		if x.settled {
			continue
		}
		if m.now >= x.deadline {
			err := ErrTimeout
			if m.role.Leader == 0 {
				err = ErrNoLeader
			}
			p.settle1(x, Result{Proposal: x.id, Err: err})
			continue
		}
		if !m.role.IsLeader && m.now >= x.sent+uint64(p.cfg.Timing.ProposalTicks) {
			p.send1(x)
		}
		kept = append(kept, x)
	}
	clear(p.order[len(kept):])
	p.order = kept
}

// send sends what is unsent to the leader, if one is known.
func (p *proposals) send(m *Machine) {
	if len(p.unsent) == 0 || m.role.Leader == 0 && !m.role.IsLeader {
		return
	}
	var left []*proposal
	cmds := p.letter.Commands[:0]
	for _, x := range p.unsent {
		x.inUnsent, x.ever = false, true
		switch {
		case x.settled:
		case !m.role.IsLeader:
			cmds = append(cmds, x.cmd)
			x.sent = m.now
		case !m.proposer.enqueue(x.cmd, p.cfg.Limits.MaxProposals):
			x.inUnsent = true
			left = append(left, x)
		}
	}
	clear(p.unsent)
	p.unsent = append(p.unsent[:0], left...)
	if len(cmds) > 0 {
		p.letter.Commands = cmds
		m.host.Send(m.role.Leader, LetterProposal, &p.letter)
	}
	clear(cmds)
	p.letter.Commands = cmds[:0]
}

// fail answers all.
func (p *proposals) fail(err error) {
	for _, x := range p.order {
		x.settle(Result{Proposal: x.id, Err: err})
	}
	clear(p.order)
	clear(p.byID)
	clear(p.byTxn)
	p.order, p.unsent = nil, nil
}
