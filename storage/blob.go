package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
)

// warnOfBlobs looks at the end of each file of separated values and warns of those that are damaged there. One that a
// crash has torn while it was written is harmless: nothing refers to it, and the engine removes it. But when the engine comes upon such damage in a file
// that is in use, it panics without naming it (v2.1.7), so that this line is all there is to go by.
func (e *Engines) warnOfBlobs() error {
	dir := e.path(dataDir)
	names, err := e.fs.List(dir)
	if err != nil {
		return fmt.Errorf("storage: listing %s: %w", dir, err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".blob") {
			continue
		}
		path := e.fs.PathJoin(dir, name)
		if err := e.checkBlob(path); err != nil {
			e.opts.Logger.Warn("file of values is damaged or was being written at a crash", "path", path, "err", err)
		}
	}
	return nil
}

func (e *Engines) checkBlob(path string) error {
	f, err := e.fs.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := blob.NewFileReader(context.Background(), readable, blob.FileReaderOptions{})
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	return r.Close()
}
