package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/braidkv/braid/storage"
	"github.com/braidkv/braid/storage/key"
)

// faulty opens engines whose operations fail with an error once it is set, if they are of a kind and on a path.
func faulty(t *testing.T, kinds []errorfs.OpKind, path string) (e *storage.Engines, fail *atomic.Pointer[error], told *errorLog) {
	fail, told = new(atomic.Pointer[error]), &errorLog{first: make(chan error, 1)}
	o := options(errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		err := fail.Load()
		if err == nil || !strings.Contains(op.Path, path) {
			return nil
		}
		for _, k := range kinds {
			if op.Kind == k {
				return *err
			}
		}
		return nil
	})))
	o.OnBackgroundError = told.add
	e, err := storage.Open(o)
	must(t, err)
	return e, fail, told
}

// TestFullDisk: a flush that finds no room tells the node and goes on trying; what was there can be read, and once there is room all goes on without a
// loss.
func TestFullDisk(t *testing.T) {
	e, fail, told := faulty(t, []errorfs.OpKind{errorfs.OpCreate, errorfs.OpFileWrite}, "data")
	must(t, e.Data.Set(key.Order('a'), []byte("1"), pebble.NoSync))
	enospc := error(fmt.Errorf("writing: %w", syscall.ENOSPC))
	fail.Store(&enospc)
	done := make(chan error)
	go func() { done <- e.FlushData() }()
	select {
	case err := <-done:
		t.Fatalf("flush: %v", err)
	case err := <-told.first:
		if !storage.IsDiskFull(err) || !strings.Contains(err.Error(), "engine data") {
			t.Errorf("told: %v", err)
		}
	}
	if !has(t, e.Data, key.Order('a')) {
		t.Error("a key is gone")
	}
	fail.Store(nil)
	must(t, <-done) // it went on trying
	must(t, e.Data.Set(key.Order('b'), []byte("2"), pebble.NoSync))
	must(t, e.FlushData())
	for _, what := range []byte("ab") {
		if !has(t, e.Data, key.Order(what)) {
			t.Errorf("%c is gone", what)
		}
	}
	must(t, e.Close())
}

// TestLogSyncError: when the write-ahead log cannot be synced the node is told and the writer does not return as if nothing was.
func TestLogSyncError(t *testing.T) {
	e, fail, told := faulty(t, []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}, ".log")
	must(t, e.Log.Set([]byte("a"), nil, pebble.Sync))
	eio := error(syscall.EIO)
	fail.Store(&eio)
	defer func() {
		p := recover()
		if f, ok := p.(storage.FatalError); !ok || !strings.Contains(f.Error(), "input/output error") {
			t.Errorf("recovered %v", p)
		}
		if !strings.Contains(told.text(), "input/output error") {
			t.Errorf("told: %s", told.text())
		}
		// Nothing is left that could be closed.
	}()
	err := e.Log.Set([]byte("b"), nil, pebble.Sync)
	t.Errorf("returned %v", err)
}

// TestUnreadable: what cannot be read when opening is an error that names it, and is not replaced.
func TestUnreadable(t *testing.T) {
	mem := vfs.NewMem()
	must(t, open(t, mem).Close())
	before := readFile(t, mem, "a/b/FORMAT")
	for _, path := range []string{"FORMAT", "MANIFEST"} {
		o := options(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpOpen && strings.Contains(op.Path, path) {
				return syscall.EACCES
			}
			return nil
		})))
		if _, err := storage.Open(o); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if after := readFile(t, mem, "a/b/FORMAT"); !bytes.Equal(before, after) {
		t.Errorf("FORMAT was changed to %s", after)
	}
	must(t, open(t, mem).Close())
}

// TestNoSync: without syncs there are none, on any way.
func TestNoSync(t *testing.T) {
	var syncs atomic.Int64
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			syncs.Add(1)
		}
		return nil
	}))
	for _, c := range []struct{ off, want bool }{{true, false}, {false, true}} {
		o := options(fs)
		o.NoSync = c.off
		syncs.Store(0)
		e, err := storage.Open(o)
		must(t, err)
		fill(t, e)
		must(t, e.SetIdentity(storage.Identity{NodeID: 4}))
		must(t, e.Close())
		if got := syncs.Load(); (got > 0) != c.want {
			t.Errorf("NoSync %v: %d syncs", c.off, got)
		}
	}
}

// TestValuesApart: large values are not where the keys are.
func TestValuesApart(t *testing.T) {
	fs := vfs.NewMem()
	e := open(t, fs)
	for i := range 100 {
		k := key.AppendVersion(nil, fmt.Appendf(nil, "key%d", i), key.State{Mod: 2, Create: 2, Version: 1})
		must(t, e.Data.Set(k, bytes.Repeat(fmt.Appendf(nil, "%04d", i), 1000), pebble.NoSync))
	}
	must(t, e.FlushData())
	size := map[string]int{}
	names, err := fs.List("a/b/data")
	must(t, err)
	for _, n := range names {
		if kind := fileKind(n); kind != "" {
			size[kind] += len(readFile(t, fs, "a/b/data/"+n))
		}
	}
	if size["sst"] == 0 || size["sst"] > 10_000 || size["blob"] < 4000 {
		t.Errorf("sizes: %v", size)
	}
	log, data := e.DiskUsage()
	if data < 4000 || log < 0 {
		t.Errorf("disk usage: %d, %d", log, data)
	}
	must(t, e.Close())
}
