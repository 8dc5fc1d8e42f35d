package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/braidkv/braid/internal/cluster"
	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	"github.com/braidkv/braid/peer"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/router"
)

// Node is a node in production: a Core with goroutines, real time and the transport.
type Node struct {
	core      *Core
	cfg       Config
	transport *peer.Transport

	ready chan struct{}
	fatal chan error

	stop     context.CancelFunc
	stopping atomic.Bool
	done     chan struct{} // closed when the ticker and background goroutines are to end
	wg       sync.WaitGroup
}

// Start opens the data directory, binds the peer URLs and starts to work. The node is ready for clients when Ready says so.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	members, clusterID, err := cluster.Members(cfg.InitialCluster, cfg.InitialClusterToken)
	if err != nil {
		return nil, err
	}
	cc := CoreConfig{
		Config: cfg, ClusterID: clusterID, Incarnation: uint64(time.Now().UnixNano()),
		ElectionTicks: cfg.electionTicks(), Await: router.Block,
	}
	peers := map[ids.NodeID][]string{}
	for _, m := range members {
		if m.Name == cfg.Name {
			cc.Self = m.ID
		}
		peers[m.ID] = m.PeerURLs
		cc.Members = append(cc.Members, &braidpb.Member{Id: uint64(m.ID), Name: m.Name, PeerUrls: m.PeerURLs})
	}
	n := &Node{cfg: cfg, ready: make(chan struct{}), fatal: make(chan error, 1), done: make(chan struct{})}
	cc.Fatal = func(err error) { n.fatal <- err }
	cc.Send = func(to ids.NodeID, l *braidpb.Letter) { n.transport.Send(to, l) }
	if n.core, err = OpenCore(cc); err != nil {
		return nil, err
	}
	n.transport, err = peer.New(peer.Config{
		Self: cc.Self, ClusterID: clusterID, Incarnation: cc.Incarnation, Peers: peers,
		HeartbeatInterval: cfg.HeartbeatInterval, DeadAfter: max(cfg.ElectionTimeout, 3*cfg.HeartbeatInterval), Logger: cfg.Logger,
	}, handler{n.core})
	if err != nil {
		return nil, errors.Join(err, n.core.Close())
	}
	if err := n.listen(); err != nil {
		return nil, errors.Join(err, n.transport.Close(), n.core.Close())
	}
	n.run()
	return n, nil
}

// handler gives the core what the transport receives.
type handler struct{ c *Core }

func (h handler) Receive(from ids.NodeID, l *braidpb.Letter) { h.c.Receive(from, l) }
func (h handler) Up(node ids.NodeID, incarnation uint64)     { h.c.PeerUp(node, incarnation) }
func (h handler) Down(node ids.NodeID)                       { h.c.PeerDown(node) }

func (n *Node) listen() error {
	for _, url := range n.cfg.ListenPeerURLs {
		lis, err := peer.Listen(url)
		if err != nil {
			return err
		}
		n.wg.Go(func() {
			if err := n.transport.Serve(lis); err != nil && !errors.Is(err, peer.ErrClosed) {
				n.core.fatal(err)
			}
		})
	}
	return nil
}

// run starts the goroutines: the store's (workers and log), the background's, and the ticker.
func (n *Node) run() {
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.wg.Go(func() {
		if err := n.core.store.Run(ctx); err != nil {
			n.core.fatal(err)
		}
	})
	n.wg.Go(func() { n.core.background.run(n.done) })
	n.wg.Go(n.tick)
	n.serveWatches()
}

// tick lets time pass, sees when the node is ready, and publishes what the member says of itself.
func (n *Node) tick() {
	t := time.NewTicker(n.cfg.HeartbeatInterval)
	defer t.Stop()
	watch := time.NewTicker(10 * time.Millisecond) // until ready, so that a start does not wait for a tick
	defer watch.Stop()
	publishing := atomic.Bool{}
	for {
		select {
		case <-t.C:
			n.core.Tick()
			n.publish(&publishing)
		case <-watch.C:
			if n.serving() {
				watch.Stop()
				close(n.ready)
				n.publish(&publishing)
			}
		case <-n.done:
			return
		}
	}
}

// serving tells whether clients can be served: the cluster has its ranges, and this node knows a leader and all that it
// knew before it was restarted.
func (n *Node) serving() bool {
	v := n.core.View()
	return v.Initialised && v.Leader != 0 && v.Position >= n.core.caughtUp
}

// publish has the order log tell everybody the member's name and client URLs, if it does not yet.
func (n *Node) publish(busy *atomic.Bool) {
	v := n.core.View()
	if !v.Initialised || v.Leader == 0 || busy.Load() {
		return
	}
	for _, m := range v.Members {
		if ids.NodeID(m.GetId()) != n.core.cfg.Self || m.GetName() == n.cfg.Name && slices.Equal(m.GetClientUrls(), n.cfg.AdvertiseClientURLs) {
			continue
		}
		busy.Store(true)
		next := &braidpb.Member{
			Id: m.GetId(), Name: n.cfg.Name, PeerUrls: m.GetPeerUrls(), ClientUrls: n.cfg.AdvertiseClientURLs, IsLearner: m.GetIsLearner(),
		}
		cmd := &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_SetMember{SetMember: &braidpb.SetMember{Member: next}}}
		n.core.Propose(cmd, 0, func(order.Result) { busy.Store(false) })
	}
}

// Ready is closed when clients can be served.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Err gives the error with which the node cannot go on; it must then be stopped.
func (n *Node) Err() <-chan error { return n.fatal }

// Stop hands over what the node leads, ends everything that it has started, and closes the engines.
func (n *Node) Stop(ctx context.Context) error {
	if !n.stopping.CompareAndSwap(false, true) {
		return nil
	}
	err := n.core.store.Stop(ctx)
	n.stop()
	close(n.done)
	err = errors.Join(err, n.transport.Close())
	n.wg.Wait()
	if err = errors.Join(err, n.core.Close()); err != nil {
		return fmt.Errorf("stopping the node: %w", err)
	}
	return nil
}

// RegisterServices registers what the node serves to clients.
func (n *Node) RegisterServices(r grpc.ServiceRegistrar) {
	n.core.server.Register(r)
	braidpb.RegisterOperatorServer(r, &operator{c: n.core})
}

// HasLeader tells whether the order group has a leader, as far as this node knows.
func (n *Node) HasLeader() bool { return n.core.View().Leader != 0 }

// IsLearner tells whether this member has no vote.
func (n *Node) IsLearner() bool {
	for _, m := range n.core.View().Members {
		if ids.NodeID(m.GetId()) == n.core.cfg.Self {
			return m.GetIsLearner()
		}
	}
	return false
}

// Alarms are those in force: this version raises none.
func (n *Node) Alarms() []pb.AlarmType { return nil }

// ProbeRead reads one key.
func (n *Node) ProbeRead(ctx context.Context, serializable bool) error {
	_, err := n.core.server.Range(ctx, &pb.RangeRequest{Key: []byte{0}, KeysOnly: true, Serializable: serializable})
	return err
}

// ClusterVersion is the version that the members agree on.
func (n *Node) ClusterVersion() string {
	if !n.core.View().Initialised {
		return ""
	}
	return "3.7.0"
}

// Metrics are the node's own.
func (n *Node) Metrics() prometheus.Gatherer { return n.core.metrics() }
