package key

import (
	"encoding/binary"
	"fmt"

	"github.com/braidkv/braid/internal/ids"
)

// State is what a key is at a revision, without its value. Version is zero if the key does not exist there;
// then Create and Lease are zero too, and Mod and Sub are those of the deletion, if known.
type State struct {
	Create, Mod ids.Revision
	Version     int64
	Lease       ids.LeaseID
	Sub         uint32
}

// Exists tells whether there is such a key.
func (s State) Exists() bool { return s.Version != 0 }

const (
	// Kinds lie above seekLen, so that the place which AppendSeek makes sorts before all versions of its revision.
	kindPut       = 0x10
	kindTombstone = 0x11

	seekLen       = 8 + 1         // revision, length
	minVersionLen = 8 + 1 + 1 + 1 // revision, kind, at least one field, length
	maxVersionLen = 8 + 1 + 3*binary.MaxVarintLen64 + binary.MaxVarintLen32 + 1
)

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

// AppendVersion appends the key of a version, a tombstone if s does not exist. Newer versions sort first.
func AppendVersion(dst, user []byte, s State) []byte {
	return appendVersion(AppendUser(dst, user), s)
}

func appendVersion(dst []byte, s State) []byte {
	n := len(dst)
	dst = binary.BigEndian.AppendUint64(dst, ^uint64(s.Mod))
	if s.Exists() {
		dst = AppendFields(append(dst, kindPut), s)
	} else {
		dst = binary.AppendUvarint(append(dst, kindTombstone), uint64(s.Sub))
	}
	return append(dst, byte(len(dst)-n+1))
}

// AppendFields appends what there is to know of an existing key besides its name and Mod.
func AppendFields(dst []byte, s State) []byte {
	dst = binary.AppendUvarint(dst, uint64(s.Mod-s.Create))
	dst = binary.AppendUvarint(dst, uint64(s.Version))
	dst = binary.AppendUvarint(dst, uint64(s.Sub))
	return binary.AppendVarint(dst, int64(s.Lease))
}

// DecodeFields is the inverse of AppendFields for the Mod given; n is how many bytes of b it took, zero if b is malformed.
func DecodeFields(b []byte, mod ids.Revision) (s State, n int) {
	age, n1 := binary.Uvarint(b)
	if n1 <= 0 {
		return State{}, 0
	}
	version, n2 := binary.Uvarint(b[n1:])
	if n2 <= 0 {
		return State{}, 0
	}
	sub, n3 := binary.Uvarint(b[n1+n2:])
	if n3 <= 0 {
		return State{}, 0
	}
	lease, n4 := binary.Varint(b[n1+n2+n3:])
	s = State{Create: mod - ids.Revision(age), Mod: mod, Version: int64(version), Sub: uint32(sub), Lease: ids.LeaseID(lease)}
	if n4 <= 0 || s.Version <= 0 || uint64(s.Sub) != sub || mod < 0 || age > uint64(mod) {
		return State{}, 0
	}
	return s, n1 + n2 + n3 + n4
}

// AppendSeek appends the place before the newest version at or below a revision.
func AppendSeek(dst, user []byte, rev ids.Revision) []byte {
	return AppendSeekFrom(AppendUser(dst, user), rev)
}

// AppendSeekFrom is AppendSeek behind what AppendUser made. What it makes is no version but splits like one.
func AppendSeekFrom(dst []byte, rev ids.Revision) []byte {
	return append(binary.BigEndian.AppendUint64(dst, ^uint64(rev)), seekLen)
}

// suffixLen is the length of what follows, in the key of a version or a place to seek to, that which all versions of the user key share; zero
// if k is neither.
func suffixLen(k []byte) int {
	if len(k) < 1+2+seekLen || k[0] != PrefixUser {
		return 0
	}
	n := int(k[len(k)-1])
	if n < seekLen || n > maxVersionLen || n > len(k)-3 || k[len(k)-n-1] != terminator || k[len(k)-n-2] != escape {
		return 0
	}
	return n
}

// Prefix is the part of a version's key that all versions of the user key share, what AppendUser makes. It shares k's memory.
func Prefix(k []byte) []byte {
	n := len(k) - suffixLen(k)
	return k[:n:n]
}

// versionLen is suffixLen for versions alone.
func versionLen(k []byte) int {
	if n := suffixLen(k); n >= minVersionLen {
		return n
	}
	return 0
}

// DecodeMod reads only the revision of a version, and whether it is a tombstone. It is false in ok if k is not the key of a version.
func DecodeMod(k []byte) (rev ids.Revision, tombstone, ok bool) {
	n := versionLen(k)
	if n == 0 {
		return 0, false, false
	}
	v := k[len(k)-n:]
	return ids.Revision(^binary.BigEndian.Uint64(v)), v[8] == kindTombstone, v[8] == kindPut || v[8] == kindTombstone
}

// DecodeState reads all of a version's key but the user key.
func DecodeState(k []byte) (State, error) {
	n := versionLen(k)
	if n == 0 {
		return State{}, malformed(k, "version")
	}
	v := k[len(k)-n : len(k)-1]
	mod, fields := ids.Revision(^binary.BigEndian.Uint64(v)), v[9:]
	switch v[8] {
	case kindPut:
		if s, m := DecodeFields(fields, mod); m > 0 && m == len(fields) {
			return s, nil
		}
	case kindTombstone:
		if sub, m := binary.Uvarint(fields); m > 0 && m == len(fields) && sub == uint64(uint32(sub)) {
			return State{Mod: mod, Sub: uint32(sub)}, nil
		}
	}
	return State{}, malformed(k, "version")
}

// DecodeUser reads the user key of a version's key. It shares k's memory unless something was escaped.
func DecodeUser(k []byte) ([]byte, error) {
	n := versionLen(k)
	if n == 0 {
		return nil, malformed(k, "version")
	}
	user, ok := unescape(k[1 : len(k)-n])
	if !ok {
		return nil, malformed(k, "version")
	}
	return user, nil
}

// DecodeVersion is the inverse of AppendVersion. The user key shares k's memory unless something was escaped.
func DecodeVersion(k []byte) (user []byte, s State, err error) {
	if user, err = DecodeUser(k); err != nil {
		return nil, State{}, err
	}
	s, err = DecodeState(k)
	return user, s, err
}

func malformed(k []byte, what string) error {
	return fmt.Errorf("%w: %x is not the key of a %s", ErrCorrupt, k, what)
}
