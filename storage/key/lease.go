package key

import (
	"encoding/binary"
	"math"

	"github.com/braidkv/braid/internal/ids"
)

// AppendLeasePrefix appends what all attachments of a lease begin with.
func AppendLeasePrefix(dst []byte, lease ids.LeaseID) []byte {
	// The sign bit is flipped so that negative IDs sort first.
	return binary.BigEndian.AppendUint64(append(dst, PrefixLease), uint64(lease)^1<<63)
}

// AppendLease appends the key of an attachment.
func AppendLease(dst []byte, lease ids.LeaseID, user []byte) []byte {
	return appendEscaped(AppendLeasePrefix(dst, lease), user)
}

// AppendLeaseBound appends the bound of the attachments of a lease whose user keys lie in a span; an empty user as an end stands for the
// end of the key space.
func AppendLeaseBound(dst []byte, lease ids.LeaseID, user []byte, end bool) []byte {
	switch {
	case end && len(user) == 0 && lease == math.MaxInt64:
		return append(dst, PrefixLease+1)
	case end && len(user) == 0:
		return AppendLeasePrefix(dst, lease+1)
	case len(user) == 0:
		return AppendLeasePrefix(dst, lease)
	}
	return AppendLease(dst, lease, user)
}

// DecodeLease is the inverse of AppendLease. The user key shares k's memory unless something was escaped.
func DecodeLease(k []byte) (lease ids.LeaseID, user []byte, err error) {
	if len(k) < 1+8+2 || k[0] != PrefixLease {
		return 0, nil, malformed(k, "attachment")
	}
	user, ok := unescape(k[9:])
	if !ok {
		return 0, nil, malformed(k, "attachment")
	}
	return ids.LeaseID(binary.BigEndian.Uint64(k[1:]) ^ 1<<63), user, nil
}
