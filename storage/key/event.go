package key

import (
	"encoding/binary"

	"github.com/braidkv/braid/internal/ids"
)

// AppendEvent appends the key of an event.
func AppendEvent(dst []byte, rev ids.Revision, sub uint32) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, PrefixEvent), uint64(rev))
	return binary.BigEndian.AppendUint32(dst, sub)
}

// DecodeEvent is the inverse of AppendEvent.
func DecodeEvent(k []byte) (rev ids.Revision, sub uint32, err error) {
	if len(k) != 13 || k[0] != PrefixEvent {
		return 0, 0, malformed(k, "event")
	}
	return ids.Revision(binary.BigEndian.Uint64(k[1:])), binary.BigEndian.Uint32(k[9:]), nil
}
