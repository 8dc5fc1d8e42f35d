package mvcc

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Hash is a checksum of what a span holds at a revision after a compaction: for each key the versions in
// (compaction, rev] and the one in force at the compaction. It is equal on all replicas, whatever
// compaction has already removed there and however the engine stores it.
func Hash(r Reader, start, end []byte, compaction, rev ids.Revision) (uint32, error) {
	it, err := r.NewIter(&pebble.IterOptions{
		LowerBound: key.AppendBound(nil, start, false), UpperBound: key.AppendBound(nil, end, true),
	})
	if err != nil {
		return 0, fmt.Errorf("mvcc: opening an iterator: %w", err)
	}
	h, err := hash(it, compaction, rev)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return 0, fmt.Errorf("mvcc: hashing at %d: %w", rev, err)
	}
	return h, nil
}

func hash(it *pebble.Iterator, compaction, rev ids.Revision) (uint32, error) {
	var sum uint32
	var n [4]byte
	for ok := it.First(); ok; {
		k := it.Key()
		mod, tombstone, valid := key.DecodeMod(k)
		if !valid {
			return 0, fmt.Errorf("%w: key %x", ErrCorrupt, k)
		}
		if mod > rev {
			ok = it.Next()
			continue
		}
		if !(tombstone && mod < compaction) {
			v, err := it.ValueAndErr()
			if err != nil {
				return 0, err
			}
			for _, b := range [][]byte{k, v} {
				binary.BigEndian.PutUint32(n[:], uint32(len(b)))
				sum = crc32.Update(sum, castagnoli, n[:])
				sum = crc32.Update(sum, castagnoli, b)
			}
		}
		if mod <= compaction {
			ok = it.NextPrefix() // older ones are superseded
		} else {
			ok = it.Next()
		}
	}
	return sum, it.Error()
}
