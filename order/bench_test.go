package order

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// benchInit is a cluster of three nodes and n ranges.
func benchInit(n int) *braidpb.Init {
	in := &braidpb.Init{ClusterId: 7}
	for i := range n {
		d := &braidpb.RangeDescriptor{Id: uint64(i + 1)}
		if i > 0 {
			d.Start = []byte(fmt.Sprintf("%03d", i))
		}
		if i < n-1 {
			d.End = []byte(fmt.Sprintf("%03d", i+1))
		}
		for k := range 3 {
			d.Replicas = append(d.Replicas, &braidpb.Replica{Node: uint64(k + 1), ReplicaId: uint64(k + 1)})
		}
		in.Ranges = append(in.Ranges, d)
	}
	return in
}

// BenchmarkApply measures what each node does for a cut: decode, apply, persist, commit.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("segments=%d", n), func(b *testing.B) {
			db := openData(b, vfs.NewMem())
			s := NewState()
			s.Apply(Point{1, 1}, &braidpb.OrderEntry{Commands: []*braidpb.OrderCommand{{Kind: &braidpb.OrderCommand_Init{Init: benchInit(n)}}}})
			pos, seq := ids.Position(1), uint64(0)
			cut := &braidpb.Cut{}
			for i := range n {
				cut.Segments = append(cut.Segments, &braidpb.Segment{Range: uint64(i + 1), Runs: []*braidpb.Run{{Generation: 1, AuthRevision: 1}}})
			}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				pos++
				for _, g := range cut.Segments {
					g.Base, g.Through = seq, seq+4
					g.Runs[0].Through = seq + 4
				}
				if pos%1024 == 0 {
					cut.Flushed = nil
					for i := range n {
						for k := range 3 {
							cut.Flushed = append(cut.Flushed, &braidpb.Flushed{Range: uint64(i + 1), Node: uint64(k + 1), Position: uint64(pos - 1)})
						}
					}
				} else {
					cut.Flushed = nil
				}
				seq += 4
				data, err := EncodeEntry(&braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Cut{Cut: cut}})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				e, err := DecodeEntry(data)
				if err != nil {
					b.Fatal(err)
				}
				s.Apply(Point{pos, 1}, e)
				batch := db.NewBatch()
				if err := s.Persist(batch); err != nil {
					b.Fatal(err)
				}
				if err := batch.Commit(pebble.NoSync); err != nil {
					b.Fatal(err)
				}
				batch.Close()
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("segments=%d", n), func(b *testing.B) {
			cut := &braidpb.Cut{}
			for i := range n {
				cut.Segments = append(cut.Segments, &braidpb.Segment{Range: uint64(i + 1), Base: 10000, Through: 10010, Runs: []*braidpb.Run{{Through: 10010, Generation: 1, AuthRevision: 1}}})
			}
			data, _ := EncodeEntry(&braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Cut{Cut: cut}})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeEntry(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCut measures the leader's part: progress of n ranges taken, cut built and encoded.
func BenchmarkCut(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("segments=%d", n), func(b *testing.B) {
			s := NewState()
			s.Apply(Point{1, 1}, &braidpb.OrderEntry{Commands: []*braidpb.OrderCommand{{Kind: &braidpb.OrderCommand_Init{Init: benchInit(n)}}}})
			var c cutter
			p := reporter{node: 1}
			p.sync(s)
			var mem segments
			var cut braidpb.Cut
			e := braidpb.OrderEntry{Commands: []*braidpb.OrderCommand{{Kind: &braidpb.OrderCommand_Cut{Cut: &cut}}}}
			var buf []byte
			seq := ids.Seq(0)
			b.ReportAllocs()
			for b.Loop() {
				for i := range n {
					p.progress(&Progress{Range: ids.RangeID(i + 1), Term: 1, From: seq, Through: seq + 4, Generation: 1, AuthRevision: 1})
				}
				seq += 4
				p.collect(1, s, func(id ids.RangeID, base ids.Seq, list []run) { c.local(id, base, list, s) }, nil)
				c.build(&cut, &mem)
				buf, _ = (proto.MarshalOptions{}).MarshalAppend(buf[:0], &e)
				c.done()
				for i := range n {
					p.ordered(ids.RangeID(i+1), seq)
					c.ordered(ids.RangeID(i+1), seq, s)
				}
			}
		})
	}
}
