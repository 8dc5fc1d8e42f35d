package raftgroup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/raftlog"
)

// liveCluster is three stores with their goroutines, connected directly.
type liveCluster struct {
	t      testing.TB
	groups int
	nodes  []*liveNode
	stop   chan struct{}
	wg     sync.WaitGroup
}

type liveNode struct {
	c        *liveCluster
	id       ids.NodeID
	db       *pebble.DB
	log      *raftlog.Log
	store    *Store
	machines []*liveMachine
	run      chan error
	down     atomic.Bool
	fatal    atomic.Pointer[error]
}

// liveMachine counts and tells who waits for its own proposals.
type liveMachine struct {
	g       *Group
	role    Role
	waiting map[string]func(error)
	log     []string
	mu      sync.Mutex // of log, which the test reads
	keep    bool
}

type liveProposal struct {
	data string
	done func(error)
}

func (m *liveMachine) Handle(events []any) {
	for _, ev := range events {
		p := ev.(liveProposal)
		if err := m.g.Propose([]byte(p.data)); err != nil {
			p.done(err)
			continue
		}
		m.waiting[p.data] = p.done
	}
}

func (m *liveMachine) Deliver(ents []Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range ents {
		if len(e.Data) == 0 {
			continue
		}
		if m.keep {
			m.log = append(m.log, string(e.Data))
		}
		if done := m.waiting[string(e.Data)]; done != nil {
			delete(m.waiting, string(e.Data))
			done(nil)
		}
	}
	if last := ents[len(ents)-1].Index; last%1024 == 0 && last > 4096 {
		m.g.Truncate(last - 4096)
	}
}

func (m *liveMachine) Role(r Role)                                         { m.role = r }
func (m *liveMachine) ReadState(uint64, ids.Index)                         {}
func (m *liveMachine) Tick()                                               {}
func (m *liveMachine) Flush()                                              {}
func (m *liveMachine) SnapshotMeta() (SnapMeta, bool)                      { return SnapMeta{}, false }
func (m *liveMachine) Restore(_ ids.NodeID, _ SnapMeta, d func(*SnapMeta)) { d(nil) }

func (n *liveNode) SendRaft(to ids.NodeID, group ids.GroupID, body []byte) {
	if dst := n.c.nodes[to-1]; !n.down.Load() && !dst.down.Load() {
		if err := dst.store.Receive(n.id, group, body); err != nil {
			n.c.t.Error(err)
		}
	}
}

func startLive(t testing.TB, groups, workers int, tick time.Duration, fs func(ids.NodeID) (vfs.FS, string)) *liveCluster {
	c := &liveCluster{t: t, groups: groups, stop: make(chan struct{})}
	for id := ids.NodeID(1); id <= 3; id++ {
		n := &liveNode{c: c, id: id, run: make(chan error, 1)}
		f, dir := fs(id)
		var err error
		if n.db, err = pebble.Open(dir, &pebble.Options{FS: f, FormatMajorVersion: pebble.FormatNewest, Logger: panicLogger{}, MemTableSize: 64 << 20}); err != nil {
			t.Fatal(err)
		}
		if n.log, err = raftlog.Open(n.db, func(err error) { n.fatal.Store(&err) }, raftlog.Options{}); err != nil {
			t.Fatal(err)
		}
		if n.store, err = New(Config{Node: id, Incarnation: 1, Workers: workers}, n.log, n); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		for g := range groups {
			err := n.store.Add(GroupConfig{
				ID: ids.GroupID(g), Replica: ids.ReplicaID(n.id), Peers: func(r ids.ReplicaID) ids.NodeID { return ids.NodeID(r) },
				Initial: ConfState{Voters: []ids.ReplicaID{1, 2, 3}},
				New: func(g *Group) Machine {
					m := &liveMachine{g: g, waiting: map[string]func(error){}, keep: tick > 0}
					n.machines = append(n.machines, m)
					return m
				},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		c.wg.Go(func() { n.run <- n.store.Run(context.Background()) })
		c.wg.Go(func() {
			for tick := time.NewTicker(max(tick, 10*time.Millisecond)); ; {
				select {
				case <-tick.C:
					n.store.Tick()
				case <-c.stop:
					tick.Stop()
					return
				}
			}
		})
	}
	return c
}

func (c *liveCluster) close() {
	close(c.stop)
	for _, n := range c.nodes {
		n.store.Stop(context.Background())
	}
	c.wg.Wait()
	for _, n := range c.nodes {
		n.db.Close()
	}
}

// leader waits for a group's leader.
func (c *liveCluster) leader(g ids.GroupID) *liveNode {
	for range 1000 {
		for _, n := range c.nodes {
			if r, _ := n.store.Role(g); r.IsLeader && !n.down.Load() {
				return n
			}
		}
		<-time.After(20 * time.Millisecond) // virtual time, except in the benchmark
	}
	c.t.Fatalf("no leader of group %d", g)
	return nil
}

// put proposes until it is committed.
func (c *liveCluster) put(g ids.GroupID, data string) {
	for {
		done := make(chan error, 1)
		c.leader(g).store.Enqueue(g, liveProposal{data, func(err error) { done <- err }})
		select {
		case err := <-done:
			if err == nil {
				return
			}
			<-time.After(50 * time.Millisecond)
		case <-time.After(5 * time.Second):
		}
	}
}

// TestRun shows the goroutines at work: proposals from many at once, a stop with hand-over, the same log everywhere. In virtual time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startLive(t, 3, 2, 100*time.Millisecond, func(ids.NodeID) (vfs.FS, string) { return vfs.NewMem(), "log" })
		defer c.close()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range 30 {
					c.put(ids.GroupID(j%3), fmt.Sprintf("%d-%d", i, j))
				}
			})
		}
		wg.Wait()

		leaving := c.leader(0)
		start := time.Now()
		if err := leaving.store.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("stopping took %v", took)
		}
		if err := <-leaving.run; err != nil {
			t.Error(err)
		}
		leaving.down.Store(true)
		if leaving.store.Add(GroupConfig{ID: 77}) != ErrStopped || leaving.store.Run(context.Background()) != ErrStopped {
			t.Error("a stopped store still works")
		}
		for g := range ids.GroupID(3) {
			c.put(g, fmt.Sprint("after-", g))
		}
		<-time.After(time.Second)
		for g := range 3 {
			var logs []string
			for _, n := range c.nodes {
				if n != leaving {
					m := n.machines[g]
					m.mu.Lock()
					logs = append(logs, strings.Join(m.log, " "))
					m.mu.Unlock()
				}
			}
			if logs[0] != logs[1] || strings.Count(logs[0], " ") < 80 {
				t.Errorf("group %d:\n%s\n%s", g, logs[0], logs[1])
			}
		}
	})
}

// TestDiskErrorStops shows that a node whose disk fails acknowledges nothing more, and says so.
func TestDiskErrorStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken errorfs.Toggle
		broken.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
				return errors.New("injected")
			}
			return nil
		})
		c := startLive(t, 1, 1, 100*time.Millisecond, func(id ids.NodeID) (vfs.FS, string) {
			if id == 1 {
				return errorfs.Wrap(vfs.NewMem(), &broken), "log"
			}
			return vfs.NewMem(), "log"
		})
		defer c.close()
		c.put(0, "before")
		<-time.After(time.Second)
		n := c.nodes[0]
		acked := n.store.Counters().EntriesDelivered
		broken.On()
		for i := range 5 {
			if c.leader(0) == n {
				n.store.Enqueue(0, liveProposal{fmt.Sprint("lost-", i), func(err error) {
					if err == nil {
						t.Error("acknowledged by a node without disk")
					}
				}})
				<-time.After(5 * time.Second)
				continue
			}
			c.put(0, fmt.Sprint("after-", i))
		}
		<-time.After(time.Second)
		if err := <-n.run; err == nil || !strings.Contains(err.Error(), "injected") {
			t.Errorf("Run: %v", err)
		}
		if n.fatal.Load() == nil {
			t.Error("nobody was told")
		}
		if got := n.store.Counters().EntriesDelivered; got > acked+1 {
			t.Errorf("%d entries delivered after the error", got-acked)
		}
		n.down.Store(true)
		c.put(0, "end")
	})
}

// BenchmarkCommit measures a proposal's way on three nodes in one process: append and sync on all, acknowledge, commit, deliver.
func BenchmarkCommit(b *testing.B) {
	for _, disk := range []bool{false, true} {
		for _, clients := range []int{1, 64} {
			name := fmt.Sprintf("mem/clients=%d", clients)
			if disk {
				name = fmt.Sprintf("disk/clients=%d", clients)
			}
			b.Run(name, func(b *testing.B) {
				c := startLive(b, 1, 1, 0, func(id ids.NodeID) (vfs.FS, string) {
					if disk {
						return vfs.Default, b.TempDir()
					}
					return vfs.NewMem(), "log"
				})
				defer c.close()
				n := c.leader(0)
				c.put(0, "warm")
				data := strings.Repeat("x", 256)
				b.ReportAllocs()
				b.ResetTimer()
				var next atomic.Int64
				var wg sync.WaitGroup
				for range clients {
					wg.Go(func() {
						done := make(chan error, 1)
						for {
							i := next.Add(1)
							if i > int64(b.N) {
								return
							}
							n.store.Enqueue(0, liveProposal{fmt.Sprintf("%s%d", data, i), func(err error) { done <- err }})
							if err := <-done; err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				lc, sc := n.log.Counters(), n.store.Counters()
				b.ReportMetric(float64(lc.EntriesWritten)/float64(max(1, lc.Syncs)), "entries/sync")
				b.ReportMetric(float64(sc.Passes)/float64(b.N), "passes/op")
				b.ReportMetric(float64(lc.SyncTime.Microseconds())/float64(max(1, lc.Syncs)), "µs/sync")
			})
		}
	}
}
