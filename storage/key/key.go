// Package key encodes and decodes every key of the data engine, and holds the engine's comparer. The order of the
// encoded keys is the order of what they stand for. (The keys of the log engine are raftlog's.)
//
//	k <user key, escaped> <terminator> <revision, inverted: 8> <tombstone: 1>   a version of a user key, newest first
//	e <revision: 8> <sub: 4>                                                    the event index
//	l <lease: 8> <user key, escaped> <terminator>                               what is attached to a lease
//	r <range: 8> <what: 1> <suffix>                                             records of a replica
//	o <what: 1> <suffix>                                                        records of the order state
//	s <name>                                                                    records of the store itself
//
// User keys are escaped so that one is never the beginning of another and their order is kept: 0x00 becomes 0x00 0xff, and the
// terminator is 0x00 0x01.
package key

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/braidkv/braid/internal/ids"
)

// The first byte of a key says what it is.
const (
	PrefixUser    = 'k'
	PrefixEvent   = 'e'
	PrefixLease   = 'l'
	PrefixReplica = 'r'
	PrefixOrder   = 'o'
	PrefixStore   = 's'
)

const (
	escape     = 0x00
	escapedNul = 0xff
	terminator = 0x01

	versionLen = 9
)

// ErrCorrupt says that bytes are not a key of the kind asked for.
var ErrCorrupt = errors.New("key: malformed")

func appendEscaped(dst, user []byte) []byte {
	for {
		i := bytes.IndexByte(user, escape)
		if i < 0 {
			return append(append(dst, user...), escape, terminator)
		}
		dst = append(append(dst, user[:i]...), escape, escapedNul)
		user = user[i+1:]
	}
}

// splitEscaped finds the end of an escaped user key (behind its terminator), or -1.
func splitEscaped(k []byte) (end int, plain bool) {
	plain = true
	for i := 0; ; {
		j := bytes.IndexByte(k[i:], escape)
		if j < 0 || i+j+1 >= len(k) {
			return -1, false
		}
		i += j + 2
		switch k[i-1] {
		case terminator:
			return i, plain
		case escapedNul:
			plain = false
		default:
			return -1, false
		}
	}
}

// unescape returns the user key in an escaped one of length end. The result shares k's memory if nothing was escaped.
func unescape(k []byte, end int, plain bool) []byte {
	k = k[: end-2 : end-2]
	if plain {
		return k
	}
	out := make([]byte, 0, len(k))
	for {
		i := bytes.IndexByte(k, escape)
		if i < 0 {
			return append(out, k...)
		}
		out = append(out, k[:i+1]...)
		k = k[i+2:]
	}
}

// AppendUser appends the beginning that all versions of a user key share. It sorts before all of them.
func AppendUser(dst, user []byte) []byte {
	return appendEscaped(append(dst, PrefixUser), user)
}

// AppendBound appends the bound of a span of user keys: all versions of user keys at or above user sort at or above it, all
// versions of lower ones below. An empty user as an end stands for the end of the key space.
func AppendBound(dst, user []byte, end bool) []byte {
	if end && len(user) == 0 {
		return append(dst, PrefixUser+1)
	}
	if len(user) == 0 {
		return append(dst, PrefixUser)
	}
	return AppendUser(dst, user)
}

// AppendVersion appends the key of a version. Newer versions sort first; a tombstone, which no other version
// shares its revision with, carries a mark.
func AppendVersion(dst, user []byte, rev ids.Revision, tombstone bool) []byte {
	return AppendSuffix(AppendUser(dst, user), rev, tombstone)
}

// AppendSuffix appends the version part to what AppendUser made.
func AppendSuffix(dst []byte, rev ids.Revision, tombstone bool) []byte {
	dst = binary.BigEndian.AppendUint64(dst, ^uint64(rev))
	if tombstone {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// DecodeVersion is the inverse of AppendVersion. The user key may share k's memory.
func DecodeVersion(k []byte) (user []byte, rev ids.Revision, tombstone bool, err error) {
	if len(k) < 1+2+versionLen || k[0] != PrefixUser {
		return nil, 0, false, fmt.Errorf("%w: %x is not a version", ErrCorrupt, k)
	}
	end, plain := splitEscaped(k[1:])
	if end < 0 || len(k) != 1+end+versionLen || k[len(k)-1] > 1 {
		return nil, 0, false, fmt.Errorf("%w: %x is not a version", ErrCorrupt, k)
	}
	rev, tombstone = DecodeSuffix(k[1+end:])
	return unescape(k[1:], end, plain), rev, tombstone, nil
}

// DecodeSuffix reads the version part of a version's key, its last bytes.
func DecodeSuffix(k []byte) (rev ids.Revision, tombstone bool) {
	k = k[len(k)-versionLen:]
	return ids.Revision(^binary.BigEndian.Uint64(k)), k[8] == 1
}

// DecodeUser reads the user key of a version's key. It may share k's memory.
func DecodeUser(k []byte) ([]byte, error) {
	user, _, _, err := DecodeVersion(k)
	return user, err
}

// AppendEvent appends the key of an event.
func AppendEvent(dst []byte, rev ids.Revision, sub uint32) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, PrefixEvent), uint64(rev))
	return binary.BigEndian.AppendUint32(dst, sub)
}

// DecodeEvent is the inverse of AppendEvent.
func DecodeEvent(k []byte) (rev ids.Revision, sub uint32, err error) {
	if len(k) != 13 || k[0] != PrefixEvent {
		return 0, 0, fmt.Errorf("%w: %x is not an event", ErrCorrupt, k)
	}
	return ids.Revision(binary.BigEndian.Uint64(k[1:])), binary.BigEndian.Uint32(k[9:]), nil
}

// AppendLeasePrefix appends what all attachments of a lease begin with.
func AppendLeasePrefix(dst []byte, lease ids.LeaseID) []byte {
	// The sign bit is flipped so that negative IDs sort first.
	return binary.BigEndian.AppendUint64(append(dst, PrefixLease), uint64(lease)^1<<63)
}

// AppendLease appends the key of an attachment.
func AppendLease(dst []byte, lease ids.LeaseID, user []byte) []byte {
	return appendEscaped(AppendLeasePrefix(dst, lease), user)
}

// DecodeLease is the inverse of AppendLease. The user key may share k's memory.
func DecodeLease(k []byte) (lease ids.LeaseID, user []byte, err error) {
	if len(k) < 1+8+2 || k[0] != PrefixLease {
		return 0, nil, fmt.Errorf("%w: %x is not an attachment", ErrCorrupt, k)
	}
	end, plain := splitEscaped(k[9:])
	if end != len(k)-9 {
		return 0, nil, fmt.Errorf("%w: %x is not an attachment", ErrCorrupt, k)
	}
	return ids.LeaseID(binary.BigEndian.Uint64(k[1:]) ^ 1<<63), unescape(k[9:], end, plain), nil
}

// Replica makes the key of a replica's record.
func Replica(r ids.RangeID, what byte, suffix ...byte) []byte {
	k := binary.BigEndian.AppendUint64(append(make([]byte, 0, 10+len(suffix)), PrefixReplica), uint64(r))
	return append(append(k, what), suffix...)
}

// ReplicaBounds are the bounds of all records of a replica.
func ReplicaBounds(r ids.RangeID) (lower, upper []byte) {
	lower = binary.BigEndian.AppendUint64([]byte{PrefixReplica}, uint64(r))
	upper = binary.BigEndian.AppendUint64([]byte{PrefixReplica}, uint64(r)+1)
	return lower, upper
}

// Order makes the key of a record of the order state.
func Order(what byte, suffix ...byte) []byte {
	return append(append(make([]byte, 0, 2+len(suffix)), PrefixOrder, what), suffix...)
}

// Store makes the key of a record of the store itself.
func Store(name string) []byte { return append([]byte{PrefixStore}, name...) }
