package order

import (
	"slices"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// reads finds positions for the reads of this node, and for those of others if it leads the order group.
//
// On the leader one raft ReadIndex is in flight at a time for all reads of the cluster (a round); what comes meanwhile shares the next
// one. Other nodes gather the reads of a pass in a batch and ask the leader with one letter. Raft drops requests silently and
// letters get lost, so both are repeated.
//
// Bounded by the requests that clients have in progress: each has at most one read here.
type reads struct {
	cfg  *Config
	next uint64 // the next ID of a batch or round. Its beginning depends on the incarnation: an answer to our predecessor is too old for us

	waiting []read       // not yet asked for
	batches []*readBatch // asked of another node, ascending ID

	round, coming readRound
	active        bool // round is in flight

	request  braidpb.ReadIndexRequest
	response braidpb.ReadIndexResponse
}

// read is one of this node. All have the same time-out, so they expire in order of arrival.
type read struct {
	done     func(ids.Position, error)
	deadline uint64 // tick
}

// readBatch is what one letter asks for.
type readBatch struct {
	id    uint64
	sent  uint64 // tick
	reads []read
}

// readRound is what one ReadIndex asks for.
type readRound struct {
	first, last uint64 // contexts it was asked with, first and again
	sent        uint64 // tick
	local       []read
	remote      []remoteRead
}

type remoteRead struct {
	node ids.NodeID
	id   uint64
}

// incarnationMix spreads incarnations over the IDs.
const incarnationMix = 0x9e3779b97f4a7c15

func (r *reads) init(cfg *Config) {
	r.cfg = cfg
	r.next = cfg.Incarnation*incarnationMix + uint64(cfg.Node)
}

func (r *reads) id() uint64 {
	r.next++
	return r.next
}

func (r *reads) add(e Read, now uint64) {
	r.waiting = append(r.waiting, read{done: e.Done, deadline: now + uint64(r.cfg.Timing.ReadTimeoutTicks)})
}

// remote takes another node's request, unless it waits already. A node has at most Limits.MaxReadLetters of them.
func (r *reads) remote(from ids.NodeID, id uint64) {
	x := remoteRead{node: from, id: id}
	if !slices.Contains(r.coming.remote, x) {
		r.coming.remote = append(r.coming.remote, x)
	}
}

// send asks for what waits.
func (r *reads) send(now uint64, role Role, h Host) {
	switch {
	case role.IsLeader:
		r.coming.local = append(r.coming.local, r.waiting...)
		r.clearWaiting()
		if r.active || len(r.coming.local)+len(r.coming.remote) == 0 {
			return
		}
		r.round, r.coming = r.coming, readRound{local: r.round.local[:0], remote: r.round.remote[:0]}
		r.active = true
		r.round.first = r.next + 1
		r.ask(now, h)
	case role.Leader != 0:
		if len(r.waiting) == 0 || len(r.batches) >= r.cfg.Limits.MaxReadLetters {
			return
		}
		b := &readBatch{id: r.id(), sent: now, reads: append([]read(nil), r.waiting...)}
		r.clearWaiting()
		r.batches = append(r.batches, b)
		r.request.Id = b.id
		h.Send(role.Leader, LetterReadIndex, &r.request)
	}
}

func (r *reads) clearWaiting() {
	clear(r.waiting)
	r.waiting = r.waiting[:0]
}

// ask asks Raft for the round's position.
func (r *reads) ask(now uint64, h Host) {
	r.round.last, r.round.sent = r.id(), now
	h.ReadIndex(r.round.last)
}

// readState takes Raft's answer: to any of the contexts that the round has been asked with.
func (r *reads) readState(ctx uint64, p ids.Position, h Host) {
	if !r.active || ctx-r.round.first > r.round.last-r.round.first {
		return
	}
	r.active = false
	for i := range r.round.local {
		done := r.round.local[i].done
		r.round.local[i] = read{}
		done(p, nil)
	}
	for _, x := range r.round.remote {
		r.response.Id, r.response.Position = x.id, uint64(p)
		h.Send(x.node, LetterReadPosition, &r.response)
	}
	r.round.local, r.round.remote = r.round.local[:0], r.round.remote[:0]
}

// answered takes another node's answer to a batch. It covers those sent before it too.
func (r *reads) answered(id uint64, p ids.Position) {
	n := len(r.batches)
	for n > 0 && r.batches[n-1].id != id {
		n--
	}
	for _, b := range r.batches[:n] {
		for _, x := range b.reads {
			x.done(p, nil)
		}
	}
	r.batches = dropBatches(r.batches, n)
}

func dropBatches(bs []*readBatch, n int) []*readBatch {
	k := copy(bs, bs[n:])
	clear(bs[k:])
	return bs[:k]
}

// leaderChanged has everything asked again.
func (r *reads) leaderChanged() {
	var all []read
	for _, b := range r.batches {
		all = append(all, b.reads...)
	}
	r.batches = dropBatches(r.batches, len(r.batches))
	if r.active {
		all = append(all, r.round.local...)
	}
	all = append(all, r.coming.local...)
	r.waiting = append(all, r.waiting...)
	r.round, r.coming, r.active = readRound{}, readRound{}, false
}

// tick ends reads whose time is over and asks again for the others.
func (r *reads) tick(now uint64, role Role, h Host) {
	err := ErrTimeout
	if role.Leader == 0 {
		err = ErrNoLeader
	}
	for _, b := range r.batches {
		b.reads = expire(b.reads, now, err)
	}
	r.round.local = expire(r.round.local, now, err)
	r.coming.local = expire(r.coming.local, now, err)
	r.waiting = expire(r.waiting, now, err)

	again := uint64(r.cfg.Timing.ReadTicks)
	if r.active && now >= r.round.sent+again {
		r.ask(now, h)
	}
	for n := 0; n < len(r.batches); n++ {
		b := r.batches[n]
		if len(b.reads) == 0 {
			r.batches = append(r.batches[:n], r.batches[n+1:]...)
			n--
			continue
		}
		if role.Leader != 0 && now >= b.sent+again {
			b.sent = now
			r.request.Id = b.id
			h.Send(role.Leader, LetterReadIndex, &r.request)
		}
	}
}

// expire ends the reads at the front whose time is over.
func expire(rs []read, now uint64, err error) []read {
	n := 0
	for n < len(rs) && rs[n].deadline <= now {
		rs[n].done(0, err)
		n++
	}
	if n == 0 {
		return rs
	}
	k := copy(rs, rs[n:])
	clear(rs[k:])
	return rs[:k]
}

// fail answers all of this node's.
func (r *reads) fail(err error) {
	r.leaderChanged()
	for _, x := range r.waiting {
		x.done(0, err)
	}
	r.waiting = nil
}
