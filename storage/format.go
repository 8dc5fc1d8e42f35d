package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FormatVersion is that of the directory and of everything below it.
const FormatVersion = 1

// formatFile is the name of the file that says what a directory is.
const formatFile = "FORMAT"

// Identity says whose directory it is.
type Identity struct {
	ClusterID uint64 `json:"cluster_id"`
	NodeID    uint64 `json:"node_id"`
	Token     string `json:"token"`
}

// format is the first line of FORMAT; the second is its checksum.
type format struct {
	Format   int       `json:"braid_format"`
	Identity *Identity `json:"identity,omitempty"`
}

// Identity is what SetIdentity stored, if anything.
func (e *Engines) Identity() (Identity, bool) {
	if e.identity == nil {
		return Identity{}, false
	}
	return *e.identity, true
}

// SetIdentity stores whose directory it is, durably.
func (e *Engines) SetIdentity(id Identity) error {
	if err := e.writeFormat(&id); err != nil {
		return err
	}
	e.identity = &id
	return nil
}

// readFormat reads FORMAT, or writes it if the directory is new.
func (e *Engines) readFormat() error {
	path := e.path(formatFile)
	f, err := e.fs.Open(path)
	if errors.Is(err, iofs.ErrNotExist) {
		// FORMAT is durable before the engines exist, so an engine without it has lost it, and with it the node's identity.
		for _, name := range []string{logDir, dataDir} {
			if _, err := e.fs.Stat(e.path(name)); err == nil {
				return fmt.Errorf("storage: %s is missing, but %s exists", path, e.path(name))
			} else if !errors.Is(err, iofs.ErrNotExist) {
				return fmt.Errorf("storage: looking for %s: %w", e.path(name), err)
			}
		}
		return e.writeFormat(nil)
	}
	if err != nil {
		return fmt.Errorf("storage: opening %s: %w", path, err)
	}
	text, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("storage: reading %s: %w", path, err)
	}
	line, sum, _ := bytes.Cut(text, []byte("\n"))
	if string(sum) != checksum(line) {
		return fmt.Errorf("%w: %s: checksum", ErrCorrupt, path)
	}
	var ff format
	if err := json.Unmarshal(line, &ff); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err)
	}
	if ff.Format != FormatVersion {
		return fmt.Errorf("%w: %s says %d, this version of braid knows %d", ErrFormat, path, ff.Format, FormatVersion)
	}
	e.identity = ff.Identity
	return nil
}

// writeFormat replaces FORMAT, atomically and durably.
func (e *Engines) writeFormat(id *Identity) error {
	text, err := json.Marshal(format{Format: FormatVersion, Identity: id})
	if err != nil {
		return fmt.Errorf("storage: encoding the format: %w", err)
	}
	text = append(append(text, '\n'), checksum(text)...)
	path, tmp := e.path(formatFile), e.path(formatFile+".tmp")
	f, err := e.fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("storage: creating %s: %w", tmp, err)
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("storage: writing %s: %w", tmp, err)
	}
	if err := e.fs.Rename(tmp, path); err != nil {
		return fmt.Errorf("storage: renaming %s: %w", tmp, err)
	}
	return syncDir(e.fs, e.opts.Dir)
}

// checksum is the second line of FORMAT.
func checksum(line []byte) string {
	return fmt.Sprintf("crc32c %08x\n", crc32.Checksum(line, castagnoli))
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("storage: opening %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("storage: syncing %s: %w", dir, err)
	}
	return nil
}

// makeDir makes a directory and those above it, durably: a crash must not take away a directory that things were stored in.
func makeDir(fs vfs.FS, dir string) error {
	var missing []string
	for d := dir; ; d = fs.PathDir(d) {
		if _, err := fs.Stat(d); err == nil {
			break
		} else if !errors.Is(err, iofs.ErrNotExist) {
			return fmt.Errorf("storage: looking for %s: %w", d, err)
		}
		missing = append(missing, d)
		if fs.PathDir(d) == d {
			break
		}
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("storage: creating %s: %w", dir, err)
	}
	for _, d := range missing {
		if parent := fs.PathDir(d); parent != d {
			if err := syncDir(fs, parent); err != nil {
				return err
			}
		}
	}
	return nil
}
