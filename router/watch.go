package router

import (
	"context"
	"errors"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/watchfanout"
)

// Watch serves etcd's Watch.
type Watch struct {
	pb.UnsafeWatchServer
	s   *Server
	hub *watchfanout.Hub
}

// noLeaderTimeouts is after how many election time-outs without an order leader a watch that requires one ends, as in etcd.
const noLeaderTimeouts = 3

// fragmentOverhead is what etcd lets a response exceed --max-request-bytes by before it is sent in parts.
const fragmentOverhead = 512 << 10

// Watch serves a client's stream of watches.
func (ws *Watch) Watch(stream pb.Watch_WatchServer) error {
	s := ws.s
	c := s.begin(stream.Context())
	c.deadline = forever
	if err := c.wait(s.b.CaughtUp); err != nil {
		return readError(err)
	}
	if _, err := c.ready(); err != nil {
		return readError(err)
	}
	news := make(chan struct{}, 1)
	st := ws.hub.NewStream(requiresLeader(stream.Context()), func() {
		select {
		case news <- struct{}{}:
		default:
		}
	})
	defer st.Close()
	room, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() { ended <- ws.receive(stream, st, room) }() // ends with the stream, which ends with this call
	for {
		select {
		case <-news:
		case err := <-ended:
			return err
		case <-stream.Context().Done():
			return contextError(stream.Context())
		}
		rs, broken := st.Take()
		for _, r := range rs {
			if err := ws.send(stream, r); err != nil {
				return err
			}
		}
		if broken != nil {
			return broken
		}
		select {
		case room <- struct{}{}:
		default:
		}
	}
}

// contextError is what a client sees of its own leaving.
func contextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return status.Error(codes.DeadlineExceeded, ctx.Err().Error())
	}
	return status.Error(codes.Canceled, "context canceled")
}

func requiresLeader(ctx context.Context) bool {
	v := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataRequireLeaderKey)
	return len(v) > 0 && v[0] == rpctypes.MetadataHasLeader
}

// receive takes a client's requests. A client that does not read what it is sent is not asked for more.
func (ws *Watch) receive(stream pb.Watch_WatchServer, st *watchfanout.Stream, room <-chan struct{}) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for st.Full() {
			select {
			case <-room:
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		switch r := req.RequestUnion.(type) {
		case *pb.WatchRequest_CreateRequest:
			if r.CreateRequest != nil {
				ws.create(st, r.CreateRequest)
			}
		case *pb.WatchRequest_CancelRequest:
			if r.CancelRequest != nil {
				st.Cancel(r.CancelRequest.WatchId)
			}
		case *pb.WatchRequest_ProgressRequest:
			if r.ProgressRequest != nil {
				st.Progress(ws.newest(stream.Context()))
			}
		}
	}
}

// newest is the revision of whatever was answered before, at any node: who asks for progress waits for that. While there is no leader to say, it
// is what this node has answered.
func (ws *Watch) newest(ctx context.Context) ids.Revision {
	c := ws.s.begin(ctx)
	c.deadline = ws.s.clock.now.Load() + uint64(ws.s.cfg.ElectionTicks)
	rev, err := c.linearizable(nil)
	if err != nil {
		return ids.Revision(ws.s.shown.Load())
	}
	return rev
}

func (ws *Watch) create(st *watchfanout.Stream, r *pb.WatchCreateRequest) {
	key := r.Key
	if len(key) == 0 {
		key = []byte{0} // as in etcd, the first key
	}
	if r.StartRevision < 0 {
		st.Refuse(rpctypes.ErrCompacted.Error())
		return
	}
	sp := spanOf(key, r.RangeEnd)
	c := watchfanout.Create{
		ID: r.WatchId, Start: sp.start, End: sp.end, Revision: ids.Revision(r.StartRevision),
		PrevKV: r.PrevKv, Progress: r.ProgressNotify, Fragment: r.Fragment,
	}
	for _, f := range r.Filters {
		switch f {
		case pb.WatchCreateRequest_NOPUT:
			c.NoPut = true
		case pb.WatchCreateRequest_NODELETE:
			c.NoDelete = true
		}
	}
	st.Create(c, ids.Revision(ws.s.shown.Load()))
}

// send sends a response, in parts if it is large and the client takes parts.
func (ws *Watch) send(stream pb.Watch_WatchServer, r watchfanout.Response) error {
	ws.s.fill(r.Header)
	most := ws.s.cfg.MaxRequestBytes + fragmentOverhead
	if !r.MayFragment || len(r.Events) < 2 || proto.Size(r.WatchResponse) < most {
		return stream.Send(r.WatchResponse)
	}
	events := r.Events
	for len(events) > 0 {
		part := &pb.WatchResponse{Header: r.Header, WatchId: r.WatchId}
		n := fitting(events, most-proto.Size(part))
		part.Events, events = events[:n], events[n:]
		part.Fragment = len(events) > 0
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return nil
}

// fitting is how many of the first events take fewer than so many bytes, at least one.
func fitting(events []*mvccpb.Event, most int) int {
	size := 0
	for i, e := range events {
		n := proto.Size(e)
		if size += n + 8; size >= most && i > 0 { // a field's tag and length
			return i
		}
	}
	return len(events)
}

// tickWatches lets a tick pass for the watches.
func (s *Server) tickWatches() {
	if s.watch == nil {
		return
	}
	t := &s.watchTicks
	if s.b.View().Leader == 0 {
		t.leaderless++
	} else {
		t.leaderless = 0
	}
	t.progress++
	tell := t.progress >= s.cfg.ProgressTicks
	if tell {
		t.progress = 0
	}
	lost := t.leaderless >= noLeaderTimeouts*s.cfg.ElectionTicks
	if !tell && !lost && t.progress%watchTickEvery != 0 {
		return
	}
	s.watch.hub.Tick(tell, func(st *watchfanout.Stream) error {
		if lost && st.RequireLeader {
			return rpctypes.ErrGRPCNoLeader
		}
		return nil
	})
}

// watchTickEvery is how often, in ticks, watches are looked at that wait for what nobody tells.
const watchTickEvery = 2

// watchTicks is the ticker's.
type watchTicks struct{ leaderless, progress int }
