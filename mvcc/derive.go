package mvcc

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/storage/key"
)

// Deriver makes the event index and the lease attachments that belong to versions which come, in the order of their
// keys, without them. The zero Deriver is ready to use.
type Deriver struct {
	user []byte // the key of the version taken last
	last KeyState
	have bool // the event of last is to be written
	same bool // there is a last
	k, v []byte
}

// Version takes the next version's key, as stored, and adds what is known by then to the batch. indexed says that the
// event of this version is in the index already; it is left alone then, for it may know what the key was before where the versions do
// not tell any more.
func (d *Deriver) Version(b *pebble.Batch, k []byte, indexed bool) error {
	user, s, err := key.DecodeVersion(k)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	same := d.same && bytes.Equal(d.user, user)
	prev := KeyState{}
	if same && s.Exists() {
		prev = s
	}
	if err := d.event(b, prev); err != nil {
		return err
	}
	if !same && s.Lease != 0 { // the newest version of the key
		d.k = key.AppendLease(d.k[:0], s.Lease, user)
		if err := b.Set(d.k, nil, nil); err != nil {
			return err
		}
	}
	d.user, d.last, d.have, d.same = append(d.user[:0], user...), s, !indexed, true
	return nil
}

// End adds what is left.
func (d *Deriver) End(b *pebble.Batch) error {
	err := d.event(b, KeyState{})
	d.have, d.same = false, false
	return err
}

// event writes the event of the version taken last; prev is what the key was before it.
func (d *Deriver) event(b *pebble.Batch, prev KeyState) error {
	if !d.have {
		return nil
	}
	d.k = key.AppendEvent(d.k[:0], d.last.Mod, d.last.Sub)
	d.v = appendEvent(d.v[:0], Event{Key: d.user, Deletion: !d.last.Exists(), Prev: prev})
	return b.Set(d.k, d.v, nil)
}
