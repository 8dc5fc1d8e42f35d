package order

import (
	"encoding/binary"
	"fmt"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// Records of the order state in the data engine: 'o', kind, suffix (numbers big-endian, 8 bytes).
const (
	recordConf     = 'c' // ConfRecord
	recordDecision = 'd' // node, incarnation, counter -> decision
	recordHeader   = 'h' // position, revision and what else is one of
	recordItems    = 'i' // range, position -> items
	recordMember   = 'm' // ID -> Member
	recordRange    = 'r' // range -> OrderRange
)

// recordVersion is the first byte of every record's value.
const recordVersion = 1

func appendKey(dst []byte, what byte, suffix ...uint64) []byte {
	dst = append(dst, key.PrefixOrder, what)
	for _, n := range suffix {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return dst
}

func appendItemKey(dst []byte, r ids.RangeID, p ids.Position) []byte {
	dst = append(dst, key.PrefixOrder, recordItems)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r))
	return binary.BigEndian.AppendUint64(dst, uint64(p))
}

func appendDecisionKey(dst []byte, t ids.TxnID) []byte {
	return appendKey(dst, recordDecision, uint64(t.Node), t.Incarnation, t.Counter)
}

// suffixOf reads the n numbers behind a key's kind.
func suffixOf(k []byte, n int) ([3]uint64, error) {
	var out [3]uint64
	if len(k) != 2+8*n {
		return out, fmt.Errorf("%w: key %x", ErrCorrupt, k)
	}
	for i := range n {
		out[i] = binary.BigEndian.Uint64(k[2+8*i:])
	}
	return out, nil
}
