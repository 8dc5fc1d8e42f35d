package mvcc

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	"github.com/braidkv/braid/storage/key"
)

// Put is one write of a value.
type Put struct {
	Key, Value []byte
	Lease      ids.LeaseID
	Rev        ids.Revision
	Sub        uint32
}

// maxKnown is how many keys' newest states make a generation of a Writer's memory. There are two: a key used within the last one is
// kept. A batch may overfill a generation by its own keys, for they must not be forgotten before it is committed.
const maxKnown = 8192

// known is the newest state of a key that a Writer has seen or made.
type known struct {
	state KeyState
	// value is that of state if written in the batch; what is older is in the engine.
	value []byte
	batch uint64
}

// Writer applies writes to data batches, one batch after another, in the order of their revisions. It sees what it has written itself,
// in this batch and in former ones; nobody else may write the keys it writes. After a batch was dropped instead of
// committed, or state was imported, the writer must be replaced.
//
// Every replica of a node has one, so its memory is small; what it forgets, it looks up in the engine, with one iterator for
// each batch.
type Writer struct {
	db    Reader
	batch *pebble.Batch
	n     uint64 // batches begun
	it    *pebble.Iterator

	young, old map[string]*known
	written    []*known // have a value
	k, v       []byte   // scratch
}

// NewWriter makes a writer over the data engine; Reset gives it its first batch.
func NewWriter(db Reader) *Writer {
	return &Writer{db: db, young: map[string]*known{}, old: map[string]*known{}}
}

// Reset begins a batch. The former one must be committed.
func (w *Writer) Reset(batch *pebble.Batch) {
	if w.it != nil {
		// It does not see the former batch. What went wrong with it, the calls that used it have told.
		_ = w.Done()
	}
	w.forget()
	w.batch = batch
	w.n++
}

// Done ends a batch: what the writer held open on the engine is closed, and values given to it are let go. It must be called
// before the engine is closed; the next use opens anew.
func (w *Writer) Done() error {
	w.batch = nil
	w.forget()
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

// forget lets go of the values of the batch and, if there are many keys, of those not used for long.
func (w *Writer) forget() {
	for _, e := range w.written {
		e.value = nil
	}
	clear(w.written)
	w.written = w.written[:0]
	if len(w.young) >= maxKnown {
		w.old, w.young = w.young, w.old
		clear(w.young)
	}
}

// latest is the newest state of a key.
func (w *Writer) latest(user []byte) (*known, error) {
	if e := w.young[string(user)]; e != nil {
		return e, nil
	}
	e := w.old[string(user)]
	if e == nil {
		s, _, err := w.seek(user, false)
		if err != nil {
			return nil, err
		}
		e = &known{state: s}
	}
	w.young[string(user)] = e
	return e, nil
}

// seek reads a key's newest version below the batch.
func (w *Writer) seek(user []byte, withValue bool) (KeyState, []byte, error) {
	if w.it == nil {
		var err error
		if w.it, err = w.db.NewIter(&pointOptions); err != nil {
			return KeyState{}, nil, fmt.Errorf("mvcc: opening the writer's iterator: %w", err)
		}
	}
	w.k = key.AppendSeek(w.k[:0], user, Latest)
	return seek(w.it, w.k, withValue)
}

// State is a key's newest state.
func (w *Writer) State(user []byte) (KeyState, error) {
	e, err := w.latest(user)
	if err != nil {
		return KeyState{}, err
	}
	return e.state, nil
}

// PrevKV is a key's newest version, for prev_kv; nil if it does not exist. Nothing of it is shared.
func (w *Writer) PrevKV(user []byte) (*mvccpb.KeyValue, error) {
	e, err := w.latest(user)
	if err != nil || !e.state.Exists() {
		return nil, err
	}
	if e.batch == w.n {
		return keyValue(bytes.Clone(user), e.state, bytes.Clone(e.value)), nil
	}
	s, value, err := w.seek(user, true)
	if err == nil && s != e.state {
		err = fmt.Errorf("%w: key %q is %+v, not %+v", ErrCorrupt, user, s, e.state)
	}
	if err != nil {
		return nil, err
	}
	return keyValue(bytes.Clone(user), s, value), nil
}

// Put writes a value and returns what the key was before. The value must not change until Done or Reset.
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
	if err := w.write(p.Key, p.Value, s, prev); err != nil {
		return KeyState{}, fmt.Errorf("mvcc: putting %q: %w", p.Key, err)
	}
	e.value = p.Value
	w.note(e, s)
	return prev, nil
}

// Delete writes a tombstone, unless there is no such key, and returns what the key was before.
func (w *Writer) Delete(user []byte, rev ids.Revision, sub uint32) (deleted bool, prev KeyState, err error) {
	e, err := w.latest(user)
	if err != nil || !e.state.Exists() {
		return false, KeyState{}, err
	}
	prev = e.state
	if err := w.write(user, nil, KeyState{Mod: rev, Sub: sub}, prev); err != nil {
		return false, KeyState{}, fmt.Errorf("mvcc: deleting %q: %w", user, err)
	}
	e.value = nil
	w.note(e, KeyState{})
	return true, prev, nil
}

func (w *Writer) note(e *known, s KeyState) {
	e.state = s
	if e.batch != w.n {
		e.batch = w.n
		w.written = append(w.written, e)
	}
}

// write adds a version, its event and the change of its lease to the batch.
func (w *Writer) write(user, value []byte, s, prev KeyState) error {
	if s.Mod <= prev.Mod {
		invariant.Fail("M1", "version %d of key %q after version %d", s.Mod, user, prev.Mod)
	}
	w.k = key.AppendVersion(w.k[:0], user, s)
	if err := w.batch.Set(w.k, value, nil); err != nil {
		return err
	}
	w.k = key.AppendEvent(w.k[:0], s.Mod, s.Sub)
	w.v = appendEvent(w.v[:0], Event{Key: user, Deletion: !s.Exists(), Prev: prev})
	if err := w.batch.Set(w.k, w.v, nil); err != nil {
		return err
	}
	if prev.Lease == s.Lease {
		return nil
	}
	return w.attach(user, prev.Lease, s.Lease)
}

// attach moves a key from one lease to another.
func (w *Writer) attach(user []byte, from, to ids.LeaseID) error {
	if from != 0 {
		w.k = key.AppendLease(w.k[:0], from, user)
		if err := w.batch.Delete(w.k, nil); err != nil {
			return err
		}
	}
	if to == 0 {
		return nil
	}
	w.k = key.AppendLease(w.k[:0], to, user)
	return w.batch.Set(w.k, nil, nil)
}
