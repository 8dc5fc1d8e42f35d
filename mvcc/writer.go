package mvcc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// Put is one write of a value.
type Put struct {
	Key, Value []byte
	Lease      ids.LeaseID
	Rev        ids.Revision
	Sub        uint32
}

// maxKnown bounds how many keys' newest states a Writer remembers, twice: there are two generations, and a key used within the last
// one is kept.
const maxKnown = 4096

// known is the newest state of a key that a Writer has seen or made.
type known struct {
	state KeyState
	// prev is the value, kept only for keys written in the current batch (PrevKV).
	value []byte
	batch uint64
}

// Writer applies writes to data batches, one batch after another, in the order of their revisions. It sees what it has written itself,
// in this batch and in former ones; nobody else may write the keys it writes. After a batch was dropped instead of
// committed, or state was imported, the writer must be replaced.
type Writer struct {
	db    Reader
	batch *pebble.Batch
	n     uint64 // batches begun
	it    *pebble.Iterator

	young, old map[string]*known
	k, v       []byte // scratch
}

// NewWriter makes a writer over the data engine; Reset gives it its first batch.
func NewWriter(db Reader) *Writer {
	return &Writer{db: db, young: map[string]*known{}, old: map[string]*known{}}
}

// Reset begins a batch. The former one must be committed.
func (w *Writer) Reset(batch *pebble.Batch) {
	w.batch = batch
	w.n++
}

// Done ends a batch: what the writer held open on the engine is closed. It must be called before the engine is
// closed; the next use opens anew.
func (w *Writer) Done() error {
	w.batch = nil
	if w.it == nil {
		return nil
	}
	err := w.it.Close()
	w.it = nil
	if err != nil {
		return fmt.Errorf("mvcc: closing the writer's iterator: %w", err)
	}
	return nil
}

// latest is the newest state of a key.
func (w *Writer) latest(user []byte) (*known, error) {
	if e := w.young[string(user)]; e != nil {
		return e, nil
	}
	e := w.old[string(user)]
	if e == nil {
		if w.it == nil {
			var err error
			if w.it, err = w.db.NewIter(nil); err != nil {
				return nil, fmt.Errorf("mvcc: opening the writer's iterator: %w", err)
			}
		}
		w.k = key.AppendVersion(w.k[:0], user, Latest, false)
		s, _, err := seek(w.it, w.k, false)
		if err != nil {
			return nil, err
		}
		e = &known{state: s}
	}
	if len(w.young) >= maxKnown {
		w.old, w.young = w.young, make(map[string]*known, maxKnown)
	}
	w.young[string(user)] = e
	return e, nil
}

// State is a key's newest state.
func (w *Writer) State(user []byte) (KeyState, error) {
	e, err := w.latest(user)
	if err != nil {
		return KeyState{}, err
	}
	return e.state, nil
}

// PrevKV is a key's newest version, for prev_kv; nil if it does not exist.
func (w *Writer) PrevKV(user []byte) (*mvccpb.KeyValue, error) {
	e, err := w.latest(user)
	if err != nil || !e.state.Exists() {
		return nil, err
	}
	if e.batch == w.n {
		return keyValue(bytes.Clone(user), e.state, bytes.Clone(e.value)), nil
	}
	kv, err := Get(w.db, user, e.state.Mod)
	if err == nil && kv == nil {
		err = fmt.Errorf("%w: key %q has no version at %d", ErrCorrupt, user, e.state.Mod)
	}
	return kv, err
}

// Put writes a value and returns what the key was before.
func (w *Writer) Put(p Put) (prev KeyState, err error) {
	e, err := w.latest(p.Key)
	if err != nil {
		return KeyState{}, err
	}
	prev = e.state
	s := KeyState{Create: p.Rev, Mod: p.Rev, Version: prev.Version + 1, Lease: p.Lease, Sub: p.Sub}
	if prev.Exists() {
		s.Create = prev.Create
	}
	w.k = key.AppendVersion(w.k[:0], p.Key, p.Rev, false)
	w.v = appendVersion(w.v[:0], s, p.Value)
	err = errors.Join(
		w.batch.Set(w.k, w.v, nil),
		w.event(p.Key, p.Rev, p.Sub, false, prev.Mod),
		w.attach(p.Key, prev.Lease, p.Lease),
	)
	if err != nil {
		return KeyState{}, fmt.Errorf("mvcc: putting %q: %w", p.Key, err)
	}
	e.state, e.value, e.batch = s, p.Value, w.n
	return prev, nil
}

// Delete writes a tombstone, unless there is no such key, and returns what the key was before.
func (w *Writer) Delete(user []byte, rev ids.Revision, sub uint32) (deleted bool, prev KeyState, err error) {
	e, err := w.latest(user)
	if err != nil || !e.state.Exists() {
		return false, KeyState{}, err
	}
	prev = e.state
	w.k = key.AppendVersion(w.k[:0], user, rev, true)
	w.v = appendTombstone(w.v[:0], sub)
	err = errors.Join(
		w.batch.Set(w.k, w.v, nil),
		w.event(user, rev, sub, true, prev.Mod),
		w.attach(user, prev.Lease, 0),
	)
	if err != nil {
		return false, KeyState{}, fmt.Errorf("mvcc: deleting %q: %w", user, err)
	}
	e.state, e.value, e.batch = KeyState{}, nil, w.n
	return true, prev, nil
}

// event writes the event index.
func (w *Writer) event(user []byte, rev ids.Revision, sub uint32, deletion bool, before ids.Revision) error {
	w.k = key.AppendEvent(w.k[:0], rev, sub)
	w.v = append(w.v[:0], formatVersion, 0)
	if deletion {
		w.v[1] = 1
	}
	w.v = binary.AppendUvarint(w.v, uint64(before))
	w.v = append(w.v, user...)
	return w.batch.Set(w.k, w.v, nil)
}

// attach moves a key from one lease to another.
func (w *Writer) attach(user []byte, from, to ids.LeaseID) error {
	if from == to {
		return nil
	}
	if from != 0 {
		w.k = key.AppendLease(w.k[:0], from, user)
		if err := w.batch.Delete(w.k, nil); err != nil {
			return err
		}
	}
	if to != 0 {
		w.k = key.AppendLease(w.k[:0], to, user)
		return w.batch.Set(w.k, nil, nil)
	}
	return nil
}
