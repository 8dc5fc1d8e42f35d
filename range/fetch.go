package ranges

import (
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	braidpb "github.com/braidkv/braid/proto"
)

// fetch is a state on its way to this replica: because Raft cannot help it with entries (Restore), or because
// the order state has dropped items that it lacks (refill). Nothing is applied meanwhile. The state that is there stays readable until the new one takes its
// place at once.
type fetch struct {
	id      uint64
	from    ids.NodeID
	min     ids.Position // the state's frontier must be at or past it
	index   ids.Index    // and its ordered index
	done    func(*SnapMeta)
	cursor  cursor // of the state, told with each chunk
	imp     Importer
	chunk   uint64 // wanted next
	busy    bool   // a job has imp
	last    bool   // that job puts the state in place
	idle    int    // ticks since anything happened
	letters int    // requests for the same chunk
}

// imported is what became of a job.
type imported struct {
	f    *fetch
	last bool
	err  error
}

// Restore fetches and installs a state of the meta's index or a later one, then calls done with what it is, or
// with nil if it could not be had.
func (r *Replica) Restore(from ids.NodeID, meta SnapMeta, done func(*SnapMeta)) {
	var c braidpb.Cursor
	if r.failed || r.fetch != nil && r.fetch.last {
		done(nil) // a refill is being put in place just now; the leader will offer again if need be
		return
	}
	if err := proto.Unmarshal(meta.Data, &c); err != nil {
		r.logger.Error("offer of a state is malformed", "from", from.String(), "err", err)
		done(nil)
		return
	}
	r.dropFetch()
	// The items below our frontier are gone from our queue, so the new frontier must not be below.
	r.beginFetch(&fetch{
		from: from, min: max(ids.Position(c.Frontier), r.cursor.frontier, r.refill), index: meta.Index, done: done,
	})
}

// needRefill notes that items up to min cannot be had any more.
func (r *Replica) needRefill(min ids.Position) {
	if min <= r.cursor.frontier || min <= r.refill {
		return
	}
	r.logger.Info("items are gone, fetching state from another replica", "frontier", uint64(r.cursor.frontier), "min", uint64(min))
	r.refill = min
	if r.role.IsLeader {
		r.unready()
		r.handOver(0)
	}
	r.startRefill()
}

// startRefill asks the next of the other replicas, the leader's first.
func (r *Replica) startRefill() {
	if r.fetch != nil || r.refill == 0 {
		return
	}
	var nodes []ids.NodeID
	for _, p := range r.cfg.Descriptor.Replicas {
		if n := ids.NodeID(p.Node); n != r.cfg.Node {
			nodes = append(nodes, n)
			if n == r.role.Leader {
				nodes[0], nodes[len(nodes)-1] = nodes[len(nodes)-1], nodes[0]
			}
		}
	}
	if len(nodes) == 0 {
		return
	}
	from := nodes[r.refills%len(nodes)]
	r.refills++
	r.beginFetch(&fetch{from: from, min: r.refill})
}

func (r *Replica) beginFetch(f *fetch) {
	r.fetch = f
	r.askChunk()
}

func (r *Replica) askChunk() {
	f := r.fetch
	if f.chunk == 0 {
		// A request for the first chunk may fix another state at the sender. Chunks of different states must not be mixed, so it
		// has an ID of its own, which no earlier process of this node has used either.
		r.fetches++
		f.id = r.cfg.Incarnation + r.fetches*0x9e3779b97f4a7c15
	}
	f.idle = 0
	f.letters++
	r.host.SendStateRequest(f.from, &braidpb.StateRequest{
		Id: f.id, Range: uint64(r.id), MinFrontier: uint64(f.min), Chunk: f.chunk,
	})
}

// takeChunk hands a chunk to a job.
func (r *Replica) takeChunk(e StateChunk) {
	f := r.fetch
	if f == nil || e.M.Id != f.id || e.From != f.from || e.M.Chunk != f.chunk || f.busy {
		return
	}
	if e.M.Error != "" {
		r.logger.Info("state refused", "from", e.From.String(), "why", e.M.Error)
		if e.M.Error != refuseBehind && e.M.Error != refuseBusy {
			r.failFetch()
		}
		return // asked again after a while
	}
	switch c := cursorOf(e.M.Cursor); {
	case f.chunk == 0:
		f.cursor = c
	case f.cursor != c:
		r.logger.Warn("state has changed on the way", "from", e.From.String())
		r.failFetch()
		return
	}
	if f.imp == nil {
		imp, err := r.host.Import(r.start, r.end, r.id)
		if err != nil {
			r.fail("importing a state", err)
			return
		}
		f.imp = imp
	}
	if f.chunk == 0 {
		if c := f.cursor; c.frontier < f.min || c.index < f.index || c.frontier < r.cursor.frontier {
			r.logger.Error("state is not what was asked for", "from", e.From.String(), "frontier", uint64(c.frontier), "index", uint64(c.index))
			r.failFetch()
			return
		}
	}
	f.busy, f.last, f.idle, f.letters = true, e.M.Last, 0, 0
	imp, m := f.imp, e.M
	r.host.Background(func() any {
		err := imp.Add(m.Keys, m.Values)
		if err == nil && m.Last {
			err = imp.Finish(nil)
		}
		return imported{f: f, last: m.Last, err: err}
	})
}

// hasImported goes on after a job.
func (r *Replica) hasImported(e imported) {
	f := e.f
	f.busy = false
	if e.err != nil {
		r.fail("importing a state", e.err)
		return
	}
	if r.fetch != f { // given up meanwhile; never while it was put in place
		f.imp.Abort()
		return
	}
	if !e.last {
		f.chunk++
		r.askChunk()
		return
	}
	r.takeOver(f)
}

// failFetch gives up this attempt.
func (r *Replica) failFetch() {
	done := r.fetch.done
	r.dropFetch()
	if done != nil {
		done(nil)
	}
}

// dropFetch forgets a fetch; one that was called by Raft is answered by the caller.
func (r *Replica) dropFetch() {
	f := r.fetch
	r.fetch = nil
	if f != nil && f.imp != nil && !f.busy {
		f.imp.Abort()
	}
}

// takeOver makes the imported state the replica's own.
func (r *Replica) takeOver(f *fetch) {
	old, seq, conf, term := r.txns, r.cursor.seq, r.conf, r.confTerm
	if err := r.load(); err != nil {
		r.fail("loading an imported state", err)
		return
	}
	if conf.Index > r.conf.Index { // delivered meanwhile, or not yet ordered there
		r.conf, r.confTerm, r.confDirty = conf, term, true
	} else {
		r.confDirty = false
	}
	r.logger.Info("state installed", "from", f.from.String(), "index", uint64(r.cursor.index), "seq", uint64(r.cursor.seq), "frontier", uint64(r.cursor.frontier))
	if err := r.writer.Done(); err != nil {
		r.fail("letting go of the replaced state", err)
		return
	}
	r.writer = mvcc.NewWriter(r.host.Data())
	if r.leader.reporting = false; r.role.IsLeader {
		r.host.ProgressReset(r.id)
	}
	r.walk = walk{running: r.walk.running}
	r.trimWindow(seq)
	r.keepTxns(&old)
	for r.queue.Len() > 0 && ids.Position((*r.queue.At(0)).Position) <= r.cursor.frontier {
		r.queue.PopFront()
	}
	r.fetch = nil
	if r.refill <= r.cursor.frontier {
		r.refill = 0
	}
	r.mark()
	r.front.Advance(r.cursor.frontier)
	if f.done != nil {
		f.done(&SnapMeta{Index: r.cursor.index, Term: r.cursor.term, Conf: r.conf})
	}
	r.giveAnswers()
	r.startReporting()
	r.startRefill()
}

// trimWindow drops what the imported state contains. What we have in flight of it may be done or not: items were skipped (O6).
func (r *Replica) trimWindow(was ids.Seq) {
	w := &r.window
	for w.entries.Len() > 0 && w.entries.At(0).index <= r.cursor.index {
		w.entries.PopFront()
	}
	for ; was < r.cursor.seq && w.slots.Len() > 0; was++ {
		s := w.slots.PopFront()
		w.bytes -= s.size
		if s.p != nil {
			r.unlink(s.p)
			r.answer(s.p, &Response{Code: CodeAmbiguous})
		}
	}
	if w.delivered <= r.cursor.seq {
		w.delivered, w.resync = r.cursor.seq, true
	}
}

// keepTxns carries over what the imported state does not have of the transactions: prepares which are delivered and not passed, and
// requests that wait.
func (r *Replica) keepTxns(old *txnTable) {
	for i := range r.window.entries.Len() {
		e := r.window.entries.At(i)
		if e.txn == nil {
			continue
		}
		x := r.txns.obtain(e.txn.id)
		if x.prep == nil {
			x.prep, x.since = e.txn.prep, r.now
			if !x.decided {
				x.deadline = x.prep.deadline
			}
		}
		e.txn = x
	}
	for _, o := range old.list {
		if o.proposed != 0 {
			x := r.txns.obtain(o.id)
			r.txns.propose(x, o.proposed)
			x.waiters = o.waiters
		}
	}
}

// tickTransfers sends again what got no answer, and gives up after a few times.
func (r *Replica) tickTransfers() {
	r.tickExports()
	f := r.fetch
	if f == nil {
		r.startRefill()
		return
	}
	if f.busy {
		return
	}
	if f.idle++; f.idle < r.cfg.Timing.TransferTicks {
		return
	}
	if f.letters < 3 {
		r.askChunk()
		return
	}
	r.failFetch()
}
