package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/node"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"
)

// Options shape a cluster and its environment.
type Options struct {
	Seed      uint64
	Nodes     int
	SplitKeys []string
	Mutation  node.Mutation
	// Net and Disk are drawn from the seed unless set.
	LossRate, DuplicateRate float64
	MinDelay, MaxDelay      Time
	MinSync, MaxSync        Time
	// Knobs of the nodes, drawn from the seed unless set: they make rare paths common.
	FlushTicks, StuckTicks, LockTicks int
	KeepEntries                       uint64
	Log                               io.Writer // nil: quiet
}

// tickInterval is the virtual length of a Raft tick (etcd's heartbeat interval).
const tickInterval = 100 * Millisecond

// member is one simulated node: its disk, and its process while it runs.
type member struct {
	id          ids.NodeID
	fs          *vfs.MemFS
	core        *node.Core // nil while crashed
	incarnation uint64
	skew        Time // its ticks are this much longer
	frozen      bool // SIGSTOP: nothing of it runs
	pumpQueued  bool
	logQueued   bool
	bgQueued    bool
	watchQueued bool
}

// Cluster is a set of simulated nodes and the network between them.
type Cluster struct {
	World   *World
	opts    Options
	members []*member
	cut     map[[2]ids.NodeID]bool // from -> to is cut off
	calm    bool                   // no losses, no delays beyond the usual
	slow    map[ids.NodeID]bool    // disks that take much longer
	calls   []*call                // requests under way, in the order in which they were made
	err     error                  // the first broken invariant
}

// call is a request under way at a node.
type call struct {
	p    *Proc
	node ids.NodeID
}

// NewCluster builds the nodes of a cluster; nothing runs until the World does.
func NewCluster(o Options) *Cluster {
	c := &Cluster{World: NewWorld(o.Seed), opts: o, cut: map[[2]ids.NodeID]bool{}, slow: map[ids.NodeID]bool{}}
	w := c.World
	if c.opts.MaxDelay == 0 {
		c.opts.MinDelay, c.opts.MaxDelay = 50*Microsecond, w.Between(200*Microsecond, 3*Millisecond)
	}
	if c.opts.MaxSync == 0 {
		c.opts.MinSync, c.opts.MaxSync = 20*Microsecond, w.Between(100*Microsecond, 5*Millisecond)
	}
	if c.opts.FlushTicks == 0 {
		draw := func(xs ...int) int { return xs[w.Rand.IntN(len(xs))] }
		c.opts.FlushTicks, c.opts.StuckTicks, c.opts.LockTicks = draw(1, 4, 50), draw(1, 4, 30), draw(3, 50)
		c.opts.KeepEntries = uint64(draw(1, 10, 1000))
	}
	for i := range o.Nodes {
		c.members = append(c.members, &member{
			id: ids.NodeID(i + 1), fs: vfs.NewCrashableMem(), skew: w.Between(0, 5*Millisecond),
		})
	}
	return c
}

// Start starts every node.
func (c *Cluster) Start() {
	for _, m := range c.members {
		c.startNode(m)
	}
}

func (c *Cluster) logger(m *member) *slog.Logger {
	if c.opts.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(c.opts.Log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", m.id)
}

func (c *Cluster) startNode(m *member) {
	m.incarnation++
	cfg := node.CoreConfig{
		Config: node.Config{
			Name: fmt.Sprintf("n%d", m.id), DataDir: "/braid/data", FS: m.fs, Logger: c.logger(m),
			SnapshotCount: c.opts.KeepEntries,
		},
		Self: m.id, ClusterID: 0xb1a1d, Incarnation: m.incarnation, Workers: 1,
		FlushTicks: c.opts.FlushTicks, RangeTiming: ranges.Timing{StuckTicks: c.opts.StuckTicks, LockTicks: c.opts.LockTicks},
		ElectionTicks: 10, Await: c.World.Await, Mutation: c.opts.Mutation,
	}
	for _, k := range c.opts.SplitKeys {
		cfg.InitialSplitKeys = append(cfg.InitialSplitKeys, []byte(k))
	}
	for _, o := range c.members {
		cfg.Members = append(cfg.Members, &braidpb.Member{Id: uint64(o.id), Name: fmt.Sprintf("n%d", o.id), PeerUrls: []string{fmt.Sprintf("http://n%d", o.id)}})
	}
	incarnation := m.incarnation
	cfg.Send = func(to ids.NodeID, l *braidpb.Letter) { c.send(m, incarnation, to, l) }
	cfg.Fatal = func(err error) { c.fail(fmt.Errorf("node %v stopped: %w", m.id, err)) }
	core, err := node.OpenCore(cfg)
	if err != nil {
		c.fail(fmt.Errorf("opening node %v: %w", m.id, err))
		return
	}
	m.core, m.frozen, m.pumpQueued, m.logQueued, m.bgQueued, m.watchQueued = core, false, false, false, false, false
	for _, o := range c.members {
		if o.core != nil && o != m {
			o.core.PeerUp(m.id, m.incarnation)
			core.PeerUp(o.id, o.incarnation)
		}
	}
	c.tickLater(m, incarnation)
	c.wake(m)
}

func (c *Cluster) fail(err error) {
	if c.err == nil {
		c.err = fmt.Errorf("at %d µs: %w", c.World.Now, err)
	}
}

func (c *Cluster) alive(m *member, incarnation uint64) bool {
	return m.core != nil && m.incarnation == incarnation
}

func (c *Cluster) tickLater(m *member, incarnation uint64) {
	c.World.After(tickInterval+m.skew, "tick", func() {
		if !c.alive(m, incarnation) {
			return
		}
		if !m.frozen {
			m.core.Tick()
			c.wake(m)
		}
		c.tickLater(m, incarnation)
	})
}

// wake queues the pumps of a node that may have work.
func (c *Cluster) wake(m *member) {
	if m.core == nil || m.frozen {
		return
	}
	inc := m.incarnation
	if !m.pumpQueued {
		m.pumpQueued = true
		c.World.After(c.World.Between(1, 30), "pump", func() {
			if !c.alive(m, inc) {
				return
			}
			m.pumpQueued = false
			if m.frozen {
				return
			}
			if m.core.PumpWorker(0) {
				c.wake(m)
				c.wakeLog(m)
			}
			c.wakeBackground(m)
			c.wakeWatches(m)
		})
	}
}

// wakeWatches has a node's fan-out look for what was applied, now and then late.
func (c *Cluster) wakeWatches(m *member) {
	if m.watchQueued || !m.core.Watches().Active() {
		return
	}
	m.watchQueued = true
	inc, after := m.incarnation, c.World.Between(1, 200)
	if c.World.Chance(0.02) {
		after = c.World.Between(Millisecond, 200*Millisecond)
	}
	c.World.After(after, "watches", func() {
		if !c.alive(m, inc) {
			return
		}
		m.watchQueued = false
		if !m.frozen && m.core.PumpWatches() {
			c.wakeWatches(m)
		}
	})
}

func (c *Cluster) wakeLog(m *member) {
	if m.logQueued {
		return
	}
	m.logQueued = true
	inc := m.incarnation
	took := c.World.Between(c.opts.MinSync, c.opts.MaxSync)
	if c.slow[m.id] {
		took *= 50
	}
	c.World.After(took, "sync", func() {
		if !c.alive(m, inc) {
			return
		}
		m.logQueued = false
		if m.frozen {
			return
		}
		if m.core.PumpLog() {
			c.wake(m)
			c.wakeLog(m)
		}
	})
}

func (c *Cluster) wakeBackground(m *member) {
	if m.bgQueued || !m.core.BackgroundPending() {
		return
	}
	m.bgQueued = true
	inc := m.incarnation
	c.World.After(c.World.Between(100, 5000), "background", func() {
		if !c.alive(m, inc) {
			return
		}
		m.bgQueued = false
		if m.frozen {
			return
		}
		m.core.PumpBackground()
		c.wake(m)
		c.wakeBackground(m)
	})
}

// send is the network: it loses, doubles, delays and cuts.
func (c *Cluster) send(from *member, incarnation uint64, to ids.NodeID, l *braidpb.Letter) {
	w := c.World
	if to < 1 || int(to) > len(c.members) || !c.alive(from, incarnation) {
		return
	}
	body, err := proto.Marshal(l)
	if err != nil {
		c.fail(fmt.Errorf("marshalling a letter: %w", err))
		return
	}
	copies := 1
	if kind := l.GetKind(); !c.calm {
		if w.Chance(c.opts.LossRate) {
			copies = 0
		} else if !node.AtMostOnce(kind) && w.Chance(c.opts.DuplicateRate) {
			copies = 2
		}
	}
	for range copies {
		w.After(w.Between(c.opts.MinDelay, c.opts.MaxDelay), "letter", func() { c.deliver(from.id, to, bytes.Clone(body)) })
	}
}

func (c *Cluster) deliver(from, to ids.NodeID, body []byte) {
	m := c.members[to-1]
	if m.core == nil || c.cut[[2]ids.NodeID{from, to}] {
		return
	}
	if m.frozen {
		c.World.After(10*Millisecond, "held", func() { c.deliver(from, to, body) })
		return
	}
	l := &braidpb.Letter{}
	if err := proto.Unmarshal(body, l); err != nil {
		c.fail(fmt.Errorf("unmarshalling a letter: %w", err))
		return
	}
	m.core.Receive(from, l)
	c.wake(m)
}

// errNodeDied ends the requests that were under way at a node.
var errNodeDied = errors.New("sim: the node died")

// Crash ends a node as a power loss does: what its disk had not synced is gone.
func (c *Cluster) Crash(m *member) {
	if m.core == nil {
		return
	}
	core, old := m.core, m.fs
	m.core = nil
	m.fs = old.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
	core.Abandon()
	for _, k := range c.calls {
		if k.node == m.id {
			k.p.Break(errNodeDied)
		}
	}
	for _, o := range c.members {
		if o.core != nil {
			o.core.PeerDown(m.id)
			c.wake(o)
		}
	}
}

// Restart starts a crashed node on what its disk holds.
func (c *Cluster) Restart(m *member) {
	if m.core == nil {
		c.startNode(m)
	}
}

// Freeze and thaw are SIGSTOP and SIGCONT.
func (c *Cluster) setFrozen(m *member, frozen bool) {
	m.frozen = frozen
	if !frozen {
		c.wake(m)
		if m.core != nil {
			c.wakeLog(m)
			c.wakeBackground(m)
		}
	}
}

// heal ends all faults.
func (c *Cluster) heal() {
	c.cut = map[[2]ids.NodeID]bool{}
	c.slow = map[ids.NodeID]bool{}
	c.calm = true
	for _, m := range c.members {
		c.setFrozen(m, false)
		c.Restart(m)
	}
}

// nodeAt is a running node, drawn at random; nil if none runs.
func (c *Cluster) nodeAt() *member {
	var up []*member
	for _, m := range c.members {
		if m.core != nil {
			up = append(up, m)
		}
	}
	if len(up) == 0 {
		return nil
	}
	return up[c.World.Rand.IntN(len(up))]
}
