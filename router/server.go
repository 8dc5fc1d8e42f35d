package router

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/watchfanout"
)

// Config is what a Server is made of. Zero values stand for the defaults.
type Config struct {
	Await Await // default Block
	// RequestTicks bounds how long a request waits, whatever its client says, in calls of Tick (default 70; etcd: 5 s and two
	// election time-outs).
	RequestTicks int
	// LagTicks is how long a serializable read waits for a replica that lags before it takes a lower revision
	// (default 2).
	LagTicks int
	// MaxTxnOps is etcd's --max-txn-ops (default 128), MaxRequestBytes its --max-request-bytes (default 1.5 MiB).
	MaxTxnOps       int
	MaxRequestBytes int
	// QuotaBytes is etcd's --quota-backend-bytes, as Status shows it (default 2 GiB; negative: no quota).
	QuotaBytes int64
	// Version is etcd's version that Status shows.
	Version string
	// ElectionTicks is an election time-out in ticks (default 10), ProgressTicks the time between the progress responses of watches that
	// want them (default 6000: etcd's 10 minutes).
	ElectionTicks, ProgressTicks int
	Logger                       *slog.Logger // default: none
}

func (c *Config) setDefaults() {
	if c.Await == nil {
		c.Await = Block
	}
	if c.RequestTicks == 0 {
		c.RequestTicks = 70
	}
	if c.LagTicks == 0 {
		c.LagTicks = 2
	}
	if c.MaxTxnOps == 0 {
		c.MaxTxnOps = 128
	}
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = 1536 << 10
	}
	if c.ElectionTicks == 0 {
		c.ElectionTicks = 10
	}
	if c.ProgressTicks == 0 {
		c.ProgressTicks = 6000
	}
	if c.QuotaBytes == 0 {
		c.QuotaBytes = 2 << 30
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports all faults.
func (c *Config) Validate() error {
	var errs []error
	for _, x := range []struct {
		name  string
		value int64
	}{
		{"RequestTicks", int64(c.RequestTicks)}, {"LagTicks", int64(c.LagTicks)}, {"MaxTxnOps", int64(c.MaxTxnOps)},
		{"MaxRequestBytes", int64(c.MaxRequestBytes)}, {"ElectionTicks", int64(c.ElectionTicks)}, {"ProgressTicks", int64(c.ProgressTicks)},
	} {
		if x.value < 0 {
			errs = append(errs, fmt.Errorf("router: %s is %d", x.name, x.value))
		}
	}
	return errors.Join(errs...)
}

// Server serves etcd's KV itself, Cluster and Maintenance by its methods of these names. It is safe for concurrent use. Somebody must call
// Tick.
type Server struct {
	pb.UnsafeKVServer // a method that etcd adds must be thought about
	b                 Backend
	cfg               Config
	await             Await
	clock             clock
	watch             *Watch // nil until Watches
	watchTicks        watchTicks

	shown    atomic.Int64 // highest revision put into a header
	caughtUp atomic.Bool  // Backend.CaughtUp has called back
}

// New makes a server over a node. The Config has been validated.
func New(b Backend, cfg Config) *Server {
	cfg.setDefaults()
	s := &Server{b: b, cfg: cfg, await: cfg.Await}
	s.clock.init(cfg.RequestTicks)
	return s
}

// Watches has the server serve Watch from a hub, which is over the same node. It must be called before anything else is.
func (s *Server) Watches(h *watchfanout.Hub) { s.watch = &Watch{s: s, hub: h} }

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
