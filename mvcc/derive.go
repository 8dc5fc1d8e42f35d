package mvcc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// Deriver makes the event index and the lease attachments that belong to versions which come, in the order of their
// keys, without them. The zero Deriver is ready to use.
type Deriver struct {
	user   []byte // the key of the version below
	have   bool
	rev    ids.Revision
	sub    uint32
	delete bool
	k, v   []byte
}

// Version takes the next version, as stored, and adds what is known by then to the batch.
func (d *Deriver) Version(b *pebble.Batch, k, v []byte) error {
	user, rev, tombstone, err := key.DecodeVersion(k)
	if err != nil {
		return err
	}
	var s KeyState
	if tombstone {
		sub, n := binary.Uvarint(v[min(1, len(v)):])
		if len(v) < 2 || v[0] != formatVersion || n <= 0 {
			return fmt.Errorf("%w: tombstone of %q", ErrCorrupt, user)
		}
		s.Sub = uint32(sub)
	} else if s, _, err = decodeVersion(v); err != nil {
		return fmt.Errorf("key %q: %w", user, err)
	}
	same := d.have && bytes.Equal(d.user, user)
	before := rev
	if !same || tombstone {
		before = 0
	}
	if err := d.event(b, before); err != nil {
		return err
	}
	if !same && !tombstone && s.Lease != 0 { // the newest version of the key
		d.k = key.AppendLease(d.k[:0], s.Lease, user)
		if err := b.Set(d.k, nil, nil); err != nil {
			return err
		}
	}
	d.user, d.have, d.rev, d.sub, d.delete = append(d.user[:0], user...), true, rev, s.Sub, tombstone
	return nil
}

// End adds what is left.
func (d *Deriver) End(b *pebble.Batch) error {
	err := d.event(b, 0)
	d.have = false
	return err
}

// event writes the event of the version taken last; before is the mod revision that the key had before it.
func (d *Deriver) event(b *pebble.Batch, before ids.Revision) error {
	if !d.have {
		return nil
	}
	w := Writer{batch: b, k: d.k, v: d.v}
	err := w.event(d.user, d.rev, d.sub, d.delete, before)
	d.k, d.v = w.k, w.v
	return errors.Join(err)
}
