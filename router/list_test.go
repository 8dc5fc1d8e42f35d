package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/range/eval"
)

// etcdRange is etcd's answer to a range request, the slow way, given all keys of the span in order.
func etcdRange(r *pb.RangeRequest, span []*mvccpb.KeyValue) *pb.RangeResponse {
	resp := &pb.RangeResponse{Count: int64(len(span))}
	if r.CountOnly {
		return resp
	}
	filters := r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
	kvs := slices.Clone(span)
	if inKeyOrder := r.SortOrder == pb.RangeRequest_NONE || r.SortTarget == pb.RangeRequest_KEY && r.SortOrder == pb.RangeRequest_ASCEND; inKeyOrder &&
		!filters && r.Limit > 0 && int64(len(kvs)) > r.Limit+1 {
		kvs = kvs[:r.Limit+1]
	}
	kvs = slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision || r.MinModRevision != 0 && kv.ModRevision < r.MinModRevision ||
			r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision || r.MinCreateRevision != 0 && kv.CreateRevision < r.MinCreateRevision
	})
	sign := 1
	if r.SortOrder == pb.RangeRequest_DESCEND {
		sign = -1
	}
	slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		switch r.SortTarget {
		case pb.RangeRequest_VERSION:
			return sign * int(a.Version-b.Version)
		case pb.RangeRequest_CREATE:
			return sign * int(a.CreateRevision-b.CreateRevision)
		case pb.RangeRequest_MOD:
			return sign * int(a.ModRevision-b.ModRevision)
		case pb.RangeRequest_VALUE:
			return sign * bytes.Compare(a.Value, b.Value)
		}
		return sign * bytes.Compare(a.Key, b.Key)
	})
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs, resp.More = kvs[:r.Limit], true
	}
	for _, kv := range kvs {
		c := proto.Clone(kv).(*mvccpb.KeyValue)
		if r.KeysOnly {
			c.Value = nil
			if r.SortTarget != pb.RangeRequest_VALUE {
				c.Lease = 0
			}
		}
		resp.Kvs = append(resp.Kvs, c)
	}
	return resp
}

// TestListsLikeEtcd holds answers, in both forms, and streams to etcdRange, for random requests on a random history.
func TestListsLikeEtcd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{}
		f := newFake(t, w, "c", "f")
		g := &rig{fake: f, s: New(f, Config{Await: w.Await, MaxRequestBytes: 200})}
		keyGen := rapid.StringMatching(`[a-h](\x00|[a-c])?`)
		for range rapid.IntRange(0, 40).Draw(rt, "writes") {
			k := []byte(keyGen.Draw(rt, "key"))
			if rapid.IntRange(0, 4).Draw(rt, "delete") == 0 && f.has(k) {
				f.apply(eval.Write{Key: k, Delete: true})
				continue
			}
			v := rapid.SliceOfN(rapid.ByteRange('0', '3'), 0, 30).Draw(rt, "value")
			f.apply(eval.Write{Key: k, Value: v, Lease: ids.LeaseID(rapid.Int64Range(0, 2).Draw(rt, "lease"))})
		}
		rev := int64(f.view.Revision)
		small := rapid.Int64Range(0, rev+1)
		for range 10 {
			r := &pb.RangeRequest{
				Key: []byte(keyGen.Draw(rt, "start")), RangeEnd: []byte(rapid.OneOf(keyGen, rapid.Just(""), rapid.Just("\x00")).Draw(rt, "end")),
				Limit: rapid.Int64Range(-1, 6).Draw(rt, "limit"), Revision: rapid.Int64Range(0, rev).Draw(rt, "rev"),
				SortOrder:  pb.RangeRequest_SortOrder(rapid.IntRange(0, 2).Draw(rt, "order")),
				SortTarget: pb.RangeRequest_SortTarget(rapid.IntRange(0, 4).Draw(rt, "target")),
				KeysOnly:   rapid.Bool().Draw(rt, "keysOnly"), CountOnly: rapid.IntRange(0, 5).Draw(rt, "countOnly") == 0,
			}
			if rapid.Bool().Draw(rt, "filters") {
				r.MinModRevision, r.MaxModRevision = small.Draw(rt, "minMod"), small.Draw(rt, "maxMod")
				r.MinCreateRevision, r.MaxCreateRevision = small.Draw(rt, "minCreate"), small.Draw(rt, "maxCreate")
			}
			g.compareForms(rt, r)
		}
	})
}

func (f *fake) has(k []byte) bool {
	v, err := leaderView{f, f.view}.Get(k, true)
	if err != nil {
		f.t.Fatal(err)
	}
	return v.KV != nil
}

func (g *rig) compareForms(rt *rapid.T, r *pb.RangeRequest) {
	// The span as a model would have it: one key after the other.
	var span []*mvccpb.KeyValue
	base := g.rangeOK(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: r.Revision})
	for _, kv := range base.Kvs {
		end := eval.Bound(r.Key, r.RangeEnd)
		if bytes.Compare(kv.Key, r.Key) >= 0 && (end == nil || bytes.Compare(kv.Key, end) < 0) {
			span = append(span, kv)
		}
	}
	want := etcdRange(r, span)
	want.Header = base.Header
	if got := g.rangeOK(r); !proto.Equal(got, want) {
		rt.Fatalf("%v:\n got %v\nwant %v", r, got, want)
	}
	var m proto.Message
	var err error
	g.call(func() { m, err = g.s.rangeMessage(bg, r) })
	if err != nil {
		rt.Fatal(err)
	}
	got := &pb.RangeResponse{}
	decode(rt, m, got)
	if !proto.Equal(got, want) {
		rt.Fatalf("%v encoded:\n got %v\nwant %v", r, got, want)
	}
	if _, isList := m.(*encodedList); isList {
		if _, err := proto.Marshal(m); !errors.Is(err, errSpent) {
			rt.Fatalf("encoded twice: %v", err)
		}
	}
	g.compareStream(rt, r, span)
}

func (g *rig) compareStream(rt *rapid.T, r *pb.RangeRequest, span []*mvccpb.KeyValue) {
	s := &fakeStream{}
	var err error
	g.call(func() { err = g.s.RangeStream(r, s) })
	inOrder := r.SortOrder == pb.RangeRequest_NONE || r.SortTarget == pb.RangeRequest_KEY && r.SortOrder == pb.RangeRequest_ASCEND
	if !inOrder || eval.HasFilters(r) {
		if status.Code(err) != codes.Unimplemented {
			rt.Fatalf("%v: streamed (%v)", r, err)
		}
		return
	}
	if err != nil {
		rt.Fatal(err)
	}
	want := etcdRange(r, span)
	if r.SortTarget != pb.RangeRequest_KEY {
		// Sorted, so it comes in one piece, as Range answers it.
		want.Header = g.rangeOK(r).Header
		if len(s.chunks) != 1 || !proto.Equal(s.chunks[0], want) {
			rt.Fatalf("%v sorted:\n got %v\nwant %v", r, s.chunks, want)
		}
		return
	}
	whole := &pb.RangeResponse{}
	for i, c := range s.chunks {
		last := i == len(s.chunks)-1
		if (c.Header != nil) != last || !last && (len(c.Kvs) == 0 || c.Count != 0 || c.More) {
			rt.Fatalf("%v: chunk %d of %d is %v", r, i, len(s.chunks), c)
		}
		whole.Kvs = append(whole.Kvs, c.Kvs...)
	}
	last := s.chunks[len(s.chunks)-1]
	if last.Header.Revision != int64(g.view.Revision) || last.Header.MemberId != 3 {
		rt.Fatalf("header %v", last.Header)
	}
	whole.Count, whole.More = last.Count, last.More
	if !proto.Equal(whole, want) {
		rt.Fatalf("%v streamed:\n got %v\nwant %v", r, whole, want)
	}
}

func decode(t interface{ Fatal(...any) }, m proto.Message, into proto.Message) {
	b, err := proto.Marshal(m)
	if err == nil {
		err = proto.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != proto.Size(m) {
		t.Fatal(fmt.Sprintf("%d bytes, but a size of %d", len(b), proto.Size(m)))
	}
}

// fakeStream is a client of RangeStream.
type fakeStream struct {
	grpc.ServerStream
	chunks []*pb.RangeResponse
	before func() // called before each chunk is taken
}

func (s *fakeStream) Context() context.Context { return bg }

func (s *fakeStream) Send(*pb.RangeStreamResponse) error { return errors.New("a chunk as an object") }

func (s *fakeStream) SendMsg(m any) error {
	if s.before != nil {
		s.before()
	}
	b, err := proto.Marshal(m.(proto.Message))
	if err != nil {
		return err
	}
	got := &pb.RangeStreamResponse{}
	if err := proto.Unmarshal(b, got); err != nil {
		return err
	}
	s.chunks = append(s.chunks, got.RangeResponse)
	return nil
}

// TestStreamKeepsItsRevision: writes after the begin are not seen, and the header is that of the begin.
func TestStreamKeepsItsRevision(t *testing.T) {
	g := newRig(t, "k5")
	for i := range 10 {
		g.put(fmt.Sprint("k", i), strings.Repeat("x", 100<<10))
	}
	s := &fakeStream{}
	s.before = func() {
		g.put("k9", "new")
		g.put(fmt.Sprint("k", len(s.chunks), "a"), "new")
	}
	var err error
	g.call(func() { err = g.s.RangeStream(&pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 8}, s) })
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range s.chunks {
		for _, kv := range c.Kvs {
			if len(kv.Value) != 100<<10 {
				t.Errorf("key %s has a new value", kv.Key)
			}
			n++
		}
	}
	last := s.chunks[len(s.chunks)-1]
	if n != 8 || len(s.chunks) != 2 || last.Count != 10 || !last.More || last.Header.Revision != 11 {
		t.Errorf("%d keys in %d chunks, count %d more %v header %v", n, len(s.chunks), last.Count, last.More, last.Header)
	}
}

// TestStreamCompacted ends the stream, but not at its begin.
func TestStreamCompacted(t *testing.T) {
	g := newRig(t)
	for i := range 10 {
		g.put(fmt.Sprint("k", i), strings.Repeat("x", 100<<10))
	}
	s := &fakeStream{}
	s.before = func() {
		if s.before = nil; len(s.chunks) == 0 {
			g.put("k9", "new")
			g.compact(g.view.Revision)
		}
	}
	var err error
	g.call(func() { err = g.s.RangeStream(all(), s) })
	wantErr(t, "stream", err, rpctypes.ErrGRPCCompacted)
	if len(s.chunks) != 1 {
		t.Errorf("%d chunks", len(s.chunks))
	}
}

// TestListOfAGoneClient ends within checkEvery keys.
func TestListOfAGoneClient(t *testing.T) {
	g := newRig(t)
	var ws []eval.Write
	for i := range checkEvery + 10 {
		ws = append(ws, eval.Write{Key: fmt.Appendf(nil, "k%05d", i), Sub: uint32(i)})
	}
	g.apply(ws...)
	ctx, cancel := context.WithCancel(bg)
	var err error
	g.call(func() {
		err = g.s.begin(bg).iterate(span{}, g.view.Revision, func(it *mvcc.Iterator) error {
			cancel()
			_, err := (&listing{ctx: ctx, r: all()}).encode(it)
			return err
		})
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
