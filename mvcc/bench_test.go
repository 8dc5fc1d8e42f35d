package mvcc_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/storage"
)

// benchKey is like a key of a Kubernetes object.
func benchKey(dst []byte, n int) []byte {
	return fmt.Appendf(dst[:0], "/registry/pods/namespace-%03d/pod-%08d", n%200, n)
}

// cpu is the processor time that the process has used, background work included: on a busy machine it says more than
// the time that passes.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

// filled opens engines on disk with n keys, whose values have a size, in batches of 100.
func filled(b *testing.B, n, size int) *storage.Engines {
	e, err := storage.Open(storage.Options{FS: vfs.Default, Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	write(b, e, n, size, 100)
	return e
}

// write puts n keys in no order.
func write(b *testing.B, e *storage.Engines, n, size, perBatch int) {
	w := mvcc.NewWriter(e.Data)
	r := rand.New(rand.NewPCG(1, 2))
	order := r.Perm(n)
	var k []byte
	for i := 0; i < n; {
		batch := e.Data.NewBatch()
		w.Reset(batch)
		for range min(perBatch, n-i) {
			k = benchKey(k, order[i])
			if _, err := w.Put(mvcc.Put{Key: k, Value: benchValue(r, size), Rev: ids.Revision(i + 2)}); err != nil {
				b.Fatal(err)
			}
			i++
		}
		commit(b, w, batch)
	}
}

// benchValue compresses to about a half.
func benchValue(r *rand.Rand, size int) []byte {
	v := make([]byte, size)
	for i := 0; i < size; i++ {
		v[i] = "0123456789abcdef"[r.IntN(16)]
	}
	return v
}

func commit(b *testing.B, w *mvcc.Writer, batch *pebble.Batch) {
	if err := batch.Commit(pebble.NoSync); err != nil {
		b.Fatal(err)
	}
	if err := batch.Close(); err != nil {
		b.Fatal(err)
	}
	if err := w.Done(); err != nil {
		b.Fatal(err)
	}
}

func settleDown(b *testing.B, e *storage.Engines) {
	if err := e.FlushData(); err != nil {
		b.Fatal(err)
	}
	if err := e.Data.Compact(b.Context(), []byte{0}, []byte{255}, true); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPut applies batches of 16 puts to a store of 200,000 keys, flushes and compactions on the way included.
func BenchmarkPut(b *testing.B) {
	for _, c := range []struct {
		name        string
		size, among int
	}{
		{"new/100B", 100, 0}, {"update/100B", 100, 200_000}, {"update/1KB", 1024, 200_000}, {"hot/100B", 100, 1000},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := filled(b, 200_000, c.size)
			settleDown(b, e)
			w := mvcc.NewWriter(e.Data)
			r := rand.New(rand.NewPCG(3, 4))
			value := benchValue(r, c.size)
			var k []byte
			batch := e.Data.NewBatch()
			b.ReportAllocs()
			began := cpu()
			b.ResetTimer()
			for i := 0; i < b.N; {
				w.Reset(batch)
				for range min(16, b.N-i) {
					n := 200_000 + i
					if c.among > 0 {
						n = r.IntN(c.among)
					}
					k = benchKey(k, n)
					if _, err := w.Put(mvcc.Put{Key: k, Value: value, Rev: ids.Revision(300_000 + i)}); err != nil {
						b.Fatal(err)
					}
					i++
				}
				if err := batch.Commit(pebble.NoSync); err != nil {
					b.Fatal(err)
				}
				batch.Reset()
				if err := w.Done(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkGet reads random keys of 200,000, from tables and from a memtable.
func BenchmarkGet(b *testing.B) {
	for _, size := range []int{100, 1024} {
		e := filled(b, 200_000, size)
		settleDown(b, e)
		for _, what := range []string{"present", "absent", "state"} {
			b.Run(fmt.Sprintf("%s/%dB", what, size), func(b *testing.B) {
				r := rand.New(rand.NewPCG(5, 6))
				var k []byte
				b.ReportAllocs()
				began := cpu()
				for b.Loop() {
					k = benchKey(k, r.IntN(200_000))
					var found bool
					switch what {
					case "absent":
						k[len(k)-1] = 'x'
						kv, err := mvcc.Get(e.Data, k, mvcc.Latest)
						if err != nil {
							b.Fatal(err)
						}
						found = kv == nil
					case "state":
						s, err := mvcc.GetState(e.Data, k, mvcc.Latest)
						if err != nil {
							b.Fatal(err)
						}
						found = s.Exists()
					default:
						kv, err := mvcc.Get(e.Data, k, mvcc.Latest)
						if err != nil {
							b.Fatal(err)
						}
						found = kv != nil
					}
					if !found {
						b.Fatalf("%s %q", what, k)
					}
				}
				b.ReportMetric((cpu()-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkList reads 10,000 objects of 1 KB in one go.
func BenchmarkList(b *testing.B) {
	const n = 10_000
	e := filled(b, n, 1024)
	list := func(b *testing.B) {
		b.ReportAllocs()
		began := cpu()
		for b.Loop() {
			res, err := mvcc.Range(e.Data, mvcc.RangeOptions{Rev: mvcc.Latest})
			if err != nil || len(res.KVs) != n {
				b.Fatal(len(res.KVs), err)
			}
		}
		b.ReportMetric((cpu()-began)/float64(b.N)/n, "cpu-ns/object")
	}
	b.Run("memtable", list)
	settleDown(b, e)
	b.Run("tables", list)
}

// BenchmarkCount counts a million keys with small values, and a quarter of a million with larger ones, as they were written (in no order)
// and after compaction.
func BenchmarkCount(b *testing.B) {
	const n = 1_000_000
	for _, size := range []int{100, 1024} {
		e := filled(b, n/4*(1+3*(100/size)), size)
		keys := n / 4 * (1 + 3*(100/size))
		count := func(b *testing.B) {
			began := cpu()
			for b.Loop() {
				got, err := mvcc.Count(e.Data, nil, nil, mvcc.Latest)
				if err != nil || got != int64(keys) {
					b.Fatal(got, err)
				}
			}
			b.ReportMetric((cpu()-began)/float64(b.N)/float64(keys), "cpu-ns/key")
		}
		b.Run(fmt.Sprintf("asWritten/%dB", size), count)
		settleDown(b, e)
		b.Run(fmt.Sprintf("compacted/%dB", size), count)
		b.Run(fmt.Sprintf("keysOnly/%dB", size), func(b *testing.B) {
			b.ReportAllocs()
			began := cpu()
			for b.Loop() {
				got, err := mvcc.Range(e.Data, mvcc.RangeOptions{Rev: mvcc.Latest, KeysOnly: true, Limit: 10_000, NoCount: true})
				if err != nil || len(got.KVs) != 10_000 {
					b.Fatal(got, err)
				}
			}
			b.ReportMetric((cpu()-began)/float64(b.N)/10_000, "cpu-ns/key")
		})
	}
}

// BenchmarkMillion writes a million keys of 100 bytes in batches of 64 and opens the store again. It reports the highest resident memory on the
// way, how long the second start took, and the processor time of a put, flushes and compactions included.
func BenchmarkMillion(b *testing.B) {
	for b.Loop() {
		fs, dir := vfs.Default, b.TempDir()
		e, err := storage.Open(storage.Options{FS: fs, Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		began := cpu()
		write(b, e, 1_000_000, 100, 64)
		b.ReportMetric((cpu()-began)/1e6, "cpu-ns/put")
		log, data := e.DiskUsage()
		b.ReportMetric(float64(log+data)/1e6, "disk-MB")
		b.ReportMetric(resident(b), "max-rss-MB")
		if err := e.FlushData(); err != nil {
			b.Fatal(err)
		}
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if e, err = storage.Open(storage.Options{FS: fs, Dir: dir}); err != nil {
			b.Fatal(err)
		}
		if kv, err := mvcc.Get(e.Data, benchKey(nil, 12345), mvcc.Latest); kv == nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "restart-ms")
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// resident is the most memory that the process has had, in MB.
func resident(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Maxrss) / 1000
}
