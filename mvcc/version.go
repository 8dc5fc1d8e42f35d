package mvcc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
)

// formatVersion is the first byte of every value under k and e.
const formatVersion = 1

// ErrCorrupt says that the engine holds bytes which mvcc has not written.
var ErrCorrupt = errors.New("mvcc: corrupt record")

// KeyState is what a key was at a revision, without its value. The zero KeyState is a key that does not exist.
type KeyState struct {
	Create, Mod ids.Revision
	Version     int64
	Lease       ids.LeaseID
	Sub         uint32
}

// Exists tells whether there is such a key.
func (s KeyState) Exists() bool { return s.Version != 0 }

func appendVersion(dst []byte, s KeyState, value []byte) []byte {
	dst = append(dst, formatVersion)
	dst = binary.AppendUvarint(dst, uint64(s.Create))
	dst = binary.AppendUvarint(dst, uint64(s.Version))
	dst = binary.AppendUvarint(dst, uint64(s.Sub))
	dst = binary.AppendVarint(dst, int64(s.Lease))
	return append(dst, value...)
}

func appendTombstone(dst []byte, sub uint32) []byte {
	return binary.AppendUvarint(append(dst, formatVersion), uint64(sub))
}

// decodeVersion reads what appendVersion wrote; the value shares b's memory. Mod is the caller's to set.
func decodeVersion(b []byte) (s KeyState, value []byte, err error) {
	if len(b) < 5 || b[0] != formatVersion {
		return KeyState{}, nil, fmt.Errorf("%w: version of %d bytes", ErrCorrupt, len(b))
	}
	i, ok := 1, true
	next := func() uint64 {
		v, n := binary.Uvarint(b[i:])
		if n <= 0 {
			ok = false
			return 0
		}
		i += n
		return v
	}
	create, version, sub, lease := next(), next(), next(), next()
	if !ok || version == 0 {
		return KeyState{}, nil, fmt.Errorf("%w: version of %d bytes", ErrCorrupt, len(b))
	}
	s = KeyState{Create: ids.Revision(create), Version: int64(version), Sub: uint32(sub), Lease: ids.LeaseID(unzigzag(lease))}
	return s, b[i:], nil
}

func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

// keyValue makes etcd's form of a version. key and value must not be reused.
func keyValue(key []byte, s KeyState, value []byte) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: key, Value: value, CreateRevision: int64(s.Create), ModRevision: int64(s.Mod),
		Version: s.Version, Lease: int64(s.Lease),
	}
}
