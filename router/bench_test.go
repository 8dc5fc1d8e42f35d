package router

import (
	"bytes"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	ranges "github.com/braidkv/braid/range"
	"github.com/braidkv/braid/range/eval"
)

// fill writes n objects of a size under /registry/pods/, and flushes them to tables.
func (f *fake) fillObjects(n, size int) {
	f.t.Helper()
	value := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
	for at := 0; at < n; {
		var ws []eval.Write
		for ; at < n && len(ws) < 500; at++ {
			ws = append(ws, eval.Write{Key: fmt.Appendf(nil, "/registry/pods/namespace-%02d/pod-%08d", at%50, at), Value: value, Sub: uint32(len(ws))})
		}
		f.apply(ws...)
	}
	if err := f.engines.FlushData(); err != nil {
		f.t.Fatal(err)
	}
}

// immediate is a rig whose node answers at once, on the caller's goroutine.
func immediate(t testing.TB) *rig {
	f := newFake(t, &world{now: true}, "/registry/m")
	return &rig{fake: f, s: New(f, Config{})}
}

var pods = &pb.RangeRequest{Key: []byte("/registry/pods/"), RangeEnd: []byte("/registry/pods0")}

// BenchmarkList10k is a list of 10,000 objects of 1 KB, encoded as for the wire: as objects and then by protobuf, or right from
// the engine; floor is walking over them and reading the values.
func BenchmarkList10k(b *testing.B) {
	g := immediate(b)
	g.fillObjects(10_000, 1024)
	buf := make([]byte, 0, 16<<20)
	run := func(name string, answer func() (proto.Message, error)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, err := answer()
				if err != nil {
					b.Fatal(err)
				}
				out, err := proto.MarshalOptions{}.MarshalAppend(buf[:0], m)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(out)))
			}
		})
	}
	run("objects", func() (proto.Message, error) { return g.s.Range(bg, pods) })
	run("encoded", func() (proto.Message, error) { return g.s.rangeMessage(bg, pods) })
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			it, err := mvcc.NewIterator(g.engines.Data, pods.Key, pods.RangeEnd, g.view.Revision)
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			for ok := it.First(); ok; ok = it.Next() {
				if _, err := it.State(); err != nil {
					b.Fatal(err)
				}
				v, err := it.Value()
				if err != nil {
					b.Fatal(err)
				}
				n += len(v) + len(it.Key())
			}
			if err := it.Close(); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(n))
		}
	})
}

// BenchmarkListOverGRPC is the same through gRPC's server and client, in one process.
func BenchmarkListOverGRPC(b *testing.B) {
	g := newServed(b)
	g.fillObjects(10_000, 1024)
	kv := pb.NewKVClient(g.conn)
	b.Run("unary", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if got, err := kv.Range(bg, pods); err != nil || len(got.Kvs) != 10_000 {
				b.Fatal(err)
			}
		}
	})
	b.Run("stream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s, err := kv.RangeStream(bg, pods)
			if err != nil {
				b.Fatal(err)
			}
			for n := 0; n < 10_000; {
				c, err := s.Recv()
				if err != nil {
					b.Fatal(err)
				}
				n += len(c.RangeResponse.Kvs)
			}
		}
	})
}

// BenchmarkPage is a first page of 500 of 10,000 objects, with the count of the rest; BenchmarkCount the count alone.
func BenchmarkPage(b *testing.B) {
	g := immediate(b)
	g.fillObjects(10_000, 1024)
	page := proto.CloneOf(pods)
	page.Limit = 500
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.s.rangeMessage(bg, page); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCount(b *testing.B) {
	g := immediate(b)
	g.fillObjects(10_000, 1024)
	count := proto.CloneOf(pods)
	count.CountOnly = true
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.s.Range(bg, count); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGet is a read of one key, linearizable and serializable.
func BenchmarkGet(b *testing.B) {
	g := immediate(b)
	g.fillObjects(10_000, 1024)
	for _, serializable := range []bool{false, true} {
		b.Run(fmt.Sprintf("serializable=%v", serializable), func(b *testing.B) {
			r := &pb.RangeRequest{Key: []byte("/registry/pods/namespace-07/pod-00000007"), Serializable: serializable}
			b.ReportAllocs()
			for b.Loop() {
				if got, err := g.s.Range(bg, r); err != nil || got.Count != 1 {
					b.Fatal(got, err)
				}
			}
		})
	}
}

// BenchmarkWrite is what the router itself spends on a write: the range answers at once, without doing anything.
func BenchmarkWrite(b *testing.B) {
	g := immediate(b)
	h := func() *pb.ResponseHeader { return &pb.ResponseHeader{Revision: 5} }
	put, txn := &pb.PutResponse{Header: h()}, &pb.TxnResponse{Header: h()}
	g.submit = func(_ ids.RangeID, req *ranges.Request) bool {
		req.Done(&ranges.Response{Put: put, Txn: txn, Revision: 5})
		return true
	}
	b.Run("put", func(b *testing.B) {
		r := putReq("/registry/pods/x", "value")
		b.ReportAllocs()
		for b.Loop() {
			if _, err := g.s.Put(bg, r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cas", func(b *testing.B) {
		r := &pb.TxnRequest{
			Compare: []*pb.Compare{modIs("/registry/pods/x", 5)}, Success: []*pb.RequestOp{opPut("/registry/pods/x", "value")},
			Failure: []*pb.RequestOp{opGet(key("/registry/pods/x"))},
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := g.s.Txn(bg, r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
