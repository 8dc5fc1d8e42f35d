package ranges

import (
	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
)

// window is the part of the range log that is delivered (or, on a leader, proposed) and not applied.
type window struct {
	// entries are the delivered ones above cursor.index, in order.
	entries deque[logEntry]
	// slots are the seqs above cursor.seq, one for each: the first is cursor.seq+1. Those up to delivered are in entries; those above
	// are proposals of this replica, in order of their terms.
	slots     deque[slot]
	delivered ids.Seq
	// resync: nothing was delivered since the state was loaded, so the next writes may begin with seqs that are applied.
	resync bool
	// bytes is the size of all slots.
	bytes int
}

// logEntry is what the ordered cursor has to pass.
type logEntry struct {
	index ids.Index
	term  ids.Term
	txn   *txn // of a Prepare
	// of an entry of writes, which is passed when last is applied:
	last ids.Seq
	gen  ids.Generation
	auth ids.AuthRevision
}

// slot is one seq.
type slot struct {
	ops  []byte   // as delivered; nil before
	p    *pending // our request that became this seq; nil if there is none (any more)
	term ids.Term // in which it was proposed or delivered
	size int
}

// undelivered is the number of slots which are only proposed.
func (w *window) undelivered(c *cursor) int { return w.slots.Len() - int(w.delivered-c.seq) }

// nextSeq is the one behind everything proposed or delivered.
func (r *Replica) nextSeq() ids.Seq { return r.cursor.seq + ids.Seq(r.window.slots.Len()) + 1 }

// Deliver takes over committed entries, ascending, each once in the life of the process, from StartInfo.Applied+1 on.
func (r *Replica) Deliver(ents []Entry) {
	var rep reporter
	for i := range ents {
		if r.failed {
			return
		}
		e := &ents[i]
		if r.role.IsLeader && e.Term == r.role.Term && r.leader.own == 0 {
			r.leader.own = e.Index
		}
		if e.Index <= r.cursor.index {
			continue // contained in a state that was imported
		}
		r.tail.add(e.Index, len(e.Data))
		r.dropOverwritten(e.Term)
		if e.Conf != nil {
			r.deliverConf(e)
		}
		if len(e.Data) == 0 {
			r.window.entries.PushBack(logEntry{index: e.Index, term: e.Term})
		} else if err := r.deliverPayload(e, &rep); err != nil {
			r.fail("taking over a committed entry", err)
			return
		}
	}
	rep.flush(r)
}

// dropOverwritten answers proposals that can no longer be committed, for an entry of a later term is: terms in a log
// never fall.
func (r *Replica) dropOverwritten(term ids.Term) {
	for n := r.window.undelivered(&r.cursor); n > 0; n-- {
		s := r.window.slots.At(r.window.slots.Len() - 1)
		if s.term >= term {
			break
		}
		r.window.bytes -= s.size
		p := s.p
		r.window.slots.PopBack()
		if p != nil {
			r.answer(p, &Response{Code: CodeNotLeader, Leader: r.role.Leader})
		}
	}
	for i := 0; r.txns.proposed > 0 && i < len(r.txns.list); {
		x := r.txns.list[i]
		if x.proposed == 0 || x.proposed >= term {
			i++
			continue
		}
		r.txns.propose(x, 0)
		for _, p := range x.waiters {
			r.answer(p, &Response{Code: CodeNotLeader, Leader: r.role.Leader})
		}
		x.waiters = nil
		if x.prep == nil && !x.decided {
			r.txns.remove(x)
		} else {
			i++
		}
	}
}

// deliverConf notes the configuration in force. The next apply batch stores it; until then the log has it.
func (r *Replica) deliverConf(e *Entry) {
	if e.Conf.Index <= r.conf.Index && r.conf.Index != 0 {
		return
	}
	r.conf, r.confTerm, r.confDirty = *e.Conf, e.Term, true
}

func (r *Replica) deliverPayload(e *Entry, rep *reporter) error {
	kind, err := payloadKind(e.Data)
	if err != nil {
		return err
	}
	if kind == kindPrepare {
		p, err := decodePrepare(e.Data)
		if err != nil {
			return err
		}
		invariant.Check(p.term == e.Term, "seq", "range %d: entry %d of term %d holds a prepare of term %d", r.id, e.Index, e.Term, p.term)
		r.window.entries.PushBack(logEntry{index: e.Index, term: e.Term, txn: r.deliverPrepare(p, e.Index)})
		return nil
	}
	w, err := decodeWrites(e.Data)
	if err != nil {
		return err
	}
	win := &r.window
	contiguous := w.first == win.delivered+1 || win.resync && w.first <= win.delivered && w.last() > win.delivered
	if !contiguous || w.term != e.Term {
		invariant.Fail("seq", "range %d: entry %d of term %d holds seqs %d to %d of term %d behind seq %d",
			r.id, e.Index, e.Term, w.first, w.last(), w.term, win.delivered)
	}
	win.resync = false
	if err := r.deliverWrites(e, &w, rep); err != nil {
		return err
	}
	win.entries.PushBack(logEntry{index: e.Index, term: e.Term, last: win.delivered, gen: w.gen, auth: w.auth})
	return nil
}

// deliverWrites puts each transaction of a payload into its slot.
func (r *Replica) deliverWrites(e *Entry, w *writes, rep *reporter) error {
	win := &r.window
	rd := opReader{b: w.body}
	rep.stamp(r, w.gen, w.auth)
	for seq := w.first; seq <= w.last(); seq++ {
		from := rd.b
		if !rd.begin() {
			return rd.err
		}
		fresh := seq > win.delivered
		var o op
		for rd.next(&o) {
			if fresh && o.lease != 0 {
				rep.lease(seq, o.lease)
			}
		}
		if rd.err != nil {
			return rd.err
		}
		if !fresh {
			continue // applied before a restart
		}
		ops := from[:len(from)-len(rd.b)]
		win.delivered = seq
		rep.through(seq)
		if i := int(seq - r.cursor.seq - 1); i < win.slots.Len() {
			s := win.slots.At(i)
			if s.term != e.Term {
				invariant.Fail("seq", "range %d: seq %d proposed in term %d, delivered in term %d", r.id, seq, s.term, e.Term)
			}
			s.ops = ops
			continue
		}
		win.slots.PushBack(slot{ops: ops, term: e.Term, size: len(ops)})
		win.bytes += len(ops)
	}
	if len(rd.b) > 0 {
		rd.fail("%d bytes behind the end", len(rd.b))
	}
	return rd.err
}

// startReporting reports everything that is delivered and not applied: what a new leader has to do. Reports begin at what the
// node's order state has ordered or below; so they wait if that is behind the state that was loaded here.
func (r *Replica) startReporting() {
	if r.leader.reporting || !r.role.IsLeader || r.host.OrderView().Position < r.loadedAt {
		return
	}
	r.leader.reporting = true
	var rep reporter
	seq := r.cursor.seq
	for i := range r.window.entries.Len() {
		e := r.window.entries.At(i)
		if e.last > seq {
			rep.stampFrom(r, seq, e.gen, e.auth)
		}
		for ; seq < e.last; seq++ {
			rd := opReader{b: r.window.slots.At(int(seq - r.cursor.seq)).ops}
			rd.begin()
			var o op
			for rd.next(&o) {
				if o.lease != 0 {
					rep.lease(seq+1, o.lease)
				}
			}
			rep.through(seq + 1)
		}
	}
	rep.flush(r)
}

// reporter gathers what Host.Progress is told: one call for consecutive seqs that are stamped alike.
type reporter struct {
	p Progress
}

func (rep *reporter) stamp(r *Replica, g ids.Generation, a ids.AuthRevision) {
	rep.stampFrom(r, r.window.delivered, g, a)
}

func (rep *reporter) stampFrom(r *Replica, from ids.Seq, g ids.Generation, a ids.AuthRevision) {
	if rep.p.Through != 0 && rep.p.Generation == g && rep.p.AuthRevision == a {
		return
	}
	rep.flush(r)
	rep.p = Progress{Range: r.id, Term: r.role.Term, From: from, Generation: g, AuthRevision: a}
}

func (rep *reporter) through(s ids.Seq) { rep.p.Through = s }

func (rep *reporter) lease(s ids.Seq, l ids.LeaseID) {
	for i := len(rep.p.Leases) - 1; i >= 0 && rep.p.Leases[i].Seq == s; i-- {
		if rep.p.Leases[i].Lease == l {
			return
		}
	}
	rep.p.Leases = append(rep.p.Leases, SeqLease{s, l})
}

func (rep *reporter) flush(r *Replica) {
	if rep.p.Through > rep.p.From && r.leader.reporting {
		r.host.Progress(rep.p)
	}
	rep.p = Progress{}
}
