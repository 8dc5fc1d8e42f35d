package ranges

import (
	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	"github.com/braidkv/braid/mvcc"
	braidpb "github.com/braidkv/braid/proto"
)

// noSync: the data engine has no write-ahead log, so no commit to it waits for a disk.
var noSync = pebble.NoSync

// answer is an outcome that is told after the batch it stands in is committed (O4).
type answer struct {
	p    *pending
	rev  ids.Revision // zero: void
	void braidpb.VoidReason
	txn  *txn // decided: its latches go
}

// applyBatch applies the items at the head of the queue whose payloads are there, lets the ordered cursor pass what it can,
// commits that as one batch, publishes and answers. It reports whether there was anything.
func (r *Replica) applyBatch() bool {
	r.writer.Reset(r.batch) // evaluation may have left an iterator open
	if r.stalled() {
		return false
	}
	worked := r.walk.done
	r.walk.done = false
	for r.queue.Len() > 0 && r.batch.Len() < r.cfg.Limits.MaxApplyBytes {
		it := *r.queue.At(0)
		if !r.complete(it) {
			break
		}
		if err := r.applyItems(it); err != nil {
			r.fail("applying an item of the order log", err)
			return false
		}
		r.queue.PopFront()
		worked = true
	}
	for _, step := range []func() (bool, error){r.passEntries, r.storeTxns, r.storeConf} {
		ok, err := step()
		if err != nil {
			r.fail("storing the replica's records", err)
			return false
		}
		worked = worked || ok
	}
	if !worked {
		return false // and the batch is empty
	}
	if err := r.commit(); err != nil {
		r.fail("committing an apply batch", err)
		return false
	}
	r.mark()
	r.front.Advance(r.cursor.frontier)
	r.giveAnswers()
	return true
}

// stalled tells that nothing may be applied: the state is about to be replaced, or items are missing.
func (r *Replica) stalled() bool { return r.fetch != nil || r.refill != 0 }

func (r *Replica) commit() error {
	if err := r.records.set(r.batch, r.records.cursor, r.cursor.proto()); err != nil {
		return err
	}
	if err := r.batch.Commit(noSync); err != nil {
		return err
	}
	r.batch.Reset()
	return r.writer.Done()
}

// complete tells whether all payloads which a position's items need are delivered: a position is applied wholly or not at all.
func (r *Replica) complete(it *braidpb.Items) bool {
	for _, i := range it.Items {
		switch k := i.Kind.(type) {
		case *braidpb.Item_Seqs:
			if ids.Seq(k.Seqs.Through) > r.window.delivered {
				return false
			}
		case *braidpb.Item_Decision:
			if k.Decision.Commit && !r.txns.delivered(txnID(k.Decision.Txn)) {
				return false
			}
		}
	}
	return true
}

func (r *Replica) applyItems(it *braidpb.Items) error {
	invariant.Check(ids.Position(it.Position) > r.cursor.frontier, "O3", "range %d: item of position %d at frontier %d", r.id, it.Position, r.cursor.frontier)
	for _, i := range it.Items {
		var err error
		switch k := i.Kind.(type) {
		case *braidpb.Item_Seqs:
			err = r.applySeqs(k.Seqs)
		case *braidpb.Item_Decision:
			err = r.applyDecision(k.Decision)
		case *braidpb.Item_Compact:
			r.cursor.target = max(r.cursor.target, ids.Revision(k.Compact.Revision))
		default:
			invariant.Fail("O3", "range %d: position %d has an item of unknown kind %T", r.id, it.Position, i.Kind)
		}
		if err != nil {
			return err
		}
	}
	r.cursor.frontier = ids.Position(it.Position)
	return nil
}

// applySeqs gives the seqs of an item their revisions.
func (r *Replica) applySeqs(it *braidpb.SeqsItem) error {
	invariant.Check(ids.Seq(it.From) == r.cursor.seq, "O3", "range %d: an item begins behind seq %d, applied is seq %d", r.id, it.From, r.cursor.seq)
	rev, voids := ids.Revision(it.FirstRevision), it.Voids
	for r.cursor.seq < ids.Seq(it.Through) {
		r.cursor.seq++
		s := r.window.slots.PopFront()
		r.window.bytes -= s.size
		if s.p != nil {
			r.unlink(s.p)
		}
		if len(voids) > 0 && ids.Seq(voids[0].Seq) == r.cursor.seq {
			if s.p != nil {
				r.answers = append(r.answers, answer{p: s.p, void: voids[0].Reason})
			}
			voids = voids[1:]
			continue
		}
		if err := r.applyWrites(&s, rev); err != nil {
			return err
		}
		if s.p != nil {
			r.answers = append(r.answers, answer{p: s.p, rev: rev})
		}
		rev++
	}
	r.appliedRev = max(r.appliedRev, rev-1)
	return nil
}

// applyWrites applies one transaction's writes.
func (r *Replica) applyWrites(s *slot, rev ids.Revision) error {
	rd := opReader{b: s.ops}
	rd.begin()
	var o op
	for n := 0; rd.next(&o); n++ {
		if s.p != nil && s.p.result.Writes[n].PrevKV != nil {
			kv, err := r.writer.PrevKV(o.key)
			if err != nil {
				return err
			}
			s.p.result.Writes[n].PrevKV(kv)
		}
		if err := r.applyOp(&o, rev); err != nil {
			return err
		}
	}
	return rd.err
}

func (r *Replica) applyOp(o *op, rev ids.Revision) error {
	if o.delete {
		_, _, err := r.writer.Delete(o.key, rev, o.sub)
		return err
	}
	_, err := r.writer.Put(mvcc.Put{Key: o.key, Value: o.value, Lease: o.lease, Rev: rev, Sub: o.sub})
	return err
}

// passEntries moves the ordered cursor over everything that is ordered and applied. A Prepare that it passes becomes part of the
// durable state, unless it is decided.
func (r *Replica) passEntries() (bool, error) {
	es := &r.window.entries
	moved := false
	for es.Len() > 0 && es.At(0).last <= r.cursor.seq {
		e := es.PopFront()
		if e.txn != nil {
			e.txn.passed, e.txn.dirty = true, true
		}
		r.cursor.index, r.cursor.term, moved = e.index, e.term, true
	}
	return moved, nil
}

// storeConf stores the configuration if it is new.
func (r *Replica) storeConf() (bool, error) {
	if !r.confDirty {
		return false, nil
	}
	r.confDirty = false
	return true, r.records.set(r.batch, r.records.at(recordConf, ids.TxnID{}), confRecord(&r.conf, r.confTerm))
}

// giveAnswers tells clients what the committed batch has done for them, and releases their latches.
func (r *Replica) giveAnswers() {
	for i := range r.answers {
		a := r.answers[i]
		r.answers[i] = answer{}
		switch {
		case a.txn != nil:
			r.releaseTxn(a.txn)
		case a.rev != 0:
			r.applied(a.p, a.rev)
		default:
			r.voided(a.p, a.void)
		}
	}
	r.answers = r.answers[:0]
	r.orderedThrough()
}
