package mvcc

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// Event is one entry of the event index. The value is in the version of Key at Rev.
type Event struct {
	Rev      ids.Revision
	Sub      uint32
	Key      []byte
	Deletion bool
	Before   ids.Revision // mod revision before the event, zero if the key did not exist
}

// Contains tells whether a key lies in the span [start, end).
func Contains(start, end, user []byte) bool {
	return bytes.Compare(user, start) >= 0 && (len(end) == 0 || bytes.Compare(user, end) < 0)
}

func decodeEvent(k, v []byte) (Event, error) {
	rev, sub, err := key.DecodeEvent(k)
	if err != nil {
		return Event{}, err
	}
	if len(v) < 3 || v[0] != formatVersion || v[1] > 1 {
		return Event{}, fmt.Errorf("%w: event %d.%d", ErrCorrupt, rev, sub)
	}
	before, n := binary.Uvarint(v[2:])
	if n <= 0 {
		return Event{}, fmt.Errorf("%w: event %d.%d", ErrCorrupt, rev, sub)
	}
	return Event{Rev: rev, Sub: sub, Key: v[2+n:], Deletion: v[1] == 1, Before: ids.Revision(before)}, nil
}

// Events visits the events with from <= revision <= to of a span, by ascending revision and sub-revision, until
// visit says false. The event's key is valid only during the call.
func Events(r Reader, from, to ids.Revision, start, end []byte, visit func(Event) (bool, error)) error {
	upper := key.AppendEvent(nil, to+1, 0)
	if to == Latest {
		upper = []byte{key.PrefixEvent + 1}
	}
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: key.AppendEvent(nil, from, 0), UpperBound: upper})
	if err != nil {
		return fmt.Errorf("mvcc: opening an iterator over events: %w", err)
	}
	err = visitEvents(it, start, end, visit)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("mvcc: reading events from %d to %d: %w", from, to, err)
	}
	return nil
}

func visitEvents(it *pebble.Iterator, start, end []byte, visit func(Event) (bool, error)) error {
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		e, err := decodeEvent(it.Key(), v)
		if err != nil {
			return err
		}
		if !Contains(start, end, e.Key) {
			continue
		}
		more, err := visit(e)
		if err != nil || !more {
			return err
		}
	}
	return it.Error()
}
