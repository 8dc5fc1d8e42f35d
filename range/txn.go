package ranges

import (
	"fmt"
	"slices"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/range/latch"
)

// txn is what this replica knows of a transaction over several ranges: its Prepare, its decision, or both.
type txn struct {
	id ids.TxnID

	// prep is the Prepare, once delivered. The ordered cursor has passed it if passed.
	prep   *prepare
	passed bool

	// decided tells that the order log's decision is applied here, or that it can no longer be a commit.
	decided  bool
	commit   bool
	rev      ids.Revision
	deadline ids.Position // of the decision, and of the Prepare

	// What the data engine has; dirty tells that it may have to change.
	storedPrepared, storedDecision, dirty bool

	// proposed is the term in which this replica has proposed the Prepare, zero unless that is not delivered.
	proposed ids.Term
	waiters  []*pending // Prepare requests, answered on delivery
	since    int        // tick at which it was found undecided, or its abort last proposed
	latch    latch.ID   // leader only; zero: none
}

// txnTable holds the transactions: few, in order of appearance.
type txnTable struct {
	byID     map[ids.TxnID]*txn
	list     []*txn
	proposed int // how many are proposed and not delivered
}

func (t *txnTable) get(id ids.TxnID) *txn { return t.byID[id] }

func (t *txnTable) obtain(id ids.TxnID) *txn {
	x := t.byID[id]
	if x == nil {
		x = &txn{id: id}
		if t.byID == nil {
			t.byID = make(map[ids.TxnID]*txn)
		}
		t.byID[id] = x
		t.list = append(t.list, x)
	}
	return x
}

// propose notes that a Prepare is proposed in a term, or with zero that it is not any more.
func (t *txnTable) propose(x *txn, term ids.Term) {
	if x.proposed != 0 {
		t.proposed--
	}
	if x.proposed = term; term != 0 {
		t.proposed++
	}
}

// remove forgets a transaction.
func (t *txnTable) remove(x *txn) {
	delete(t.byID, x.id)
	t.list = slices.DeleteFunc(t.list, func(o *txn) bool { return o == x })
}

// load fills the table from what is durable.
func (t *txnTable) load(l *loaded) error {
	*t = txnTable{}
	for _, m := range l.prepared {
		p, err := decodePrepare(m.Payload)
		if err != nil {
			return fmt.Errorf("prepared transaction %v is corrupt: %w", txnID(m.Txn), err)
		}
		x := t.obtain(p.txn)
		x.prep, x.passed, x.deadline, x.storedPrepared = p, true, p.deadline, true
	}
	for _, m := range l.decided {
		x := t.obtain(txnID(m.Txn))
		x.decided, x.commit, x.rev, x.deadline, x.storedDecision = true, m.Commit, ids.Revision(m.Revision), ids.Position(m.Deadline), true
	}
	return nil
}

// delivered tells whether the transaction's Prepare is here.
func (t *txnTable) delivered(id ids.TxnID) bool {
	x := t.get(id)
	return x != nil && x.prep != nil
}

// undecided tells whether a transaction waits for its decision.
func (t *txnTable) undecided() bool {
	for _, x := range t.list {
		if !x.decided {
			return true
		}
	}
	return false
}

// deliverPrepare takes over a committed Prepare. If it is decided, it only waits for the cursor to pass it.
func (r *Replica) deliverPrepare(p *prepare, index ids.Index) *txn {
	x := r.txns.obtain(p.txn)
	if x.prep == nil {
		x.prep, x.since = p, r.now
		if !x.decided {
			x.deadline = p.deadline
		}
	}
	r.txns.propose(x, 0)
	for _, w := range x.waiters {
		r.answer(w, &Response{Code: CodeOK})
	}
	x.waiters = nil
	if x.decided {
		x.strip()
		r.releaseTxn(x)
	}
	return x
}

// applyDecision applies what the order log decided. The first decision is the only one.
func (r *Replica) applyDecision(d *braidpb.DecisionItem) error {
	x := r.txns.obtain(txnID(d.Txn))
	if x.decided {
		invariant.Check(x.commit == d.Commit || !d.Commit, "O3", "range %d: transaction %v is committed at revision %d after it was found aborted", r.id, x.id, d.Revision)
		return nil
	}
	x.decided, x.commit, x.rev, x.dirty = true, d.Commit, ids.Revision(d.Revision), true
	x.deadline = max(x.deadline, ids.Position(d.Deadline))
	r.answers = append(r.answers, answer{txn: x})
	defer x.strip()
	if !d.Commit {
		return nil
	}
	invariant.Check(x.prep != nil, "O3", "range %d: transaction %v is committed without a Prepare", r.id, x.id)
	r.appliedRev = max(r.appliedRev, x.rev)
	for _, w := range x.prep.writes {
		o := op{key: w.Key, value: w.Value, lease: ids.LeaseID(w.Lease), sub: uint32(w.Sub), delete: w.Delete}
		if err := r.applyOp(&o, x.rev); err != nil {
			return err
		}
	}
	return nil
}

// strip lets go of the Prepare's content, which nobody wants once it is decided.
func (x *txn) strip() {
	if x.prep != nil {
		x.prep = &prepare{txn: x.id, deadline: x.prep.deadline}
	}
}

// storeTxns brings the durable prepared set and decision memory up to date, and forgets what can no longer matter:
// a decision is needed until the ordered cursor has passed the Prepare, and until the deadline is passed, after which a
// Prepare that still comes is known to be aborted.
func (r *Replica) storeTxns() (bool, error) {
	if len(r.txns.list) == 0 {
		return false, nil
	}
	worked := false
	kept := r.txns.list[:0]
	for _, x := range r.txns.list {
		settled := x.decided && (x.prep == nil && x.proposed == 0 || x.passed) && r.past(x.deadline)
		if x.dirty || settled {
			x.dirty = false
			changed, err := r.storeTxn(x, settled)
			if err != nil {
				return false, err
			}
			worked = worked || changed
		}
		if settled {
			delete(r.txns.byID, x.id)
			continue
		}
		kept = append(kept, x)
	}
	clear(r.txns.list[len(kept):])
	r.txns.list = kept
	return worked, nil
}

func (r *Replica) storeTxn(x *txn, settled bool) (bool, error) {
	changed := false
	if want := x.passed && !x.decided && x.prep != nil; want != x.storedPrepared {
		changed, x.storedPrepared = true, want
		k := r.records.at(recordPrepared, x.id)
		var err error
		if want {
			err = r.records.set(r.batch, k, &braidpb.Prepared{Txn: txnProto(x.id), Payload: x.prep.raw})
		} else {
			err = r.batch.Delete(k, nil)
		}
		if err != nil {
			return false, err
		}
	}
	if want := x.decided && !settled; want != x.storedDecision {
		changed, x.storedDecision = true, want
		k := r.records.at(recordDecided, x.id)
		var err error
		if want {
			err = r.records.set(r.batch, k, &braidpb.OrderDecision{
				Txn: txnProto(x.id), Commit: x.commit, Revision: int64(x.rev), Deadline: uint64(x.deadline),
			})
		} else {
			err = r.batch.Delete(k, nil)
		}
		if err != nil {
			return false, err
		}
	}
	return changed, nil
}

// past tells that the order state here is at or past a position and that all its items up to there are applied.
func (r *Replica) past(p ids.Position) bool {
	return r.host.OrderView().Position >= p && r.front.Passed(p) && !r.stalled()
}

// tickTxns looks after transactions that stay undecided. Past the deadline none can be committed any more (a commit at or
// below it would be applied): they are dropped. Before that, a leader has the order log decide.
func (r *Replica) tickTxns() {
	for _, x := range r.txns.list {
		if x.decided || x.prep == nil {
			continue
		}
		if r.past(x.deadline) {
			r.logger.Info("transaction dropped past its deadline", "txn", x.id.String(), "deadline", uint64(x.deadline))
			x.decided, x.dirty = true, true
			x.strip()
			r.releaseTxn(x)
			continue
		}
		if r.role.IsLeader && r.now-x.since >= r.cfg.Timing.StuckTicks {
			x.since = r.now
			r.host.AbortTxn(x.id, x.prep.participants, x.deadline)
		}
	}
}

// releaseTxn gives up a decided transaction's latches.
func (r *Replica) releaseTxn(x *txn) {
	id := x.latch
	x.latch = 0
	if id != 0 {
		r.release(id)
	}
}
