package router

import (
	"bytes"
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
	"github.com/braidkv/braid/watchfanout"
)

// watched is a node of which everything is applied, and whose view may change while it is served.
type watched struct {
	*fake
	view atomic.Pointer[order.View]
}

func (w *watched) ReadIndex(done func(ids.Position, error)) { done(w.View().Position, nil) }

func (w *watched) WaitApplied(p ids.Position, fn func(ids.Position, ids.Revision)) {
	fn(p, w.View().Revision)
}

func (w *watched) View() *order.View { return w.view.Load() }

func (w *watched) change(by func(*order.View)) {
	v := *w.view.Load()
	by(&v)
	w.view.Store(&v)
}

func (w *watched) Now() (rev, compacted ids.Revision)     { return w.View().Revision, 0 }
func (w *watched) Through(start, end []byte) ids.Revision { return w.View().Revision }
func (w *watched) Removed() ids.Revision                  { return 0 }
func (w *watched) Reader() mvcc.Reader                    { return w.engines.Data }

// watchStream is a client's end.
type watchStream struct {
	grpc.ServerStream
	ctx context.Context
	in  chan *pb.WatchRequest
	out chan *pb.WatchResponse
}

func (s *watchStream) Context() context.Context { return s.ctx }

func (s *watchStream) Send(r *pb.WatchResponse) error {
	s.out <- r
	return nil
}

func (s *watchStream) Recv() (*pb.WatchRequest, error) {
	r, ok := <-s.in
	if !ok {
		return nil, io.EOF
	}
	return r, nil
}

// watchRig serves one stream.
type watchRig struct {
	*watchStream
	t   *testing.T
	f   *watched
	s   *Server
	hub *watchfanout.Hub
	end chan error
}

func newWatchRig(t *testing.T, md metadata.MD) *watchRig {
	r := &watchRig{t: t, f: &watched{fake: newFake(t, nil)}, end: make(chan error, 1)}
	r.f.view.Store(r.f.fake.view)
	r.s = New(r.f, Config{MaxRequestBytes: 1000, ProgressTicks: 3})
	r.hub = watchfanout.New(r.f, func() {})
	r.s.Watches(r.hub)
	ctx, cancel := context.WithTimeout(metadata.NewIncomingContext(t.Context(), md), 30*time.Second)
	t.Cleanup(cancel)
	r.watchStream = &watchStream{ctx: ctx, in: make(chan *pb.WatchRequest), out: make(chan *pb.WatchResponse)}
	go func() { r.end <- r.s.watch.Watch(r.watchStream) }()
	return r
}

func (r *watchRig) create(c *pb.WatchCreateRequest) *pb.WatchResponse {
	r.t.Helper()
	r.in <- &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: c}}
	return <-r.out
}

// put writes a key at the next revision.
func (r *watchRig) put(values map[string][]byte) {
	r.t.Helper()
	b := r.f.engines.Data.NewBatch()
	r.f.writer.Reset(b)
	sub := uint32(0)
	for k, v := range values {
		if _, err := r.f.writer.Put(mvcc.Put{Key: []byte(k), Value: v, Rev: r.f.View().Revision + 1, Sub: sub}); err != nil {
			r.t.Fatal(err)
		}
		sub++
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		r.t.Fatal(err)
	}
	if err := r.f.writer.Done(); err != nil {
		r.t.Fatal(err)
	}
	r.f.change(func(v *order.View) { v.Revision++ })
	if _, err := r.hub.Pump(); err != nil {
		r.t.Fatal(err)
	}
}

func TestWatchStream(t *testing.T) {
	r := newWatchRig(t, nil)
	if got := r.create(&pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte{0}, Fragment: true}); !got.Created || got.WatchId != 0 || got.Header.Revision != 1 ||
		got.Header.ClusterId != 0xc1 || got.Header.MemberId != 3 || got.Header.RaftTerm != 7 {
		t.Fatalf("created %v", got)
	}
	if got := r.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: -1}); !got.Canceled || got.WatchId != -1 || got.CancelReason != rpctypes.ErrCompacted.Error() {
		t.Errorf("a negative start: %v", got)
	}
	if got := r.create(&pb.WatchCreateRequest{WatchId: 9, Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}}); got.WatchId != 9 || got.Canceled {
		t.Errorf("without a key: %v", got)
	}
	// One revision in parts: each below the limit, all but the last marked.
	large := bytes.Repeat([]byte{'x'}, 300<<10)
	r.put(map[string][]byte{"a": large, "b": large, "c": large, "d": large})
	events := 0
	for {
		got := <-r.out
		if got.WatchId != 0 || got.Header.Revision != 2 || len(got.Events) > 1 {
			t.Fatalf("watch %d, revision %d, %d events", got.WatchId, got.Header.Revision, len(got.Events))
		}
		if events += len(got.Events); !got.Fragment {
			break
		}
	}
	if events != 4 {
		t.Errorf("%d events", events)
	}
	r.in <- &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
	r.in <- &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 9}}}
	if got := <-r.out; !got.Canceled || got.WatchId != 9 {
		t.Errorf("canceled %v", got)
	}
	if _, err := r.hub.Pump(); err != nil {
		t.Fatal(err)
	}
	if got := <-r.out; got.WatchId != -1 || got.Header.Revision != 2 || len(got.Events) > 0 {
		t.Errorf("progress %v", got)
	}
	close(r.in)
	if err := <-r.end; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// TestWatchWithoutLeader shows that a watch that requires a leader ends when there was none for three election time-outs, and periodic progress.
func TestWatchWithoutLeader(t *testing.T) {
	r := newWatchRig(t, metadata.Pairs(rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader))
	r.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 1, ProgressNotify: true})
	r.put(map[string][]byte{"a": nil})
	if _, err := r.hub.CatchUp(); err != nil {
		t.Fatal(err)
	}
	if got := <-r.out; len(got.Events) != 1 {
		t.Errorf("got %v", got)
	}
	for range 6 {
		r.s.Tick()
	}
	if got := <-r.out; got.WatchId != 0 || got.Header.Revision != 2 || len(got.Events) > 0 {
		t.Errorf("periodic progress %v", got)
	}
	r.f.change(func(v *order.View) { v.Leader = 0 })
	go func() {
		for range r.out {
		}
	}()
	for range noLeaderTimeouts*10 + 1 {
		r.s.Tick()
	}
	if err := <-r.end; err != rpctypes.ErrGRPCNoLeader {
		t.Errorf("ended with %v", err)
	}
	close(r.out)
}
