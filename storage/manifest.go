package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrCorrupt says that a file is damaged; the error around it names the file.
var ErrCorrupt = errors.New("storage: file is corrupt")

// checkManifest looks for damage in the middle of an engine's manifest. Pebble takes whatever record it cannot read for the end of
// the file, as a crash leaves it, and would go on with the tables of long ago. But each record is synced before the next one is written, so
// nothing valid follows what a crash has torn.
//
// Damage of the very last record cannot be told from a crash. Then the tables or logs of before are missed, or raftlog finds that state and log do not fit.
func checkManifest(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	desc, err := pebble.Peek(dir, fs)
	if err != nil {
		return fmt.Errorf("storage: looking into %s: %w", dir, err)
	}
	if !desc.Exists {
		return nil
	}
	path := desc.ManifestFilename
	f, err := fs.Open(path)
	if err != nil {
		return fmt.Errorf("storage: opening %s: %w", path, err)
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("storage: reading %s: %w", path, err)
	}
	bad := badChunk(b)
	for at := bad + 1; at > 0 && at < len(b); at++ {
		if n, begins := chunk(b, at); n > 0 && begins {
			return fmt.Errorf("%w: %s at offset %d", ErrCorrupt, path, bad)
		}
	}
	return nil
}

// A manifest is a sequence of chunks, none of which crosses the border of a block. A chunk has a header of checksum (4 bytes),
// length (2) and type (1): whole, first, middle or last part of a record.
const (
	chunkBlock  = 32 << 10
	chunkHeader = 7

	chunkWhole = 1
	chunkFirst = 2
	chunkLast  = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// badChunk is where the first chunk begins that is not valid, -1 if there is none.
func badChunk(b []byte) int {
	for at := 0; at < len(b); {
		if left := chunkBlock - at%chunkBlock; left < chunkHeader {
			at += left
			continue
		}
		n, _ := chunk(b, at)
		if n == 0 {
			return at
		}
		at += n
	}
	return -1
}

// chunk is the length of the chunk at an offset, zero if there is no valid one, and whether a record begins with it.
func chunk(b []byte, at int) (n int, begins bool) {
	end := min(len(b), at-at%chunkBlock+chunkBlock)
	if end-at < chunkHeader {
		return 0, false
	}
	h := b[at:]
	n = chunkHeader + int(binary.LittleEndian.Uint16(h[4:]))
	if n > end-at || h[6] < chunkWhole || h[6] > chunkLast {
		return 0, false
	}
	c := crc32.Checksum(h[6:n], castagnoli)
	if binary.LittleEndian.Uint32(h) != (c>>15|c<<17)+0xa282ead8 {
		return 0, false
	}
	return n, h[6] <= chunkFirst
}
