package router

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
)

// Config is what a Server is made of. Zero values stand for the defaults.
type Config struct {
	Await Await // default Block
	// RequestTimeout bounds how long a request waits, whatever its client says (default 7 s; etcd: 5 s and two election
	// time-outs). RequestTicks is the same in ticks, for what the cores time.
	RequestTimeout time.Duration
	RequestTicks   int
	// MaxTxnOps is etcd's --max-txn-ops (default 128), MaxRequestBytes its --max-request-bytes (default 1.5 MiB).
	MaxTxnOps       int
	MaxRequestBytes int
	// LagPatience is how long a serializable read waits for a replica that lags before it goes to a lower
	// revision (default 50 ms).
	LagPatience time.Duration
	// Version is etcd's version that Status shows.
	Version string
}

// Server serves etcd's KV, Cluster and Maintenance. It is safe for concurrent use.
type Server struct {
	pb.UnimplementedKVServer
	b     Backend
	cfg   Config
	await Await

	shown atomic.Int64 // highest revision put into a header
}

// New makes a server over a node.
func New(b Backend, cfg Config) *Server {
	if cfg.Await == nil {
		cfg.Await = Block
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = 7 * time.Second
	}
	if cfg.RequestTicks == 0 {
		cfg.RequestTicks = 70
	}
	if cfg.MaxTxnOps == 0 {
		cfg.MaxTxnOps = 128
	}
	if cfg.MaxRequestBytes == 0 {
		cfg.MaxRequestBytes = 1536 << 10
	}
	if cfg.LagPatience == 0 {
		cfg.LagPatience = 50 * time.Millisecond
	}
	return &Server{b: b, cfg: cfg, await: cfg.Await}
}

// errOwnTimeout is the cause of contexts that the server itself ends.
var errOwnTimeout = errors.New("router: request timed out")

// bound gives a request its time-out.
func (s *Server) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.cfg.RequestTimeout, errOwnTimeout)
}

// wait waits, and tells the server's own time-out from the client's.
func (s *Server) wait(ctx context.Context, start func(done func())) error {
	err := s.await(ctx, start)
	if err != nil && errors.Is(context.Cause(ctx), errOwnTimeout) {
		return rpctypes.ErrGRPCTimeout
	}
	return err
}

// fill fills in a header whose revision is set.
func (s *Server) fill(h *pb.ResponseHeader) {
	v := s.b.View()
	h.ClusterId, h.MemberId, h.RaftTerm = v.ClusterID, uint64(s.b.NodeID()), uint64(v.Term)
	for {
		old := s.shown.Load()
		if h.Revision <= old || s.shown.CompareAndSwap(old, h.Revision) {
			return
		}
	}
}

// header makes a header at a revision.
func (s *Server) header(rev ids.Revision) *pb.ResponseHeader {
	h := &pb.ResponseHeader{Revision: int64(rev)}
	s.fill(h)
	return h
}

// ready waits until the cluster has its ranges.
func (s *Server) ready(ctx context.Context) (*order.View, error) {
	v := s.b.View()
	for !v.Initialised {
		if err := s.nextPosition(ctx, v); err != nil {
			return nil, err
		}
		v = s.b.View()
	}
	return v, nil
}

// nextPosition waits until the order state has moved on from a view.
func (s *Server) nextPosition(ctx context.Context, v *order.View) error {
	return s.wait(ctx, func(done func()) {
		s.b.WaitApplied(v.Position+1, func(ids.Position, ids.Revision) { done() })
	})
}
