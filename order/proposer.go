package order

import (
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// proposer is the order leader's side of proposals: it puts cuts and commands into entries. There are at most
// Limits.MaxInflight entries on their way; what comes meanwhile shares the next one, so entries grow under load and
// nothing waits when there is none.
type proposer struct {
	inflight int  // entries of this term proposed and not applied
	ready    bool // an entry of this term is applied: what is not in the state is not in the log either
	initTerm ids.Term
	markNow  bool // flush marks have waited for company long enough

	queue []*braidpb.OrderCommand // bounded by Limits.MaxProposals
	known map[ids.TxnID]bool      // proposals in the queue or on their way, so that one sent again is not appended again

	entry    braidpb.OrderEntry
	cut      braidpb.Cut
	cutCmd   braidpb.OrderCommand
	commands []*braidpb.OrderCommand
	buf      []byte
}

// reset begins a new term, with nothing on its way. The owners of the commands send them again.
func (p *proposer) reset() {
	p.inflight, p.ready, p.markNow = 0, false, false
	clear(p.queue)
	p.queue = p.queue[:0]
	p.known = map[ids.TxnID]bool{}
}

// enqueue takes a command unless it is known; false if there are too many.
func (p *proposer) enqueue(c *braidpb.OrderCommand, limit int) bool {
	id := TxnIDOf(c.GetProposal())
	if p.known[id] {
		return true
	}
	if len(p.queue) >= limit {
		return false
	}
	p.known[id] = true
	p.queue = append(p.queue, c)
	return true
}

// applied says that an entry was applied.
func (p *proposer) applied(ownTerm, proposed bool, results []Result) {
	if ownTerm {
		p.ready = true
		if proposed && p.inflight > 0 {
			p.inflight--
		}
	}
	for i := range results {
		delete(p.known, results[i].Proposal)
	}
}

// tick lets flush marks go alone that found no cut to go with.
func (p *proposer) tick(c *cutter) { p.markNow = c.marks }

// propose proposes what there is, as far as the window allows.
func (p *proposer) propose(m *Machine) {
	for p.inflight < m.cfg.Limits.MaxInflight {
		cut, n := p.fill(m)
		if len(p.commands) == 0 {
			return
		}
		p.entry.Format, p.entry.Commands = entryFormat, p.commands
		var err error
		if p.buf, err = (proto.MarshalOptions{}).MarshalAppend(p.buf[:0], &p.entry); err != nil {
			m.fatal(err)
			return
		}
		if m.host.Propose(p.buf) != nil {
			return // nothing was appended: with the next pass, or the next leader
		}
		p.inflight++
		if cut {
			m.cutter.done()
			p.markNow = false
		}
		if p.commands[0].GetInit() != nil {
			p.initTerm = m.role.Term
		}
		k := copy(p.queue, p.queue[n:])
		clear(p.queue[k:])
		p.queue = p.queue[:k]
	}
}

// fill gathers the commands of the next entry: perhaps a cut, and n of the queue.
func (p *proposer) fill(m *Machine) (cut bool, n int) {
	clear(p.commands)
	p.commands = p.commands[:0]
	if b := m.cfg.Bootstrap; b != nil && !m.state.initialised && p.ready && p.initTerm != m.role.Term {
		p.commands = append(p.commands, &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Init{Init: b}})
	}
	if m.cutter.wanted || p.markNow {
		m.cutter.build(&p.cut, &m.mem)
		if len(p.cut.Segments)+len(p.cut.Flushed) > 0 {
			if p.cutCmd.Kind == nil {
				p.cutCmd.Kind = &braidpb.OrderCommand_Cut{Cut: &p.cut}
			}
			p.commands = append(p.commands, &p.cutCmd)
			cut = true
		} else {
			m.cutter.done() // ordered meanwhile
		}
	}
	n = min(len(p.queue), m.cfg.Limits.MaxCommands)
	p.commands = append(p.commands, p.queue[:n]...)
	return cut, n
}
