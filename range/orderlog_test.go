package ranges

import (
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/storage/key"
)

// orderLog stands in for the order group: one log that is always there; each node has applied some prefix of it.
type orderLog struct {
	states []orderState // by position
	// stamps says how each seq that was reported is stamped.
	stamps   map[ids.Seq]stamped
	reported ids.Seq
	decided  map[ids.TxnID]bool
	dropped  ids.Position // items up to here are gone
}

type stamped struct {
	gen    ids.Generation
	auth   ids.AuthRevision
	leases string
}

// orderState is the state at a position, and what the position told the range.
type orderState struct {
	rev, compact ids.Revision
	ordered      ids.Seq
	auth         ids.AuthRevision
	gen          ids.Generation
	gone         map[ids.LeaseID]bool
	items        *braidpb.Items // nil: nothing
}

func newOrderLog() *orderLog {
	return &orderLog{
		states: []orderState{{rev: 1, auth: 1, gen: 1, gone: map[ids.LeaseID]bool{}}}, stamps: map[ids.Seq]stamped{},
		decided: map[ids.TxnID]bool{},
	}
}

func (o *orderLog) at(pos int) *orderState { return &o.states[pos] }
func (o *orderLog) newest() *orderState    { return &o.states[len(o.states)-1] }

// next begins a new position.
func (o *orderLog) next() (*orderState, ids.Position) {
	st := *o.newest()
	st.items = nil
	o.states = append(o.states, st)
	return o.newest(), ids.Position(len(o.states) - 1)
}

func (st *orderState) tell(p ids.Position, it *braidpb.Item) {
	if st.items == nil {
		st.items = &braidpb.Items{Range: 7, Position: uint64(p)}
	}
	st.items.Items = append(st.items.Items, it)
}

// report takes a progress report. Whatever was said about a seq before must be said again.
func (o *orderLog) report(c *cluster, p Progress) {
	leases := map[ids.Seq]string{}
	for _, l := range p.Leases {
		leases[l.Seq] += fmt.Sprintf("%d ", l.Lease)
	}
	for s := p.From + 1; s <= p.Through; s++ {
		x := stamped{p.Generation, p.AuthRevision, leases[s]}
		if y, ok := o.stamps[s]; ok && y != x {
			c.fault("seq %d is reported as %+v, and was as %+v", s, x, y)
		}
		o.stamps[s] = x
	}
	o.reported = max(o.reported, p.Through)
}

// cut orders what is reported, through a seq at most.
func (o *orderLog) cut(through ids.Seq) bool {
	through = min(through, o.reported)
	if through <= o.newest().ordered {
		return false
	}
	st, pos := o.next()
	it := &braidpb.SeqsItem{From: uint64(st.ordered), Through: uint64(through), FirstRevision: int64(st.rev + 1)}
	for s := st.ordered + 1; s <= through; s++ {
		x := o.stamps[s]
		reason := braidpb.VoidReason_VOID_UNSPECIFIED
		for l := range st.gone {
			if x.leases == fmt.Sprintf("%d ", l) {
				reason = braidpb.VoidReason_VOID_LEASE
			}
		}
		switch {
		case x.gen != st.gen:
			reason = braidpb.VoidReason_VOID_GENERATION
		case x.auth != st.auth:
			reason = braidpb.VoidReason_VOID_AUTH
		}
		if reason != 0 {
			it.Voids = append(it.Voids, &braidpb.Void{Seq: uint64(s), Reason: reason})
		} else {
			st.rev++
		}
	}
	st.ordered = through
	st.tell(pos, &braidpb.Item{Kind: &braidpb.Item_Seqs{Seqs: it}})
	return true
}

func (o *orderLog) changeAuth() {
	st, _ := o.next()
	st.auth++
}

func (o *orderLog) revoke(l ids.LeaseID) {
	st, _ := o.next()
	gone := map[ids.LeaseID]bool{l: true}
	for k := range st.gone {
		gone[k] = true
	}
	st.gone = gone
}

func (o *orderLog) compact(rev ids.Revision) bool {
	if st := o.newest(); rev <= st.compact || rev > st.rev {
		return false
	}
	st, pos := o.next()
	st.compact = rev
	st.tell(pos, &braidpb.Item{Kind: &braidpb.Item_Compact{Compact: &braidpb.CompactItem{Revision: int64(rev)}}})
	return true
}

// decide proposes a decision; the first one wins. A commit past the deadline is an abort. It returns the revision of a commit.
func (o *orderLog) decide(t ids.TxnID, commit bool, deadline ids.Position) ids.Revision {
	if _, ok := o.decided[t]; ok {
		return 0
	}
	st, pos := o.next()
	commit = commit && pos <= deadline
	o.decided[t] = commit
	d := &braidpb.DecisionItem{Txn: txnProto(t), Commit: commit, Deadline: uint64(deadline)}
	if commit {
		st.rev++
		d.Revision = int64(st.rev)
	}
	st.tell(pos, &braidpb.Item{Kind: &braidpb.Item_Decision{Decision: d}})
	return ids.Revision(d.Revision)
}

// drop forgets the items up to a position.
func (o *orderLog) drop(p ids.Position) { o.dropped = max(o.dropped, p) }

// newestDropped is the newest item that is gone, at or below a position.
func (o *orderLog) newestDropped(at int) ids.Position {
	for p := min(int(o.dropped), at); p > 0; p-- {
		if o.states[p].items != nil {
			return ids.Position(p)
		}
	}
	return 0
}

// applyOrder applies the next position at a node: state to the engine, items to the replica, then it counts as published.
func (m *member) applyOrder() bool {
	if m.down || m.pos+1 >= len(m.c.order.states) {
		return false
	}
	m.storeOrder(m.pos + 1)
	if it := m.c.order.at(m.pos + 1).items; it != nil {
		m.rep.Frontier().Enqueue(ids.Position(it.Position))
		m.inbox = append(m.inbox, Dispatch{it})
	}
	m.pos++
	return true
}

// skipOrder takes an order snapshot instead: the newest state, of whose items only those that are not dropped come.
func (m *member) skipOrder() {
	if m.down {
		return
	}
	m.storeOrder(len(m.c.order.states) - 1)
	m.redispatch(len(m.c.order.states) - 1)
}

// restartOrder loads the order state, as of the data engine, and dispatches all items.
func (m *member) restartOrder() {
	m.pos = 0
	v, closer, err := m.eng.Data.Get(key.Order(orderRecord))
	if err == nil {
		m.pos = int(binary.BigEndian.Uint64(v))
		_ = closer.Close()
	}
	m.redispatch(m.pos)
}

func (m *member) storeOrder(pos int) {
	if err := m.eng.Data.Set(key.Order(orderRecord), binary.BigEndian.AppendUint64(nil, uint64(pos)), pebble.NoSync); err != nil {
		panic(err)
	}
}

func (m *member) redispatch(pos int) {
	o := m.c.order
	lost := o.newestDropped(pos)
	m.rep.Frontier().Enqueue(lost)
	m.inbox = append(m.inbox, Refill{lost})
	for p := int(lost) + 1; p <= pos; p++ {
		if it := o.at(p).items; it != nil {
			m.rep.Frontier().Enqueue(ids.Position(p))
			m.inbox = append(m.inbox, Dispatch{it})
		}
	}
	m.pos = pos
}

// flushedByMajority is the position through which a majority of the replicas has durably applied; items up to there may be dropped.
func (c *cluster) flushedByMajority(flushed map[ids.NodeID]ids.Position) ids.Position {
	var ps []ids.Position
	for _, m := range c.nodes {
		ps = append(ps, flushed[m.id])
	}
	sort.Slice(ps, func(i, j int) bool { return ps[i] < ps[j] })
	return ps[(len(ps)-1)/2]
}
