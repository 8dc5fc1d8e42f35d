package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/storage/key"
)

// FormatVersion is that of the directory and of everything below it.
const FormatVersion = 1

// Errors of Open.
var (
	ErrFormat = errors.New("storage: unknown format version")
	ErrInUse  = errors.New("storage: directory is in use by another process")
)

// Options say where and how to open. Zero limits stand for the defaults.
type Options struct {
	FS  vfs.FS
	Dir string
	// CacheBytes is the block cache of both engines together (default 64 MiB).
	CacheBytes int64
	// MemTableBytes is the data engine's (default 32 MiB); it is what a restart at most replays, twice.
	MemTableBytes uint64
	// NoSync leaves out every fsync.
	NoSync bool
	Logger *slog.Logger
	// OnBackgroundError is told of failed flushes and compactions, on any goroutine. The node must stop.
	OnBackgroundError func(error)
}

// Engines are the two engines of a node.
type Engines struct {
	Log, Data *pebble.DB

	opts     Options
	dataOpts *pebble.Options
	cache    *pebble.Cache
	lock     *pebble.Lock
	identity *Identity
}

// Identity says whose directory it is.
type Identity struct {
	ClusterID uint64 `json:"cluster_id"`
	NodeID    uint64 `json:"node_id"`
	Token     string `json:"token"`
}

// formatFile is the content of FORMAT.
type formatFile struct {
	Format   int       `json:"braid_format"`
	Identity *Identity `json:"identity,omitempty"`
}

// Open creates or opens a directory.
func Open(o Options) (*Engines, error) {
	if o.CacheBytes == 0 {
		o.CacheBytes = 128 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 8 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := makeDir(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("storage: creating %s: %w", o.Dir, err)
	}
	lock, err := pebble.LockDirectory(o.Dir, o.FS)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrInUse, o.Dir, err)
	}
	e := &Engines{opts: o, lock: lock}
	if err := e.open(); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// makeDir makes a directory that outlives a power loss: every directory above it is synced.
func makeDir(fs vfs.FS, dir string) error {
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for above := fs.PathDir(dir); ; above = fs.PathDir(above) {
		d, err := fs.OpenDir(above)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
		if above == fs.PathDir(above) {
			return nil
		}
	}
}

func (e *Engines) open() error {
	if err := e.readFormat(); err != nil {
		return err
	}
	tmp := e.opts.FS.PathJoin(e.opts.Dir, "tmp")
	if err := errors.Join(e.opts.FS.RemoveAll(tmp), e.opts.FS.MkdirAll(tmp, 0o700)); err != nil {
		return fmt.Errorf("storage: clearing %s: %w", tmp, err)
	}
	e.cache = pebble.NewCache(e.opts.CacheBytes)
	var err error
	if e.Log, err = pebble.Open(e.opts.FS.PathJoin(e.opts.Dir, "log"), e.logOptions()); err != nil {
		return fmt.Errorf("storage: opening the log engine in %s: %w", e.opts.Dir, err)
	}
	e.dataOpts = e.dataOptions()
	if e.Data, err = pebble.Open(e.opts.FS.PathJoin(e.opts.Dir, "data"), e.dataOpts); err != nil {
		return fmt.Errorf("storage: opening the data engine in %s: %w", e.opts.Dir, err)
	}
	return nil
}

func (e *Engines) readFormat() error {
	path := e.opts.FS.PathJoin(e.opts.Dir, "FORMAT")
	f, err := e.opts.FS.Open(path)
	if err != nil {
		if _, statErr := e.opts.FS.Stat(path); statErr == nil {
			return fmt.Errorf("storage: opening %s: %w", path, err)
		}
		return e.writeFormat()
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("storage: reading %s: %w", path, err)
	}
	var ff formatFile
	if err := json.Unmarshal(text, &ff); err != nil {
		return fmt.Errorf("storage: %s is corrupt: %w", path, err)
	}
	if ff.Format != FormatVersion {
		return fmt.Errorf("%w: %s says %d, this version of braid knows %d", ErrFormat, path, ff.Format, FormatVersion)
	}
	e.identity = ff.Identity
	return nil
}

// writeFormat replaces FORMAT, atomically and durably.
func (e *Engines) writeFormat() error {
	fs, dir := e.opts.FS, e.opts.Dir
	text, err := json.Marshal(formatFile{Format: FormatVersion, Identity: e.identity})
	if err != nil {
		return fmt.Errorf("storage: encoding the format: %w", err)
	}
	tmp := fs.PathJoin(dir, "FORMAT.tmp")
	f, err := fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("storage: creating %s: %w", tmp, err)
	}
	_, err = io.Copy(f, bytes.NewReader(append(text, '\n')))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("storage: writing %s: %w", tmp, err)
	}
	if err := fs.Rename(tmp, fs.PathJoin(dir, "FORMAT")); err != nil {
		return fmt.Errorf("storage: renaming %s: %w", tmp, err)
	}
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("storage: opening %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("storage: syncing %s: %w", dir, err)
	}
	return nil
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
	e.identity = &id
	return e.writeFormat()
}

func (e *Engines) baseOptions() *pebble.Options {
	o := &pebble.Options{
		FS: e.opts.FS, Cache: e.cache, FormatMajorVersion: pebble.FormatNewest, Logger: pebbleLogger{e.opts.Logger},
		MaxOpenFiles: 1000,
	}
	o.EventListener = &pebble.EventListener{
		BackgroundError: func(err error) {
			if e.opts.OnBackgroundError != nil && !errors.Is(err, pebble.ErrClosed) {
				e.opts.OnBackgroundError(fmt.Errorf("storage: background work: %w", err))
			}
		},
	}
	return o
}

func (e *Engines) logOptions() *pebble.Options {
	o := e.baseOptions()
	// Entries are deleted soon after they were written (the data engine is flushed every few tens of megabytes of them), so most
	// of what is in a memtable is dead when it is flushed, and what little gets out is not worth compacting soon.
	o.MemTableSize = 48 << 20
	o.MemTableStopWritesThreshold = 4
	o.L0CompactionThreshold = 8
	o.EnsureDefaults()
	return o
}

func (e *Engines) dataOptions() *pebble.Options {
	o := e.baseOptions()
	o.Comparer = key.Comparer
	o.DisableWAL = true
	o.MemTableSize = e.opts.MemTableBytes
	o.MemTableStopWritesThreshold = 4
	o.Experimental.DisableIngestAsFlushable = func() bool { return true }
	// Values above the limit live in files of their own, so that counting keys and listing them without values
	// reads only what it needs.
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled: true, MinimumSize: 1024, MaxBlobReferenceDepth: 10, TargetGarbageRatio: 0.3,
		}
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	o.EnsureDefaults()
	return o
}

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

// Close closes both engines. Iterators and snapshots must be closed before.
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

// pebbleLogger passes the engines' messages on: what is routine at debug level.
type pebbleLogger struct{ l *slog.Logger }

func (p pebbleLogger) Infof(format string, args ...any) {
	p.l.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (p pebbleLogger) Errorf(format string, args ...any) {
	p.l.Error(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (p pebbleLogger) Fatalf(format string, args ...any) {
	p.l.Error(strings.TrimSpace(fmt.Sprintf(format, args...)))
	panic(fmt.Sprintf("storage: "+format, args...))
}

// FS is the file system that the engines are on.
func (e *Engines) FS() vfs.FS { return e.opts.FS }

// TemporaryPath is where a temporary file of a name may be made. What is left of an earlier process is removed by Open.
func (e *Engines) TemporaryPath(name string) string {
	return e.opts.FS.PathJoin(e.opts.Dir, "tmp", name)
}

// TableOptions are for tables that the data engine is to ingest.
func (e *Engines) TableOptions() sstable.WriterOptions {
	return e.dataOpts.MakeWriterOptions(0, e.Data.TableFormat())
}
