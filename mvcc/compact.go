package mvcc

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// Walk is the progress of a compaction of a span.
type Walk struct {
	// Next is the revision at which the walk goes on: everything below is done.
	Next ids.Revision
	Done bool
}

// CompactStep walks the node's events from the revision from (inclusive) to the compaction revision, at most about
// limit of them, and adds to the batch the deletion of exactly the versions of a span that were superseded at or before the compaction:
// what an event found the key to be, and tombstones themselves if they lie below it. A version or tombstone at the compaction stays, so
// that a read or watch from there still works. A revision is never split between two steps, and each step gets somewhere. Walking
// a stretch again does no harm. The event index itself is cut by CutEvents.
func CompactStep(r Reader, b *pebble.Batch, start, end []byte, from, compaction ids.Revision, limit int) (Walk, error) {
	it, err := newEventIter(r, from, compaction)
	if err != nil {
		return Walk{}, err
	}
	var k []byte
	remove := func(user []byte, s KeyState) error {
		k = key.AppendVersion(k[:0], user, s)
		return b.Delete(k, nil)
	}
	n, last := 0, ids.Revision(0)
	w := Walk{Next: compaction, Done: true}
	err = visitEvents(it, func(e Event) (bool, error) {
		if n >= limit && n > 0 && e.Rev != last {
			w = Walk{Next: e.Rev}
			return false, nil
		}
		n, last = n+1, e.Rev
		if !Contains(start, end, e.Key) {
			return true, nil
		}
		if e.Prev.Exists() {
			if err := remove(e.Key, e.Prev); err != nil {
				return false, err
			}
		}
		if e.Deletion && e.Rev < compaction {
			if err := remove(e.Key, KeyState{Mod: e.Rev, Sub: e.Sub}); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return Walk{}, fmt.Errorf("mvcc: compacting at %d: %w", compaction, err)
	}
	return w, nil
}

// CutEvents adds to the batch the deletion of all events below the compaction, which every replica of the node must have
// walked, durably.
func CutEvents(b *pebble.Batch, compaction ids.Revision) error {
	if err := b.DeleteRange([]byte{key.PrefixEvent}, key.AppendEvent(nil, compaction, 0), nil); err != nil {
		return fmt.Errorf("mvcc: cutting events below %d: %w", compaction, err)
	}
	return nil
}
