// Package transfer moves the state of one range from a node to another: it reads the versions and the replica's records of
// the range from one moment of the sender's data engine, in chunks, and replaces those of the receiver's at once and durably.
//
// The event index and the lease attachments are not sent: they follow from the versions. The receiver writes them, durably, before the
// versions replace the old ones, and takes away attachments of the old state that do not hold any more afterwards. A crash
// between leaves entries without versions, which readers skip. Events of the old state stay, for its history is part of the new
// one's; what of it is compacted goes with the next compaction.
package transfer

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage"
	"github.com/braidkv/braid/storage/key"
)

// Exporter reads a range's state as of its creation. It belongs to one goroutine.
//
// It holds on to tables and memtables as of then, so it must not be kept for long without being read.
type Exporter struct {
	its  []*pebble.Iterator // of one moment
	at   int
	open bool // its[at] is positioned
}

// Export fixes the state of a range: the versions of its span and its replica's records.
func Export(e *storage.Engines, start, end []byte, r ids.RangeID) (*Exporter, error) {
	versions, err := e.Data.NewIter(&pebble.IterOptions{
		LowerBound: key.AppendBound(nil, start, false), UpperBound: key.AppendBound(nil, end, true),
	})
	if err != nil {
		return nil, fmt.Errorf("transfer: opening an iterator on range %d: %w", r, err)
	}
	// A clone sees what its original sees.
	lower, upper := key.ReplicaBounds(r)
	records, err := versions.Clone(pebble.CloneOptions{IterOptions: &pebble.IterOptions{LowerBound: lower, UpperBound: upper}})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("transfer: opening an iterator on range %d: %w", r, err), versions.Close())
	}
	return &Exporter{its: []*pebble.Iterator{versions, records}}, nil
}

// Next reads the next chunk, of about maxBytes and at least one record unless it is done. The slices are the caller's.
func (x *Exporter) Next(maxBytes int) (keys, values [][]byte, done bool, err error) {
	n := 0
	for ; x.at < len(x.its); x.at, x.open = x.at+1, false {
		it := x.its[x.at]
		ok := x.open && it.Next() || !x.open && it.First()
		for x.open = true; ok; ok = it.Next() {
			v, err := it.ValueAndErr()
			if err != nil {
				return nil, nil, false, fmt.Errorf("transfer: reading: %w", err)
			}
			keys, values = append(keys, bytes.Clone(it.Key())), append(values, bytes.Clone(v))
			if n += len(it.Key()) + len(v); n >= maxBytes {
				return keys, values, false, nil
			}
		}
		if err := it.Error(); err != nil {
			return nil, nil, false, fmt.Errorf("transfer: reading: %w", err)
		}
	}
	return keys, values, true, nil
}

// Close lets go of the engine.
func (x *Exporter) Close() error {
	var errs []error
	for _, it := range x.its {
		errs = append(errs, it.Close())
	}
	x.its = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("transfer: closing: %w", err)
	}
	return nil
}
