package storage

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Errors of Open.
var (
	ErrFormat = errors.New("storage: unknown format version")
	ErrInUse  = errors.New("storage: directory is in use by another process")
)

// The directories below that of the node. What is in tmp is nobody's after a restart.
const (
	logDir  = "log"
	dataDir = "data"
	tmpDir  = "tmp"
)

// Engines are the two engines of a node. They may be used by any goroutine.
type Engines struct {
	Log, Data *pebble.DB

	opts     Options
	fs       vfs.FS
	dataOpts *pebble.Options
	cache    *pebble.Cache
	lock     *pebble.Lock
	identity *Identity
}

// Open creates or opens a directory. One process has it at a time, else ErrInUse; another format than
// FormatVersion is ErrFormat. An error about a corrupt file names the file; Open sees damage of what it reads, the rest is
// seen when it is read.
func Open(o Options) (*Engines, error) {
	o.setDefaults()
	e := &Engines{opts: o, fs: o.FS}
	if o.NoSync {
		e.fs = noSyncFS{o.FS}
	}
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Engines) open() error {
	err := makeDir(e.fs, e.opts.Dir)
	if err != nil {
		return err
	}
	if e.lock, err = pebble.LockDirectory(e.opts.Dir, e.fs); err != nil {
		return fmt.Errorf("%w: %s: %v", ErrInUse, e.opts.Dir, err)
	}
	if err := e.readFormat(); err != nil {
		return err
	}
	tmp := e.path(tmpDir)
	if err := errors.Join(e.fs.RemoveAll(tmp), e.fs.MkdirAll(tmp, 0o700)); err != nil {
		return fmt.Errorf("storage: clearing %s: %w", tmp, err)
	}
	if err := errors.Join(checkManifest(e.fs, e.path(logDir)), checkManifest(e.fs, e.path(dataDir))); err != nil {
		return err
	}
	e.cache = pebble.NewCache(e.opts.CacheBytes)
	if e.Log, err = pebble.Open(e.path(logDir), e.logOptions()); err != nil {
		return fmt.Errorf("storage: opening the log engine in %s: %w%s", e.path(logDir), err, e.namedLogs(err))
	}
	if _, err := e.fs.Stat(e.path(dataDir)); err == nil {
		if err := e.warnOfBlobs(); err != nil {
			return err
		}
	}
	e.dataOpts = e.dataOptions()
	if e.Data, err = pebble.Open(e.path(dataDir), e.dataOpts); err != nil {
		return fmt.Errorf("storage: opening the data engine in %s: %w", e.path(dataDir), err)
	}
	return nil
}

// namedLogs names the write-ahead logs, if an error is about one of them: the engine does not say which.
func (e *Engines) namedLogs(err error) string {
	if !errors.Is(err, record.ErrInvalidChunk) && !errors.Is(err, record.ErrZeroedChunk) && !errors.Is(err, record.ErrUnexpectedEOF) {
		return ""
	}
	names, err := e.fs.List(e.path(logDir))
	if err != nil {
		return ""
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".log") })
	slices.Sort(names)
	return " (one of " + strings.Join(names, ", ") + ")"
}

func (e *Engines) path(name string) string { return e.fs.PathJoin(e.opts.Dir, name) }

// FlushData writes the data engine's memtables out. When it returns, every batch committed to data before the call is durable.
func (e *Engines) FlushData() error {
	if err := e.Data.Flush(); err != nil {
		return fmt.Errorf("storage: flushing the data engine: %w", err)
	}
	return nil
}

// DiskUsage is what the engines take on disk, in bytes.
func (e *Engines) DiskUsage() (log, data int64) {
	return int64(e.Log.Metrics().DiskSpaceUsage()), int64(e.Data.Metrics().DiskSpaceUsage())
}

// FS is the file system that the engines are on.
func (e *Engines) FS() vfs.FS { return e.fs }

// TemporaryPath is where a temporary file of a name may be made. What is left of an earlier process is removed by Open.
func (e *Engines) TemporaryPath(name string) string {
	return e.fs.PathJoin(e.path(tmpDir), name)
}

// TableOptions are for tables that the data engine is to ingest.
func (e *Engines) TableOptions() sstable.WriterOptions {
	return e.dataOpts.MakeWriterOptions(0, e.Data.TableFormat())
}

// Close closes both engines, data first: whoever follows its progress reads the logs. What data has not flushed is lost (and applied
// again from the logs at the next start): a node that stops in peace calls FlushData before. Iterators and snapshots must be
// closed before. Nothing may be called after Close.
func (e *Engines) Close() error {
	var errs []error
	if e.Data != nil {
		errs = append(errs, e.Data.Close())
	}
	if e.Log != nil {
		errs = append(errs, e.Log.Close())
	}
	if e.cache != nil {
		e.cache.Unref()
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("storage: closing %s: %w", e.opts.Dir, err)
	}
	return nil
}
