package storage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/storage"
	"github.com/braidkv/braid/storage/key"
)

type tester interface {
	Helper()
	Fatal(...any)
}

func must(t tester, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// errorLog collects what OnBackgroundError is told.
type errorLog struct {
	mu    sync.Mutex
	errs  []error
	first chan error // if not nil, gets the first
}

func (l *errorLog) add(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
	select {
	case l.first <- err:
	default:
	}
}

func (l *errorLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.errs)
}

func options(fs vfs.FS) storage.Options {
	return storage.Options{FS: fs, Dir: "a/b", CacheBytes: 4 << 20, MemTableBytes: 256 << 10}
}

func open(t tester, fs vfs.FS) *storage.Engines {
	t.Helper()
	e, err := storage.Open(options(fs))
	must(t, err)
	return e
}

func TestIdentity(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := open(t, fs)
	if id, ok := e.Identity(); ok {
		t.Errorf("a new directory is that of %+v", id)
	}
	want := storage.Identity{ClusterID: 1 << 63, NodeID: 7, Token: "tökén"}
	must(t, e.SetIdentity(want))
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	must(t, e.Close())
	for name, fs := range map[string]vfs.FS{"closed": fs, "crashed": crashed} {
		e := open(t, fs)
		if id, ok := e.Identity(); !ok || id != want {
			t.Errorf("%s: %+v %v", name, id, ok)
		}
		must(t, e.Close())
	}
}

func TestInUse(t *testing.T) {
	fs := vfs.NewMem()
	e := open(t, fs)
	if _, err := storage.Open(options(fs)); !errors.Is(err, storage.ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	must(t, e.Close())
	must(t, open(t, fs).Close())
}

func writeFile(t tester, fs vfs.FS, name, text string) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.Write([]byte(text))
	must(t, errors.Join(err, f.Close()))
}

func readFile(t tester, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	must(t, err)
	b, err := io.ReadAll(f)
	must(t, errors.Join(err, f.Close()))
	return b
}

func withSum(line string) string {
	return fmt.Sprintf("%s\ncrc32c %08x\n", line, crc32.Checksum([]byte(line), crc32.MakeTable(crc32.Castagnoli)))
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
		is               error
	}{
		{"newer", withSum(`{"braid_format":2,"later":true}`), "FORMAT says 2, this version of braid knows 1", storage.ErrFormat},
		{"foreign", withSum(`{}`), "FORMAT says 0", storage.ErrFormat},
		{"no JSON", withSum(`hello`), "a/b/FORMAT: ", storage.ErrCorrupt},
		{"torn", `{"braid_fo`, "a/b/FORMAT: checksum", storage.ErrCorrupt},
		{"changed", strings.Replace(withSum(`{"braid_format":1,"identity":{"node_id":7}}`), "7", "6", 1), "a/b/FORMAT: checksum", storage.ErrCorrupt},
		{"lost", "", "FORMAT is missing, but a/b/log exists", nil},
	} {
		fs := vfs.NewMem()
		must(t, open(t, fs).Close())
		if c.text == "" {
			must(t, fs.Remove("a/b/FORMAT"))
		} else {
			writeFile(t, fs, "a/b/FORMAT", c.text)
		}
		_, err := storage.Open(options(fs))
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.text != "" && string(readFile(t, fs, "a/b/FORMAT")) != c.text {
			t.Errorf("%s: FORMAT was changed", c.name)
		}
	}
}

// crasher makes crash clones of a file system at every operation that a hook sees.
type crasher struct {
	vfs.FS
	mem    *vfs.MemFS
	rng    *rand.Rand
	every  int
	n      int
	clones []*vfs.MemFS
}

func (c *crasher) hook() {
	if c.n++; c.n%c.every == 0 {
		c.clones = append(c.clones, c.mem.CrashClone(vfs.CrashCloneCfg{}), c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: c.rng}))
	}
}

func (c *crasher) Create(name string, w vfs.DiskWriteCategory) (vfs.File, error) {
	c.hook()
	return c.FS.Create(name, w)
}

func (c *crasher) MkdirAll(dir string, perm os.FileMode) error {
	c.hook()
	return c.FS.MkdirAll(dir, perm)
}

func (c *crasher) Rename(a, b string) error {
	c.hook()
	return c.FS.Rename(a, b)
}

func (c *crasher) OpenDir(name string) (vfs.File, error) {
	c.hook()
	return c.FS.OpenDir(name)
}

// TestCrashInOpen: a crash at any step of the first start leaves a directory that opens.
func TestCrashInOpen(t *testing.T) {
	mem := vfs.NewCrashableMem()
	c := &crasher{FS: mem, mem: mem, rng: rand.New(rand.NewPCG(1, 1)), every: 1}
	e := open(t, c)
	must(t, e.SetIdentity(storage.Identity{NodeID: 1}))
	clones := c.clones
	must(t, e.Close())
	if len(clones) < 20 {
		t.Fatalf("only %d crashes", len(clones))
	}
	for i, fs := range clones {
		e, err := storage.Open(options(fs))
		if err != nil {
			t.Errorf("after crash %d: %v", i, err)
			continue
		}
		must(t, e.Close())
	}
}

// TestPrefix: after a crash data has a prefix of its batches, whichever keys they wrote, with all that a flush has confirmed; log has all that
// was synced.
func TestPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := vfs.NewCrashableMem()
		e := open(t, mem)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		flushed, synced := 0, 0
		n := rapid.IntRange(1, 400).Draw(t, "batches")
		size := rapid.SampledFrom([]int{10, 3000}).Draw(t, "size")
		num := func(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }
		for i := 1; i <= n; i++ {
			b := e.Data.NewBatch()
			must(t, b.Set(key.Order('n'), num(i), nil))
			must(t, b.Set(key.AppendVersion(nil, num(rng.IntN(20)), key.State{Mod: 1 << 40, Create: 1, Version: int64(i)}), make([]byte, size), nil))
			must(t, b.Set(key.Replica(3, 'n', num(i)...), nil, nil))
			must(t, b.Commit(pebble.NoSync))
			opt := pebble.NoSync
			if rng.IntN(20) == 0 {
				opt, synced = pebble.Sync, i
			}
			must(t, e.Log.Set(num(i), make([]byte, size), opt))
			switch rng.IntN(100) {
			case 0:
				must(t, e.FlushData())
				flushed = i
			case 1:
				_, err := e.Data.AsyncFlush()
				must(t, err)
			}
		}
		clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "unsynced"), RNG: rng})
		must(t, e.Close())
		e = open(t, clone)
		last := 0
		if v, c, err := e.Data.Get(key.Order('n')); err == nil {
			last = int(binary.BigEndian.Uint64(v))
			must(t, c.Close())
		} else if !errors.Is(err, pebble.ErrNotFound) {
			t.Fatal(err)
		}
		if last < flushed {
			t.Fatalf("batch %d was flushed, %d is the last", flushed, last)
		}
		for i := 1; i <= n; i++ {
			if has := has(t, e.Data, key.Replica(3, 'n', num(i)...)); has != (i <= last) {
				t.Fatalf("batch %d of %d: %v", i, last, has)
			}
			if i <= synced && !has(t, e.Log, num(i)) {
				t.Fatalf("log lacks %d; %d was synced", i, synced)
			}
		}
		must(t, e.Close())
	})
}

func has(t tester, db *pebble.DB, k []byte) bool {
	t.Helper()
	_, c, err := db.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return false
	}
	must(t, err)
	must(t, c.Close())
	return true
}

// fill gives both engines tables, values apart, a write-ahead log and a manifest.
func fill(t tester, e *storage.Engines) {
	t.Helper()
	for i := range 300 {
		k := key.AppendVersion(nil, fmt.Appendf(nil, "key%04d", i), key.State{Mod: 5, Create: 5, Version: 1})
		must(t, e.Data.Set(k, bytes.Repeat([]byte{byte(i)}, 50+i*5), pebble.NoSync))
		must(t, e.Log.Set(fmt.Appendf(nil, "key%04d", i), bytes.Repeat([]byte{byte(i)}, 500), pebble.Sync))
		if i%100 == 99 {
			must(t, e.Log.Flush())
			must(t, e.FlushData())
		}
	}
	for i := range 100 {
		must(t, e.Log.Set(fmt.Appendf(nil, "tail%04d", i), bytes.Repeat([]byte{byte(i)}, 500), pebble.Sync))
	}
}

var errPanic = errors.New("panic")

func readAll(db *pebble.DB) (n int, err error) {
	defer func() {
		// See warnOfBlobs.
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	it, err := db.NewIter(nil)
	if err != nil {
		return 0, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		if _, err := it.ValueAndErr(); err != nil {
			_ = it.Close()
			return n, err
		}
		n++
	}
	return n, errors.Join(it.Error(), it.Close())
}

// TestBitFlip: a bit that turns over anywhere in a file is an error that names the file, at the latest when the place is read, or
// takes nothing away.
func TestBitFlip(t *testing.T) {
	const seed = 3
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, seed))
	mem := vfs.NewCrashableMem()
	e := open(t, mem)
	fill(t, e)
	clean := mem.CrashClone(vfs.CrashCloneCfg{})
	must(t, e.Close())
	noticed := map[string]int{}
	for _, dir := range []string{"a/b", "a/b/log", "a/b/data"} {
		names, err := clean.List(dir)
		must(t, err)
		for _, name := range names {
			kind := fileKind(name)
			if kind == "" {
				continue
			}
			path := dir + "/" + name
			size := len(readFile(t, clean, path))
			for range min(size, 30) {
				at := rng.IntN(size)
				// What a crash has torn and damage of the last record look alike; so the end of logs and manifests is left alone.
				if (kind == "log" || kind == "MANIFEST") && at > size/2 {
					continue
				}
				if flip(t, clean, path, at, byte(1)<<rng.IntN(8)) {
					noticed[kind]++
				}
			}
		}
	}
	t.Logf("noticed: %v", noticed)
	for _, kind := range []string{"FORMAT", "sst", "blob", "log", "MANIFEST"} {
		if noticed[kind] == 0 {
			t.Errorf("no damage of a file of kind %s was noticed", kind)
		}
	}
}

func fileKind(name string) string {
	for _, kind := range []string{"FORMAT", "MANIFEST"} {
		if strings.HasPrefix(name, kind) {
			return kind
		}
	}
	for _, kind := range []string{"sst", "blob", "log"} {
		if strings.HasSuffix(name, "."+kind) {
			return kind
		}
	}
	return ""
}

// flip damages a copy, reads everything and tells whether that made an error, which then must name the file.
func flip(t *testing.T, clean *vfs.MemFS, path string, at int, mask byte) bool {
	fs := clean.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))})
	text := readFile(t, fs, path)
	text[at] ^= mask
	writeFile(t, fs, path, string(text))
	var told errorLog
	o := options(fs)
	o.OnBackgroundError = told.add
	var logged bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	e, err := storage.Open(o)
	if err == nil {
		n, derr := readAll(e.Data)
		m, lerr := readAll(e.Log)
		err = errors.Join(derr, lerr)
		if err == nil && (n != 300 || m != 400) {
			t.Errorf("%s damaged at %d of %d: %d and %d keys, and no error", path, at, len(text), n, m)
		}
		if !errors.Is(err, errPanic) { // else there is nothing left that could be closed
			_ = e.Close()
		}
	}
	if err == nil {
		return false
	}
	name := path[strings.LastIndexByte(path, '/')+1:]
	// An engine names a file of values by its number alone.
	number := "file " + strings.TrimSuffix(name, ".blob")
	if all := err.Error() + told.text() + logged.String(); !strings.Contains(all, name) && !strings.Contains(all, number) {
		t.Errorf("%s damaged at %d of %d is not named: %s", path, at, len(text), all)
	}
	return true
}
