package router

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Limits of the gRPC server, as etcd's.
const (
	overheadBytes     = 512 << 10 // beyond --max-request-bytes, so that etcd's own error can be given
	keepaliveMinTime  = 5 * time.Second
	keepaliveInterval = 2 * time.Hour
	keepaliveTimeout  = 20 * time.Second
)

// ServerOptions are those of the gRPC server that serves clients.
func (s *Server) ServerOptions(log *slog.Logger) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(s.cfg.MaxRequestBytes + overheadBytes),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveInterval, Timeout: keepaliveTimeout}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
			defer recovered(log, &err)
			if err := s.requireLeader(ctx); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
			defer recovered(log, &err)
			if err := s.requireLeader(stream.Context()); err != nil {
				return err
			}
			return handle(srv, stream)
		}),
	}
}

// Register registers the services.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	pb.RegisterKVServer(r, s)
	pb.RegisterClusterServer(r, s.Cluster())
	pb.RegisterMaintenanceServer(r, s.Maintenance())
}

// requireLeader refuses a request whose client wants a leader when there is none.
func (s *Server) requireLeader(ctx context.Context) error {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return nil
	}
	if v := md.Get(rpctypes.MetadataRequireLeaderKey); len(v) > 0 && v[0] == rpctypes.MetadataHasLeader && s.b.View().Leader == 0 {
		return rpctypes.ErrGRPCNoLeader
	}
	return nil
}

// recovered keeps a request that panics from taking the process along, unless an invariant is broken: then the node
// must not go on.
func recovered(log *slog.Logger, err *error) {
	r := recover()
	if r == nil {
		return
	}
	log.Error("request panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	if text, ok := r.(string); ok && len(text) > 9 && text[:9] == "invariant" {
		panic(r)
	}
	*err = status.Error(codes.Internal, "braid: internal error")
}
