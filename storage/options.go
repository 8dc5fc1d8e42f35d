package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/storage/key"
)

// Options say where and how to open. Zero limits stand for the defaults.
type Options struct {
	FS  vfs.FS
	Dir string
	// CacheBytes is what memtables and cached blocks of both engines take together (default 128 MiB; see the package comment).
	CacheBytes int64
	// MemTableBytes is the size of one memtable of the data engine (default 64 MiB). Larger ones make fewer flushes and slower look-ups, and
	// a batch above half of it is a table of its own.
	MemTableBytes uint64
	// NoSync leaves out every fsync: a crash of the machine may then lose or garble anything.
	NoSync bool
	Logger *slog.Logger
	// OnBackgroundError is told of failed background work and of corruption, on any goroutine. The node must stop.
	OnBackgroundError func(error)
}

func (o *Options) setDefaults() {
	if o.CacheBytes == 0 {
		o.CacheBytes = 128 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnBackgroundError == nil {
		o.OnBackgroundError = func(error) {}
	}
}

const (
	// logMemTableBytes is small: entries are deleted soon after they were written, and this is what a restart replays.
	logMemTableBytes = 32 << 20
	// queuedMemTables is how many memtables an engine fills while earlier ones are being written out; then writes wait.
	queuedMemTables = 4
	// maxOpenFiles is for the tables of one engine.
	maxOpenFiles = 1000
	// separateBytes is the size from which a value lies in a file of its own kind, so that counting keys and listing
	// them does not read it, and compactions do not copy it. Below, the way to the other file costs more than it saves.
	separateBytes = 512
	// Of a file of values at most this share may be garbage before it is written anew, once it has reached an age.
	blobGarbage = 0.3
	blobMinAge  = time.Minute
	// blobDepth is how many files of values that overlap one table may point to: the price of scanning it.
	blobDepth = 8
)

func (e *Engines) baseOptions(name string) *pebble.Options {
	l := e.opts.Logger.With("engine", name)
	o := &pebble.Options{
		FS: e.fs, Cache: e.cache, FormatMajorVersion: pebble.FormatNewest, MaxOpenFiles: maxOpenFiles,
		Logger:                      engineLogger{l, e.opts.OnBackgroundError},
		MemTableStopWritesThreshold: queuedMemTables,
		// Half of the processors at most, but one: the other half serves.
		CompactionConcurrencyRange: func() (lower, upper int) { return 1, max(1, min(4, runtime.GOMAXPROCS(0)/2)) },
	}
	o.EventListener = &pebble.EventListener{
		BackgroundError: func(err error) {
			if !errors.Is(err, pebble.ErrClosed) && !errors.Is(err, pebble.ErrCancelledCompaction) {
				e.opts.OnBackgroundError(fmt.Errorf("storage: background work of engine %s: %w", name, err))
			}
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			e.opts.OnBackgroundError(fmt.Errorf("storage: file %s of engine %s is corrupt: %w", info.Path, name, info.Details))
		},
	}
	return o
}

func (e *Engines) logOptions() *pebble.Options {
	o := e.baseOptions("log")
	o.MemTableSize = logMemTableBytes
	o.EnsureDefaults()
	return o
}

func (e *Engines) dataOptions() *pebble.Options {
	o := e.baseOptions("data")
	o.Comparer = key.Comparer
	o.DisableWAL = true
	o.MemTableSize = e.opts.MemTableBytes
	// A table that waited in the queue of memtables would break "a prefix of the batches": it is durable before they are.
	o.Experimental.DisableIngestAsFlushable = func() bool { return true }
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled: true, MinimumSize: separateBytes, MaxBlobReferenceDepth: blobDepth,
			TargetGarbageRatio: blobGarbage, RewriteMinimumAge: blobMinAge,
		}
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	o.EnsureDefaults()
	return o
}

// FatalError is what an engine panics with when it cannot go on.
type FatalError struct{ Text string }

func (f FatalError) Error() string { return "storage: " + f.Text }

// engineLogger passes an engine's messages on: what is routine at debug level.
type engineLogger struct {
	l     *slog.Logger
	fatal func(error)
}

func (g engineLogger) Infof(format string, args ...any) {
	if g.l.Enabled(context.Background(), slog.LevelDebug) {
		g.l.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}

func (g engineLogger) Errorf(format string, args ...any) {
	g.l.Error(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// Fatalf does not return: the engine counts on that.
func (g engineLogger) Fatalf(format string, args ...any) {
	err := FatalError{Text: strings.TrimSpace(fmt.Sprintf(format, args...))}
	g.l.Error("engine cannot go on", "err", err)
	g.fatal(err)
	panic(err)
}

// IsDiskFull tells whether an error, of any call or as told to OnBackgroundError, comes from a full disk.
func IsDiskFull(err error) bool { return errors.Is(err, syscall.ENOSPC) }
