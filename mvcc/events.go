package mvcc

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// eventFormat is the first byte of an event's record.
const eventFormat = 1

// Event is one entry of the event index. The value is in the version of Key at Rev.
type Event struct {
	Rev      ids.Revision
	Sub      uint32
	Key      []byte
	Deletion bool
	Prev     KeyState // what the key was before the event; zero if it did not exist, or not any more in the state that was imported
}

// Contains tells whether a key lies in the span [start, end).
func Contains(start, end, user []byte) bool {
	return bytes.Compare(user, start) >= 0 && (len(end) == 0 || bytes.Compare(user, end) < 0)
}

// appendEvent appends the record of an event; Rev and Sub are in its key.
func appendEvent(dst []byte, e Event) []byte {
	kind := byte(0)
	if e.Deletion {
		kind = 1
	}
	dst = append(dst, eventFormat, kind)
	if e.Prev.Exists() {
		dst = key.AppendFields(binary.AppendUvarint(dst, uint64(e.Prev.Mod)), e.Prev)
	} else {
		dst = append(dst, 0)
	}
	return append(dst, e.Key...)
}

// decodeEvent reads an event. Its key shares v's memory.
func decodeEvent(k, v []byte) (Event, error) {
	rev, sub, err := key.DecodeEvent(k)
	if err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	e := Event{Rev: rev, Sub: sub}
	bad := func() (Event, error) { return Event{}, fmt.Errorf("%w: event %d.%d", ErrCorrupt, rev, sub) }
	if len(v) < 3 || v[0] != eventFormat || v[1] > 1 {
		return bad()
	}
	e.Deletion = v[1] == 1
	mod, n := binary.Uvarint(v[2:])
	if n <= 0 {
		return bad()
	}
	v = v[2+n:]
	if mod != 0 {
		if e.Prev, n = key.DecodeFields(v, ids.Revision(mod)); n == 0 {
			return bad()
		}
		v = v[n:]
	}
	e.Key = v
	return e, nil
}

// Events visits the entries of the event index with from <= revision <= to of a span, by ascending revision and
// sub-revision, until visit says false. The event's key is valid only during the call.
func Events(r Reader, from, to ids.Revision, start, end []byte, visit func(Event) (bool, error)) error {
	it, err := newEventIter(r, from, to)
	if err != nil {
		return err
	}
	err = visitEvents(it, func(e Event) (bool, error) {
		if !Contains(start, end, e.Key) {
			return true, nil
		}
		return visit(e)
	})
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("mvcc: reading events from %d to %d: %w", from, to, err)
	}
	return nil
}

func newEventIter(r Reader, from, to ids.Revision) (*pebble.Iterator, error) {
	upper := []byte{key.PrefixEvent + 1}
	if to != Latest {
		upper = key.AppendEvent(nil, to+1, 0)
	}
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: key.AppendEvent(nil, from, 0), UpperBound: upper})
	if err != nil {
		return nil, fmt.Errorf("mvcc: opening an iterator over events: %w", err)
	}
	return it, nil
}

// visitEvents visits what an iterator over events has, whatever the span.
func visitEvents(it *pebble.Iterator, visit func(Event) (bool, error)) error {
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		e, err := decodeEvent(it.Key(), v)
		if err != nil {
			return err
		}
		more, err := visit(e)
		if err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// Changes visits what Events does, in etcd's form and with the values, all as of one moment of the engine. With prev set, each event
// carries what the key was before, unless that is compacted away. An entry whose version is compacted away
// is left out: ask from the compaction revision on. The events are the visitor's to keep.
func Changes(r Reader, from, to ids.Revision, start, end []byte, prev bool, visit func(ev *mvccpb.Event) (bool, error)) error {
	it, err := newEventIter(r, from, to)
	if err != nil {
		return err
	}
	versions, err := it.Clone(pebble.CloneOptions{IterOptions: &pointOptions})
	if err != nil {
		_ = it.Close()
		return fmt.Errorf("mvcc: opening an iterator: %w", err)
	}
	var k []byte
	version := func(user []byte, rev ids.Revision) (*mvccpb.KeyValue, error) {
		k = key.AppendSeek(k[:0], user, rev)
		s, value, err := seek(versions, k, true)
		if err != nil || !s.Exists() || s.Mod != rev {
			return nil, err
		}
		return keyValue(user, s, value), nil
	}
	err = visitEvents(it, func(e Event) (bool, error) {
		if !Contains(start, end, e.Key) {
			return true, nil
		}
		ev, err := change(e, prev, version)
		if err != nil || ev == nil {
			return err == nil, err
		}
		return visit(ev)
	})
	for _, i := range []*pebble.Iterator{versions, it} {
		if cerr := i.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		return fmt.Errorf("mvcc: reading changes from %d to %d: %w", from, to, err)
	}
	return nil
}

// change is etcd's form of an event, nil if its version is gone.
func change(e Event, prev bool, version func([]byte, ids.Revision) (*mvccpb.KeyValue, error)) (*mvccpb.Event, error) {
	user := bytes.Clone(e.Key)
	ev := &mvccpb.Event{Type: mvccpb.Event_DELETE}
	var err error
	if e.Deletion {
		ev.Kv = &mvccpb.KeyValue{Key: user, ModRevision: int64(e.Rev)}
	} else {
		ev.Type = mvccpb.Event_PUT
		if ev.Kv, err = version(user, e.Rev); err != nil || ev.Kv == nil {
			return nil, err
		}
	}
	if prev && e.Prev.Exists() {
		ev.PrevKv, err = version(user, e.Prev.Mod)
	}
	return ev, err
}
