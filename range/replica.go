package ranges

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	braidpb "github.com/braidkv/braid/proto"
)

// Replica is one replica of a range. See the package comment.
type Replica struct {
	cfg    Config
	id     ids.RangeID
	gen    ids.Generation
	start  []byte
	end    []byte // empty: to the last key
	host   Host
	logger *slog.Logger
	front  *Frontier
	marks  atomic.Pointer[FlushMark]
	// removed is the highest compaction of which a deletion may be visible.
	removed atomic.Int64
	failed  bool // Host.Fatal was called: nothing is done any more
	now     int  // ticks since the start

	// cursor, conf and the stored part of txns are what the data engine has, including what the batch under
	// construction adds; outside of applyBatch there is none.
	cursor    cursor
	conf      ConfState
	confTerm  ids.Term
	confDirty bool // conf is not stored
	txns      txnTable
	records   records
	writer    *mvcc.Writer
	batch     *pebble.Batch
	answers   []answer // of the batch under construction

	// loadedAt is the frontier of the state that was loaded last. The node's order state may be behind it, after an
	// import.
	loadedAt ids.Position

	// appliedRev is below the revision of whatever is not applied. It may lag behind.
	appliedRev ids.Revision

	window window
	queue  deque[*braidpb.Items] // ascending, above cursor.frontier

	role   Role
	leader leader
	policy policy
	walk   walk

	export  []*export    // states on their way to others
	begun   []begun      // exports of late
	fetch   *fetch       // a state on its way to us
	fetches uint64       // fetches begun, for their IDs
	refill  ids.Position // if not zero: items up to here are missing, and a fetch must bring what they did
	refills int          // refills begun, for the choice of the source
	tail    tail
}

// cursor is the replica's place in both logs.
type cursor struct {
	// index is the last entry of which everything is ordered and applied, term its term.
	index ids.Index
	term  ids.Term
	// seq is the last one applied. It is at or above the last seq of entry index.
	seq ids.Seq
	// frontier is the position of the last item applied.
	frontier ids.Position
	// compacted is the revision through which the compaction walk is done, target where it has to go.
	compacted, target ids.Revision
}

// New loads a replica's durable state.
func New(c Config, h Host) (*Replica, StartInfo, error) {
	if err := c.Validate(); err != nil {
		return nil, StartInfo{}, err
	}
	c = c.withDefaults()
	d := c.Descriptor
	r := &Replica{
		cfg: c, id: ids.RangeID(d.Id), gen: ids.Generation(d.Generation), start: d.Start, end: d.End,
		host: h, logger: c.Logger.With("range", d.Id),
	}
	r.records = newRecords(r.id)
	r.leader.reset()
	r.batch = h.Data().NewBatch()
	r.writer = mvcc.NewWriter(h.Data())
	if err := r.load(); err != nil {
		return nil, StartInfo{}, fmt.Errorf("ranges: %w", err)
	}
	r.window.delivered, r.window.resync = r.cursor.seq, true
	r.front = NewFrontier(r.cursor.frontier)
	r.mark()
	info := StartInfo{Applied: r.cursor.index, AppliedTerm: r.cursor.term, Conf: r.conf}
	if r.conf.Index == 0 {
		for _, p := range d.Replicas {
			info.Conf.Voters = append(info.Conf.Voters, ids.ReplicaID(p.ReplicaId))
		}
	}
	return r, info, nil
}

// load takes over what the data engine has, at start and after an import.
func (r *Replica) load() error {
	l, err := r.records.load(r.host.Data())
	if err != nil {
		return err
	}
	r.cursor = cursorOf(l.cursor)
	if l.conf != nil {
		r.conf, r.confTerm = confState(l.conf), ids.Term(l.conf.Term)
	}
	r.loadedAt = r.cursor.frontier
	r.removing(max(r.cursor.target, r.cursor.compacted))
	return r.txns.load(l)
}

// Frontier is the replica's; anybody may use it.
func (r *Replica) Frontier() *Frontier { return r.front }

// FlushMark is how far what the replica has committed to the data engine goes; anybody may call it. After the engine has flushed, the mark
// comes back as a Flushed event.
func (r *Replica) FlushMark() FlushMark { return *r.marks.Load() }

// mark publishes the cursor for FlushMark.
func (r *Replica) mark() {
	r.marks.Store(&FlushMark{Index: r.cursor.index, Frontier: r.cursor.frontier, Seq: r.cursor.seq, Compacted: r.cursor.compacted})
}

// Removed is the highest revision of a compaction that may have begun to remove versions of this replica. Anybody may call it: who has read the data
// engine before and finds it at or below a revision has seen every event above that.
func (r *Replica) Removed() ids.Revision { return ids.Revision(r.removed.Load()) }

// removing says, before it happens, that versions superseded at or before a revision are removed.
func (r *Replica) removing(rev ids.Revision) {
	for {
		old := r.removed.Load()
		if int64(rev) <= old || r.removed.CompareAndSwap(old, int64(rev)) {
			return
		}
	}
}

// Handle takes events; see event.go.
func (r *Replica) Handle(events []any) {
	for _, ev := range events {
		if r.failed {
			return
		}
		switch e := ev.(type) {
		case *Request:
			r.handleRequest(e)
		case Dispatch:
			r.queueItems(e.Items)
		case Refill:
			r.needRefill(e.Min)
		case Flushed:
			r.truncate(e.Mark)
		case StateRequest:
			r.serveState(e)
		case StateChunk:
			r.takeChunk(e)
		case Poke:
			r.poked()
		case walked:
			r.hasWalked(e)
		case exported:
			r.hasExported(e)
		case imported:
			r.hasImported(e)
		default:
			r.logger.Error("unknown event", "type", fmt.Sprintf("%T", ev))
		}
	}
	r.proposeBuilt()
}

// Tick lets a tick pass.
func (r *Replica) Tick() {
	if r.failed {
		return
	}
	r.now++
	r.tickRequests()
	r.tickTxns()
	r.tickTransfers()
	r.tickPolicy()
	r.proposeBuilt()
}

// Flush ends a pass: it applies what can be applied, in one data batch, and answers clients.
func (r *Replica) Flush() {
	for !r.failed && r.applyBatch() {
	}
	if r.failed {
		return
	}
	r.startReporting()
	r.becomeReady()
	r.startWalk()
	r.proposeBuilt()
}

// Idle tells that the replica needs no ticks until something comes for it.
func (r *Replica) Idle() bool {
	return r.failed || r.window.slots.Len() == 0 && r.queue.Len() == 0 && !r.txns.undecided() && r.leader.idle() &&
		r.fetch == nil && r.refill == 0 && len(r.export) == 0 && !r.walk.running && r.policyIdle()
}

// Close lets go of what the replica holds open on the data engine, which can be closed then. Nothing of the replica may run any more, its background
// jobs included; nobody is answered.
func (r *Replica) Close() error {
	r.failed = true
	var errs []error
	for _, x := range r.export {
		errs = append(errs, x.x.Close())
	}
	if f := r.fetch; f != nil && f.imp != nil {
		f.imp.Abort()
	}
	errs = append(errs, r.writer.Done(), r.batch.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ranges: closing range %d: %w", r.id, err)
	}
	return nil
}

// fail stops the replica and the node.
func (r *Replica) fail(doing string, err error) {
	r.failed = true
	r.host.Fatal(fmt.Errorf("ranges: range %d: %s: %w", r.id, doing, err))
}

// queueItems takes an item group from the order log.
func (r *Replica) queueItems(it *braidpb.Items) {
	p := ids.Position(it.Position)
	if p <= r.cursor.frontier || r.queue.Len() > 0 && p <= ids.Position((*r.queue.At(r.queue.Len() - 1)).Position) {
		return // dispatched again after a restart, or contained in a state that was imported
	}
	r.queue.PushBack(it)
}
