package node

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/raftgroup"
	ranges "github.com/braidkv/braid/range"
	"github.com/braidkv/braid/router"
	"github.com/braidkv/braid/storage"
	"github.com/braidkv/braid/storage/raftlog"
)

// Mutation switches rules off, one at a time, so that the simulation can show that it notices.
type Mutation struct {
	Order order.Mutation
	Range ranges.Mutation
	// NoFrontier has watches go ahead of the replicas that lag, NoRemoved lets them take what a compaction has left for all there was.
	NoFrontier, NoRemoved bool
}

// CoreConfig is what a Core is made of.
type CoreConfig struct {
	Config
	Self        ids.NodeID
	ClusterID   uint64
	Incarnation uint64 // unique among all starts of this node's process
	Members     []*braidpb.Member
	Workers     int // default: raftgroup's
	// ElectionTicks is the election time-out in ticks.
	ElectionTicks int
	Await         router.Await
	Mutation      Mutation
	// RangeTiming overrides the timing of ranges, FlushTicks the age at which the data engine is flushed; zero stands for the defaults.
	RangeTiming ranges.Timing
	FlushTicks  int
	// Send takes a letter to another node; it never blocks and may drop it.
	Send func(to ids.NodeID, l *braidpb.Letter)
	// Fatal is told, once, why the node cannot go on.
	Fatal func(error)
}

// Core is a node without goroutines and sockets. See the package comment.
type Core struct {
	cfg        CoreConfig
	engines    *storage.Engines
	log        *raftlog.Log
	store      *raftgroup.Store
	order      *order.Machine
	server     *router.Server
	watches    *watches
	submitter  *submitter
	background *background
	flusher    flusher

	txns     atomic.Uint64
	caughtUp ids.Position // order position known to be committed when the node started

	mu     sync.Mutex // guards the replacement of ranges
	ranges atomic.Pointer[map[ids.RangeID]*localRange]

	compactMu sync.Mutex
	waiting   []compactWaiter // guarded by compactMu

	failure atomic.Pointer[error]
}

// OpenCore opens a node's data and starts its groups; nothing moves until it is pumped.
func OpenCore(cfg CoreConfig) (*Core, error) {
	if cfg.Fatal == nil {
		cfg.Fatal = func(error) {}
	}
	c := &Core{cfg: cfg, background: newBackground(), submitter: newSubmitter(cfg.Self, cfg.Incarnation)}
	c.ranges.Store(&map[ids.RangeID]*localRange{})
	c.flusher.c, c.flusher.every = c, cfg.FlushTicks
	if cfg.FlushTicks == 0 {
		c.flusher.every = flushTicks
	}
	if err := c.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening node %v in %s: %w", cfg.Self, cfg.DataDir, err), c.closeEngines())
	}
	return c, nil
}

func (c *Core) open() (err error) {
	cfg := &c.cfg
	c.engines, err = storage.Open(storage.Options{
		FS: cfg.FS, Dir: cfg.DataDir, NoSync: cfg.UnsafeNoFsync, Logger: cfg.Logger, OnBackgroundError: c.fatal,
	})
	if err != nil {
		return err
	}
	if err := c.checkIdentity(); err != nil {
		return err
	}
	if c.log, err = raftlog.Open(c.engines.Log, c.fatal, raftlog.Options{NoSync: cfg.UnsafeNoFsync}); err != nil {
		return err
	}
	c.store, err = raftgroup.New(raftgroup.Config{
		Node: cfg.Self, Incarnation: cfg.Incarnation, Workers: cfg.Workers, ElectionTicks: cfg.ElectionTicks, Logger: cfg.Logger,
	}, c.log, raftSender{c})
	if err != nil {
		return err
	}
	c.submitter.role = c.leaderOf
	c.submitter.local = func(r ids.RangeID, req *ranges.Request) bool {
		return c.local(r) != nil && c.store.Enqueue(ids.GroupOf(r), req)
	}
	c.submitter.send = func(to ids.NodeID, kind uint32, m proto.Message) { c.sendLetter(to, kind, 0, m) }
	c.server = router.New(backend{c}, router.Config{
		Await: cfg.Await, MaxTxnOps: int(cfg.MaxTxnOps), MaxRequestBytes: int(cfg.MaxRequestBytes), Version: Version,
		RequestTicks: requestTicks(&cfg.Config), QuotaBytes: cfg.QuotaBackendBytes, ElectionTicks: cfg.ElectionTicks, ProgressTicks: progressTicks(&cfg.Config), Logger: cfg.Logger,
	})
	c.watches = newWatches(c)
	c.server.Watches(c.watches.Hub)
	return c.startOrder()
}

// checkIdentity refuses a directory of another node or cluster.
func (c *Core) checkIdentity() error {
	want := storage.Identity{ClusterID: c.cfg.ClusterID, NodeID: uint64(c.cfg.Self), Token: c.cfg.InitialClusterToken}
	got, ok := c.engines.Identity()
	if !ok {
		return c.engines.SetIdentity(want)
	}
	if got.ClusterID != want.ClusterID || got.NodeID != want.NodeID {
		return fmt.Errorf("the directory belongs to member %x of cluster %x (token %q), not to member %x of cluster %x (token %q) that the configuration describes",
			got.NodeID, got.ClusterID, got.Token, want.NodeID, want.ClusterID, want.Token)
	}
	return nil
}

func (c *Core) startOrder() error {
	cfg := &c.cfg
	m, start, err := order.New(order.Config{
		Node: cfg.Self, Incarnation: cfg.Incarnation, Data: c.engines.Data, Bootstrap: c.bootstrap(),
		Limits: order.Limits{KeepEntries: cfg.SnapshotCount}, Mutation: cfg.Mutation.Order, Logger: cfg.Logger,
		Timing: order.Timing{ReadTimeoutTicks: requestTicks(&cfg.Config), ProposalTimeoutTicks: requestTicks(&cfg.Config)},
	})
	if err != nil {
		return err
	}
	c.order = m
	initial := raftgroup.ConfState(start.Conf)
	if len(initial.Voters) == 0 {
		for _, x := range cfg.Members {
			initial.Voters = append(initial.Voters, ids.ReplicaID(x.GetId()))
		}
		slices.Sort(initial.Voters)
	}
	log, err := c.log.Group(ids.OrderGroup)
	if err != nil {
		return err
	}
	c.caughtUp = max(ids.Position(log.HardState().Commit), start.Applied)
	h := &orderHost{c: c}
	return c.store.Add(raftgroup.GroupConfig{
		ID: ids.OrderGroup, Replica: ids.ReplicaID(cfg.Self), Peers: func(r ids.ReplicaID) ids.NodeID { return ids.NodeID(r) },
		Initial: initial, Applied: ids.Index(start.Applied), AppliedTerm: start.AppliedTerm,
		New: func(g *raftgroup.Group) raftgroup.Machine {
			h.group = g
			m.Start(h)
			return &orderMachine{Machine: m, c: c}
		},
	})
}

// bootstrap is the cluster that the first order leader writes into an empty order log.
func (c *Core) bootstrap() *braidpb.Init {
	members := slices.Clone(c.cfg.Members)
	slices.SortFunc(members, func(a, b *braidpb.Member) int {
		if a.GetId() < b.GetId() {
			return -1
		}
		return 1
	})
	in := &braidpb.Init{ClusterId: c.cfg.ClusterID, Members: members}
	bounds := append([][]byte{nil}, c.cfg.InitialSplitKeys...)
	for i, start := range bounds {
		d := &braidpb.RangeDescriptor{Id: uint64(i + 1), Start: start, Generation: 1, Version: 1}
		if i+1 < len(bounds) {
			d.End = bounds[i+1]
		}
		for n, m := range members {
			d.Replicas = append(d.Replicas, &braidpb.Replica{Node: m.GetId(), ReplicaId: uint64(n + 1)})
		}
		in.Ranges = append(in.Ranges, d)
	}
	return in
}

// raftSender sends Raft's messages.
type raftSender struct{ c *Core }

func (s raftSender) SendRaft(to ids.NodeID, group ids.GroupID, body []byte) {
	s.c.cfg.Send(to, &braidpb.Letter{Kind: kindRaft, Group: uint64(group), Body: body})
}

func (c *Core) sendLetter(to ids.NodeID, kind uint32, group uint64, m proto.Message) {
	body, err := proto.Marshal(m)
	if err != nil {
		c.cfg.Logger.Error("encoding a letter", "kind", kind, "err", err)
		return
	}
	c.cfg.Send(to, &braidpb.Letter{Kind: kind, Group: group, Body: body})
}

// Receive takes a letter of another node. Any goroutine may call it; letters of one node must come in order.
func (c *Core) Receive(from ids.NodeID, l *braidpb.Letter) {
	if err := c.receive(from, l); err != nil {
		c.cfg.Logger.Warn("letter not taken", "from", from.String(), "kind", l.GetKind(), "err", err)
	}
}

func (c *Core) receive(from ids.NodeID, l *braidpb.Letter) error {
	group := ids.GroupID(l.GetGroup())
	switch kind := l.GetKind(); {
	case kind == kindRaft:
		return c.store.Receive(from, group, l.GetBody())
	case kind == kindRangeRequest:
		m := &braidpb.RangeRequest{}
		if err := proto.Unmarshal(l.GetBody(), m); err != nil {
			return err
		}
		return c.submitter.serve(from, m)
	case kind == kindRangeResponse:
		m := &braidpb.RangeResponse{}
		if err := proto.Unmarshal(l.GetBody(), m); err != nil {
			return err
		}
		return c.submitter.response(m)
	case kind == kindState:
		m := &braidpb.StateRequest{}
		if err := proto.Unmarshal(l.GetBody(), m); err != nil {
			return err
		}
		c.store.Enqueue(group, ranges.StateRequest{From: from, M: m})
	case kind == kindStateChunk:
		m := &braidpb.StateChunk{}
		if err := proto.Unmarshal(l.GetBody(), m); err != nil {
			return err
		}
		c.store.Enqueue(group, ranges.StateChunk{From: from, M: m})
	case kind >= kindOrder:
		c.store.Enqueue(ids.OrderGroup, order.Letter{From: from, Kind: order.LetterKind(kind - kindOrder), Body: l.GetBody()})
	default:
		return errors.New("unknown kind")
	}
	return nil
}

// PeerUp and PeerDown tell what the transport knows of other nodes.
func (c *Core) PeerUp(node ids.NodeID, incarnation uint64) { c.store.PeerUp(node, incarnation) }

// PeerDown tells that a node cannot be reached.
func (c *Core) PeerDown(node ids.NodeID) {
	c.store.PeerDown(node)
	c.submitter.peerDown(node)
}

// Tick lets a tick (a heartbeat interval) pass.
func (c *Core) Tick() {
	c.store.Tick()
	c.submitter.tick()
	c.server.Tick()
	c.flusher.tick()
	c.checkCompacted()
}

// Workers is the number of workers to be pumped.
func (c *Core) Workers() int { return c.store.Workers() }

// PumpWorker does the work of one worker, and reports whether there was any. What it gave to the log still waits for the disk (PumpLog).
func (c *Core) PumpWorker(i int) bool { return c.store.Pump(i) }

// PumpLog waits for the disk and completes what was appended.
func (c *Core) PumpLog() bool {
	worked, err := c.log.Pump()
	if err != nil {
		c.fatal(err)
	}
	return worked
}

// BackgroundPending tells whether PumpBackground has something to do.
func (c *Core) BackgroundPending() bool { return c.background.pending() }

// PumpBackground does one background job.
func (c *Core) PumpBackground() bool { return c.background.pump() }

// Server is the node's API.
func (c *Core) Server() *router.Server { return c.server }

// View is the order state as last published.
func (c *Core) View() *order.View { return c.order.View() }

// fatal notes the first reason why the node cannot go on.
func (c *Core) fatal(err error) {
	if c.failure.CompareAndSwap(nil, &err) {
		c.cfg.Fatal(err)
	}
}

// Failed is why the node cannot go on, nil if it can.
func (c *Core) Failed() error {
	if p := c.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// leaderOf is the node that leads a range, as far as the local replica knows.
func (c *Core) leaderOf(r ids.RangeID) (ids.NodeID, bool) {
	role, ok := c.store.Role(ids.GroupOf(r))
	return role.Leader, ok && role.Leader != 0
}

func (c *Core) local(r ids.RangeID) *localRange { return (*c.ranges.Load())[r] }

func (c *Core) setLocal(r ids.RangeID, l *localRange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[ids.RangeID]*localRange{r: l}
	for k, v := range *c.ranges.Load() {
		if k != r {
			next[k] = v
		}
	}
	c.ranges.Store(&next)
}

// locals are the ranges with a replica here, in ascending order.
func (c *Core) locals() []*localRange {
	m := *c.ranges.Load()
	out := make([]*localRange, 0, len(m))
	for _, l := range m {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *localRange) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return out
}

// Close closes the engines. Nothing may be pumped any more, and no request may be under way.
func (c *Core) Close() error {
	c.background.close()
	c.submitter.close()
	err := c.closeReplicas()
	if c.Failed() == nil {
		err = errors.Join(err, c.engines.FlushData()) // so that the next start has little to apply again
	}
	return errors.Join(err, c.closeEngines())
}

// closeReplicas lets the replicas go of what they hold open on the engines.
func (c *Core) closeReplicas() error {
	var errs []error
	for _, l := range c.locals() {
		errs = append(errs, l.replica.Close())
	}
	return errors.Join(errs...)
}

// Abandon ends a node as a crash does, for the simulation: nothing is handed over, flushed or answered.
func (c *Core) Abandon() {
	defer func() { _ = recover() }() // the engines complain of iterators that are open, as they may be in a crash
	c.background.close()
	_ = errors.Join(c.closeReplicas(), c.closeEngines()) // their errors are lost with the process
}

func (c *Core) closeEngines() error {
	if c.engines == nil {
		return nil
	}
	return c.engines.Close()
}

// Reader reads the node's data engine.
func (c *Core) Reader() mvcc.Reader { return c.engines.Data }

// Settled tells whether every local replica has applied all that the node's order state has for it.
func (c *Core) Settled() bool {
	v := c.order.View()
	for _, l := range c.locals() {
		if !l.replica.Frontier().Passed(v.Position) {
			return false
		}
	}
	return v.Initialised && len(c.locals()) > 0
}

// Describe says in a line where the replicas are, for reports of what does not move.
func (c *Core) Describe() string {
	out := ""
	for _, l := range c.locals() {
		role, _ := c.store.Role(ids.GroupOf(l.id))
		out += fmt.Sprintf("[range %d term %d leader %v frontier %d]", l.id, role.Term, role.Leader, l.replica.Frontier().Newest())
	}
	return out
}
