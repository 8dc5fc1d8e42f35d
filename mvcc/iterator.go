package mvcc

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// Iterator walks the keys that exist at a revision, in ascending order. It sees the engine as of NewIterator.
//
//	it, err := NewIterator(r, start, end, rev)
//	for ok := it.First(); ok; ok = it.Next() { ... }
//	err = it.Close()
type Iterator struct {
	it   *pebble.Iterator
	rev  ids.Revision
	mod  ids.Revision
	err  error
	seek []byte
	mem  arena
}

// NewIterator opens an iterator over a span. It must be closed.
func NewIterator(r Reader, start, end []byte, rev ids.Revision) (*Iterator, error) {
	it, err := r.NewIter(&pebble.IterOptions{
		LowerBound: key.AppendBound(nil, start, false), UpperBound: key.AppendBound(nil, end, true),
	})
	if err != nil {
		return nil, fmt.Errorf("mvcc: opening an iterator: %w", err)
	}
	return &Iterator{it: it, rev: rev}, nil
}

// First goes to the first key and reports whether there is one.
func (i *Iterator) First() bool { return i.settle(i.it.First()) }

// Next goes to the next key and reports whether there is one.
func (i *Iterator) Next() bool { return i.settle(i.it.NextPrefix()) }

// Seek goes to the first key at or above user and reports whether there is one.
func (i *Iterator) Seek(user []byte) bool {
	i.seek = key.AppendUser(i.seek[:0], user)
	return i.settle(i.it.SeekGE(i.seek))
}

// maxSteps is how many versions that are too new are stepped over before seeking the right one: a seek costs about as
// much as this many steps.
const maxSteps = 4

// settle finds the first key, from the position of the engine's iterator on, that exists at the revision.
func (i *Iterator) settle(valid bool) bool {
	for steps := 0; valid; {
		k := i.it.Key()
		mod, tombstone, ok := key.DecodeMod(k)
		switch {
		case !ok:
			i.err = fmt.Errorf("%w: key %x", ErrCorrupt, k)
			return false
		case mod > i.rev:
			if steps++; steps < maxSteps {
				valid = i.it.Next()
			} else {
				i.seek = key.AppendSeekFrom(append(i.seek[:0], key.Prefix(k)...), i.rev)
				valid, steps = i.it.SeekGE(i.seek), 0
			}
		case tombstone:
			valid, steps = i.it.NextPrefix(), 0
		default:
			i.mod = mod
			return true
		}
	}
	return false
}

// Key is the user key. It is valid until the iterator moves.
func (i *Iterator) Key() []byte {
	user, err := key.DecodeUser(i.it.Key())
	if err != nil {
		i.err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return user
}

// Mod is the key's mod revision.
func (i *Iterator) Mod() ids.Revision { return i.mod }

// State is what the key is; no value is read for it.
func (i *Iterator) State() (KeyState, error) {
	s, err := key.DecodeState(i.it.Key())
	if err != nil {
		return KeyState{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return s, nil
}

// Value reads the key's value, which is valid until the iterator moves.
func (i *Iterator) Value() ([]byte, error) {
	v, err := i.it.ValueAndErr()
	if err != nil {
		return nil, fmt.Errorf("mvcc: reading a value: %w", err)
	}
	return v, nil
}

// KeyValue reads the key in etcd's form, without value and lease if keysOnly (see RangeOptions). It stays valid, but a few neighbours share memory: who keeps one
// of many for long should copy it.
func (i *Iterator) KeyValue(keysOnly bool) (*mvccpb.KeyValue, error) {
	s, err := i.State()
	if err != nil {
		return nil, err
	}
	return i.keyValue(s, keysOnly)
}

func (i *Iterator) keyValue(s KeyState, keysOnly bool) (*mvccpb.KeyValue, error) {
	var value []byte
	if keysOnly {
		s.Lease = 0
	} else {
		var err error
		if value, err = i.Value(); err != nil {
			return nil, err
		}
	}
	kv := i.mem.newKeyValue()
	fill(kv, i.mem.copy(i.Key()), s, nil)
	if len(value) > 0 {
		kv.Value = i.mem.copy(value)
	}
	return kv, i.err
}

// Close ends the iterator and tells of any error on the way.
func (i *Iterator) Close() error {
	err := i.it.Error()
	if cerr := i.it.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = i.err
	}
	if err != nil {
		return fmt.Errorf("mvcc: iterating: %w", err)
	}
	return nil
}

// arena hands out memory for results in pieces that grow with what was asked for so far, so that a long list takes few allocations
// and a short one wastes little. The zero arena is ready to use.
type arena struct {
	kvs      []mvccpb.KeyValue
	buf      []byte
	nkv, nby int // size of the last piece
}

// Pieces hold at most this many key-values and bytes; what is bigger than a quarter of the latter gets its own.
const (
	maxArenaKVs   = 64
	maxArenaBytes = 64 << 10
)

func (a *arena) newKeyValue() *mvccpb.KeyValue {
	if len(a.kvs) == 0 {
		a.nkv = min(max(1, 2*a.nkv), maxArenaKVs)
		a.kvs = make([]mvccpb.KeyValue, a.nkv)
	}
	kv := &a.kvs[0]
	a.kvs = a.kvs[1:]
	return kv
}

func (a *arena) copy(b []byte) []byte {
	if len(b) > len(a.buf) {
		if len(b) > maxArenaBytes/4 {
			return append(make([]byte, 0, len(b)), b...)
		}
		a.nby = max(len(b), min(2*a.nby, maxArenaBytes))
		a.buf = make([]byte, a.nby)
	}
	n := copy(a.buf, b)
	out := a.buf[:n:n]
	a.buf = a.buf[n:]
	return out
}
