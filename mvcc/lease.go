package mvcc

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// LeaseKeys visits the keys of a span that are attached to a lease now, ascending, until visit says false. The key is
// valid only during the call.
func LeaseKeys(r Reader, lease ids.LeaseID, start, end []byte, visit func(user []byte) (bool, error)) error {
	it, err := r.NewIter(&pebble.IterOptions{
		LowerBound: key.AppendLeaseBound(nil, lease, start, false), UpperBound: key.AppendLeaseBound(nil, lease, end, true),
	})
	if err != nil {
		return fmt.Errorf("mvcc: opening an iterator over attachments: %w", err)
	}
	versions, err := it.Clone(pebble.CloneOptions{IterOptions: &pointOptions})
	if err == nil {
		err = leaseKeys(it, versions, lease, visit)
		if cerr := versions.Close(); err == nil {
			err = cerr
		}
	}
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("mvcc: reading the keys of lease %x: %w", uint64(lease), err)
	}
	return nil
}

func leaseKeys(it, versions *pebble.Iterator, lease ids.LeaseID, visit func(user []byte) (bool, error)) error {
	var k []byte
	for ok := it.First(); ok; ok = it.Next() {
		_, user, err := key.DecodeLease(it.Key())
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		k = key.AppendSeek(k[:0], user, Latest)
		s, _, err := seek(versions, k, false)
		if err != nil {
			return err
		}
		if s.Lease != lease {
			continue // left over, see the package comment
		}
		if more, err := visit(user); err != nil || !more {
			return err
		}
	}
	return it.Error()
}
