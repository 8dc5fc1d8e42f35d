package mvcc

import (
	"bytes"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// Latest is a revision above all others: reads at it see the newest version.
const Latest ids.Revision = math.MaxInt64

// Reader is where versions are read from: the data engine, or a snapshot of it.
type Reader interface {
	NewIter(o *pebble.IterOptions) (*pebble.Iterator, error)
}

// Get reads a key at a revision; nil if it does not exist there.
func Get(r Reader, user []byte, rev ids.Revision) (*mvccpb.KeyValue, error) {
	s, value, err := lookup(r, user, rev, true)
	if err != nil || !s.Exists() {
		return nil, err
	}
	return keyValue(bytes.Clone(user), s, value), nil
}

// GetState reads a key at a revision without its value.
func GetState(r Reader, user []byte, rev ids.Revision) (KeyState, error) {
	s, _, err := lookup(r, user, rev, false)
	return s, err
}

func lookup(r Reader, user []byte, rev ids.Revision, withValue bool) (KeyState, []byte, error) {
	it, err := r.NewIter(nil)
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("mvcc: opening an iterator: %w", err)
	}
	s, value, err := seek(it, key.AppendVersion(nil, user, rev, false), withValue)
	if err := it.Close(); err != nil {
		return KeyState{}, nil, fmt.Errorf("mvcc: reading %q: %w", user, err)
	}
	return s, value, err
}

// seek reads the version at or below a version key. The value is a copy.
func seek(it *pebble.Iterator, at []byte, withValue bool) (KeyState, []byte, error) {
	if !it.SeekPrefixGE(at) {
		return KeyState{}, nil, it.Error()
	}
	mod, tombstone := key.DecodeSuffix(it.Key())
	if tombstone {
		return KeyState{}, nil, nil
	}
	raw, err := it.ValueAndErr()
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("mvcc: reading a version: %w", err)
	}
	s, value, err := decodeVersion(raw)
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("key %x: %w", it.Key(), err)
	}
	s.Mod = mod
	if withValue {
		value = bytes.Clone(value)
	}
	return s, value, nil
}

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

// settle finds the first key, from the position of the engine's iterator on, that exists at the revision.
func (i *Iterator) settle(valid bool) bool {
	steps := 0
	for valid {
		mod, tombstone := key.DecodeSuffix(i.it.Key())
		switch {
		case mod > i.rev:
			// Newer than asked for: step, and seek if there are many.
			if steps++; steps < 4 {
				valid = i.it.Next()
			} else {
				k := i.it.Key()
				i.seek = key.AppendSuffix(append(i.seek[:0], k[:len(k)-9]...), i.rev, false)
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
		i.err = err
	}
	return user
}

// Mod is the key's mod revision.
func (i *Iterator) Mod() ids.Revision { return i.mod }

// State reads the key's state and its value, which is valid until the iterator moves.
func (i *Iterator) State() (KeyState, []byte, error) {
	raw, err := i.it.ValueAndErr()
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("mvcc: reading a version: %w", err)
	}
	s, value, err := decodeVersion(raw)
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("key %x: %w", i.it.Key(), err)
	}
	s.Mod = i.mod
	return s, value, nil
}

// KeyValue reads the key in etcd's form; nothing of it is shared. One allocation holds key and value.
func (i *Iterator) KeyValue(keysOnly bool) (*mvccpb.KeyValue, error) {
	s, value, err := i.State()
	if err != nil {
		return nil, err
	}
	user := i.Key()
	if keysOnly {
		value = nil
	}
	buf := make([]byte, len(user)+len(value))
	n := copy(buf, user)
	copy(buf[n:], value)
	kv := keyValue(buf[:n:n], s, nil)
	if len(value) > 0 {
		kv.Value = buf[n:]
	}
	return kv, nil
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

// RangeOptions say what Range reads. Zero bounds and limit do not restrict.
type RangeOptions struct {
	Start, End           []byte
	Rev                  ids.Revision
	Limit                int // keys returned at most, after the filters
	KeysOnly, CountOnly  bool
	NoCount              bool // the caller does not need Count beyond what is returned
	MinMod, MaxMod       ids.Revision
	MinCreate, MaxCreate ids.Revision
}

func (o *RangeOptions) filtered() bool {
	return o.MinMod != 0 || o.MaxMod != 0 || o.MinCreate != 0 || o.MaxCreate != 0
}

func (o *RangeOptions) takes(kv *mvccpb.KeyValue) bool {
	return (o.MinMod == 0 || kv.ModRevision >= int64(o.MinMod)) && (o.MaxMod == 0 || kv.ModRevision <= int64(o.MaxMod)) &&
		(o.MinCreate == 0 || kv.CreateRevision >= int64(o.MinCreate)) && (o.MaxCreate == 0 || kv.CreateRevision <= int64(o.MaxCreate))
}

// RangeResult is what Range found.
type RangeResult struct {
	KVs   []*mvccpb.KeyValue // ascending keys
	Count int64              // keys in the span, whatever limit and filters
	More  bool               // the limit cut something off
}

// Range reads a span at a revision, in key order. As in etcd, the count is that of the whole span, filters notwithstanding; it
// reads no values.
func Range(r Reader, o RangeOptions) (RangeResult, error) {
	it, err := NewIterator(r, o.Start, o.End, o.Rev)
	if err != nil {
		return RangeResult{}, err
	}
	res, err := o.run(it)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	return res, err
}

func (o *RangeOptions) run(it *Iterator) (res RangeResult, err error) {
	ok := it.First()
	for ; ok && !o.CountOnly; ok = it.Next() {
		if o.Limit > 0 && len(res.KVs) == o.Limit && !o.filtered() {
			res.More = true
			break
		}
		res.Count++
		kv, err := it.KeyValue(o.KeysOnly)
		if err != nil {
			return res, err
		}
		if o.filtered() && !o.takes(kv) {
			continue
		}
		if o.Limit > 0 && len(res.KVs) == o.Limit {
			res.More = true
			ok = it.Next()
			break
		}
		res.KVs = append(res.KVs, kv)
	}
	if o.NoCount && !o.CountOnly {
		return res, nil
	}
	for ; ok; ok = it.Next() {
		res.Count++
	}
	return res, nil
}

// Count counts the keys of a span at a revision. It reads no values.
func Count(r Reader, start, end []byte, rev ids.Revision) (int64, error) {
	res, err := Range(r, RangeOptions{Start: start, End: end, Rev: rev, CountOnly: true})
	return res.Count, err
}
