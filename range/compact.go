package ranges

import (
	"fmt"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
)

// walk is the compaction of the range: an item of the order log sets the target, and the walk over the event index follows in steps, off
// the worker. It only deletes versions at or below the target, which nobody writes any more. Where a step got to is
// not stored: after a restart, or an import, the walk begins anew behind the last finished one.
type walk struct {
	running bool
	target  ids.Revision // of the walk under way
	next    ids.Revision // where it goes on
	done    bool         // the cursor has to be stored
}

// walked is what a step of a walk did.
type walked struct {
	target ids.Revision
	w      mvcc.Walk
	err    error
}

// walkEvents is about how many events a step walks over.
const walkEvents = 1000

// startWalk takes the next step if there is one.
func (r *Replica) startWalk() {
	w := &r.walk
	if w.running || r.cursor.target <= r.cursor.compacted || r.stalled() {
		return
	}
	if w.target == 0 {
		w.target, w.next = r.cursor.target, r.cursor.compacted // inclusive
	}
	w.running = true
	db, start, end, next, target := r.host.Data(), r.start, r.end, w.next, w.target
	r.host.Background(func() any {
		b := db.NewBatch()
		step, err := mvcc.CompactStep(db, b, start, end, next, target, walkEvents)
		if err == nil && !b.Empty() {
			r.removing(target)
			err = b.Commit(noSync)
		}
		if cerr := b.Close(); err == nil {
			err = cerr
		}
		return walked{target: target, w: step, err: err}
	})
}

// hasWalked goes on after a step. The next one is taken by Flush.
func (r *Replica) hasWalked(e walked) {
	w := &r.walk
	w.running = false
	switch {
	case e.err != nil:
		r.fail(fmt.Sprintf("compacting at %d", e.target), e.err)
	case e.target != w.target: // an import came in between
	case e.w.Done:
		r.cursor.compacted = max(r.cursor.compacted, e.target)
		*w = walk{done: true}
	default:
		w.next = e.w.Next
	}
}
