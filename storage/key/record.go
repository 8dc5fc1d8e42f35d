package key

import (
	"encoding/binary"

	"github.com/braidkv/braid/internal/ids"
)

// Replica makes the key of a replica's record.
func Replica(r ids.RangeID, what byte, suffix ...byte) []byte {
	k := binary.BigEndian.AppendUint64(append(make([]byte, 0, 10+len(suffix)), PrefixReplica), uint64(r))
	return append(append(k, what), suffix...)
}

// ReplicaBounds are the bounds of all records of a replica: lower inclusive, upper exclusive.
func ReplicaBounds(r ids.RangeID) (lower, upper []byte) {
	lower = binary.BigEndian.AppendUint64([]byte{PrefixReplica}, uint64(r))
	if r+1 == 0 {
		return lower, []byte{PrefixReplica + 1}
	}
	upper = binary.BigEndian.AppendUint64([]byte{PrefixReplica}, uint64(r)+1)
	return lower, upper
}

// Order makes the key of a record of the order state.
func Order(what byte, suffix ...byte) []byte {
	return append(append(make([]byte, 0, 2+len(suffix)), PrefixOrder, what), suffix...)
}

// Store makes the key of a record of the store itself.
func Store(name string) []byte { return append([]byte{PrefixStore}, name...) }
