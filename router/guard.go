package router

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/router/check"
)

// Register adds the services to a gRPC server. Each call goes through the guard first, whatever interceptors that server has: the guard
// is part of the API, while limits and metrics are the port's.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	kv := s.guarded(&pb.KV_ServiceDesc)
	for i := range kv.Methods {
		if kv.Methods[i].MethodName == "Range" {
			kv.Methods[i].Handler = s.serveRange
		}
	}
	r.RegisterService(kv, s)
	if s.watch != nil {
		r.RegisterService(s.guarded(&pb.Watch_ServiceDesc), s.watch)
	}
	r.RegisterService(s.guarded(&pb.Cluster_ServiceDesc), s.Cluster())
	r.RegisterService(s.guarded(&pb.Maintenance_ServiceDesc), s.Maintenance())
}

// guarded copies the description of a service with the guard in front of each method.
func (s *Server) guarded(d *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *d
	out.Methods = make([]grpc.MethodDesc, len(d.Methods))
	for i, m := range d.Methods {
		out.Methods[i] = grpc.MethodDesc{
			MethodName: m.MethodName,
			Handler: func(srv any, ctx context.Context, decode func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
				return m.Handler(srv, ctx, decode, s.inside(around))
			},
		}
	}
	out.Streams = make([]grpc.StreamDesc, len(d.Streams))
	for i, m := range d.Streams {
		out.Streams[i] = m
		out.Streams[i].Handler = func(srv any, stream grpc.ServerStream) (err error) {
			defer s.recovered(&err)
			if err := s.admit(stream.Context(), nil, d.ServiceName+"/"+m.StreamName == snapshotMethod); err != nil {
				return err
			}
			return m.Handler(srv, stream)
		}
	}
	return &out
}

// snapshotMethod is the one stream that a learner serves.
const snapshotMethod = "etcdserverpb.Maintenance/Snapshot"

// inside is the server's interceptor, which may be nil, with the guard behind it.
func (s *Server) inside(around grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		guarded := func(ctx context.Context, req any) (resp any, err error) {
			defer s.recovered(&err)
			if err := s.admit(ctx, req, false); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}
		if around == nil {
			return guarded(ctx, req)
		}
		return around(ctx, req, info, guarded)
	}
}

// admit refuses a call that etcd's interceptors refuse: by a client that wants a leader when there is none, with a version that is no
// text, or of a kind that a learner does not serve.
func (s *Server) admit(ctx context.Context, req any, learner bool) error {
	v := s.b.View()
	if s.isLearner(v) && !learner && !servedByLearner(req) {
		return rpctypes.ErrGRPCNotSupportedForLearner
	}
	if ver := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataClientAPIVersionKey); len(ver) > 0 && !utf8.ValidString(ver[0]) {
		return rpctypes.ErrGRPCInvalidClientAPIVersion
	}
	if v.Leader == 0 {
		want := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataRequireLeaderKey)
		if len(want) > 0 && want[0] == rpctypes.MetadataHasLeader {
			return rpctypes.ErrGRPCNoLeader
		}
	}
	return nil
}

func servedByLearner(req any) bool {
	switch r := req.(type) {
	case *pb.StatusRequest:
		return true
	case *pb.RangeRequest:
		return r.Serializable
	}
	return false
}

// recovered keeps a call that panics from taking the process along, unless an invariant is broken: then the node
// must not go on.
func (s *Server) recovered(err *error) {
	r := recover()
	if r == nil {
		return
	}
	text := fmt.Sprint(r)
	s.cfg.Logger.Error("request panicked", "panic", text, "stack", string(debug.Stack()))
	if strings.HasPrefix(text, "invariant ") {
		panic(r)
	}
	*err = status.Error(codes.Internal, "braid: internal error")
}

// serveRange is KV.Range on the wire: as Range, but an answer of many keys is encoded right from the engine.
func (s *Server) serveRange(srv any, ctx context.Context, decode func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
	req := &pb.RangeRequest{}
	if err := decode(req); err != nil {
		return nil, err
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: pb.KV_Range_FullMethodName}
	return s.inside(around)(ctx, req, info, func(ctx context.Context, req any) (any, error) {
		m, err := s.rangeMessage(ctx, req.(*pb.RangeRequest))
		if err != nil {
			return nil, err
		}
		return m, nil
	})
}

// rangeMessage is Range with an answer that is only good for being encoded.
func (s *Server) rangeMessage(ctx context.Context, r *pb.RangeRequest) (proto.Message, error) {
	if err := check.Range(r); err != nil {
		return nil, err
	}
	if l := (&listing{r: r}); len(r.RangeEnd) == 0 || r.CountOnly || !l.simple() {
		return s.Range(ctx, r)
	}
	c := s.begin(ctx)
	var out *encodedList
	_, rev, err := c.read(r, func(at ids.Revision) error {
		l := &listing{ctx: ctx, r: r}
		return c.iterate(spanOf(r.Key, r.RangeEnd), at, func(it *mvcc.Iterator) (err error) {
			out, err = l.encode(it)
			return err
		})
	})
	if err != nil {
		return nil, readError(err)
	}
	out.head.Header = s.header(rev)
	return out, nil
}
