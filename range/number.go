package ranges

import (
	"encoding/binary"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/range/eval"
)

// slotOverhead is what a seq costs in memory besides its payload, about.
const slotOverhead = 256

// builder is the payload under construction: requests that were evaluated and have a seq, and will be proposed together
// before the method of the replica that was called returns. They are in slots, overlay and latches as if they were
// proposed already; if the proposal is dropped, all of that is taken back, from the last to the first.
type builder struct {
	buf   []byte
	stamp stamp
	n     int // requests: the last n slots
}

// fits tells whether a request can join the payload under construction.
func (r *Replica) fits(p *pending) bool {
	b := &r.leader.built
	return b.n == 0 || len(b.buf) < r.cfg.Limits.MaxPayloadBytes && b.stamp.gen == p.req.Generation && b.stamp.auth == p.req.AuthRevision
}

// number gives an evaluated request its seq.
func (r *Replica) number(p *pending) {
	b := &r.leader.built
	seq := r.nextSeq()
	if b.n == 0 {
		b.stamp = stamp{term: r.role.Term, gen: p.req.Generation, auth: p.req.AuthRevision}
		b.buf = appendWritesHeader(b.buf[:0], b.stamp, seq)
	}
	b.n++
	before := len(b.buf)
	b.buf = binary.AppendUvarint(b.buf, uint64(len(p.result.Writes)))
	leases := false
	for i := range p.result.Writes {
		w := &p.result.Writes[i]
		leases = leases || w.Lease != 0
		b.buf = appendOp(b.buf, op{key: w.Key, value: w.Value, lease: w.Lease, sub: w.Sub, delete: w.Delete})
	}
	size := len(b.buf) - before + slotOverhead
	r.window.slots.PushBack(slot{p: p, term: r.role.Term, size: size})
	r.window.bytes += size
	p.state = stateProposed
	r.link(p, seq)
	if !leases || r.cfg.Mutation.AnyPipelining {
		r.grant(r.leader.latches.Show(p.latch))
	}
}

// link puts a request's writes into the overlay.
func (r *Replica) link(p *pending, seq ids.Seq) {
	writes := p.result.Writes
	nodes := p.one[:]
	if len(writes) != 1 {
		nodes = make([]unordered, len(writes))
		p.many = nodes
	}
	for i := range writes {
		w := &writes[i]
		nodes[i] = unordered{
			key: w.Key, value: w.Value, lease: w.Lease, delete: w.Delete, seq: seq, gen: p.req.Generation, auth: p.req.AuthRevision,
		}
		r.leader.overlay.push(&nodes[i])
	}
}

// unlink takes them out again, from the last to the first.
func (r *Replica) unlink(p *pending) {
	nodes := p.many
	if nodes == nil && p.one[0].key != nil {
		nodes = p.one[:]
	}
	for i := len(nodes) - 1; i >= 0; i-- {
		r.leader.overlay.remove(&nodes[i])
	}
	p.one[0], p.many = unordered{}, nil
}

// proposeBuilt proposes the payload under construction. Seqs were given, and the node leads in the term of the evaluation, in this same
// call from the worker: no role change comes in between.
func (r *Replica) proposeBuilt() {
	r.runGranted()
	b := &r.leader.built
	for b.n > 0 && !r.failed {
		setCount(b.buf, b.n)
		n := b.n
		b.n = 0
		if err := r.host.Propose(b.buf); err != nil {
			r.giveBack(n)
		}
		if cap(b.buf) > 4*r.cfg.Limits.MaxPayloadBytes {
			b.buf = nil // a rare large one
		}
		r.runGranted()
	}
}

// giveBack takes back the last n seqs, whose proposal was dropped; their requests are evaluated again after the next tick.
func (r *Replica) giveBack(n int) {
	l := &r.leader
	l.dropping = true
	dropped := make([]*pending, n)
	for i := n - 1; i >= 0; i-- {
		s := r.window.slots.PopBack()
		r.window.bytes -= s.size
		dropped[i] = s.p
		r.unlink(s.p)
	}
	for _, p := range dropped {
		p.result = eval.Result{}
		r.releaseOf(p)
		r.retryLater(p)
	}
	last := r.nextSeq() - 1
	for i := range l.later.Len() {
		p := *l.later.At(i)
		p.after = min(p.after, last)
	}
	r.orderedThrough()
}
