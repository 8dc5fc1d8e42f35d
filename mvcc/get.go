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

// pointOptions are for iterators that look up single keys. The filters of the lowest level save reading it for keys that are
// new, which most of a growing store's writes are to.
var pointOptions = pebble.IterOptions{UseL6Filters: true}

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
	it, err := r.NewIter(&pointOptions)
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("mvcc: opening an iterator: %w", err)
	}
	s, value, err := seek(it, key.AppendSeek(make([]byte, 0, 128), user, rev), withValue)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("mvcc: reading %q: %w", user, err)
	}
	return s, value, nil
}

// seek reads the version at or below a place that key.AppendSeek made. A key that is deleted there, or was never there, has the zero
// state. The value is a copy.
func seek(it *pebble.Iterator, at []byte, withValue bool) (KeyState, []byte, error) {
	if !it.SeekPrefixGE(at) {
		return KeyState{}, nil, it.Error()
	}
	s, err := key.DecodeState(it.Key())
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if !s.Exists() {
		return KeyState{}, nil, nil
	}
	if !withValue {
		return s, nil, nil
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return KeyState{}, nil, fmt.Errorf("mvcc: reading a value: %w", err)
	}
	return s, bytes.Clone(value), nil
}
