package peer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/peer/peertest"
	braidpb "github.com/braidkv/braid/proto"
)

func letter(kind uint32, body string) *braidpb.Letter {
	return &braidpb.Letter{Kind: kind, Body: []byte(body)}
}

// bubble runs a test in virtual time with a network; nodes that it made are closed by it.
func bubble(t *testing.T, run func(t *testing.T, m *memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newMemory(t)) })
}

func closeAll(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

func stats(n *node, of ids.NodeID) Stats {
	for _, s := range n.Stats() {
		if s.Node == of {
			return s
		}
	}
	return Stats{}
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Config) // of node 2, which talks to a right node 1
		want   string        // in node 1's log
	}{
		{"cluster", func(c *Config) { c.ClusterID = 78 }, "cluster ID mismatch: node 2 is in cluster 4e, node 1 in cluster 4d"},
		{"unknown", func(c *Config) { c.Self = 9 }, "node 9 is not a peer of node 1"},
		{"same ID", func(c *Config) { c.Self = 1; c.Peers = map[ids.NodeID][]string{3: {"http://node1:1"}} },
			"node ID mismatch: node 1 looks for node 3 and found node 1"},
		{"wrong address", func(c *Config) { c.Peers = map[ids.NodeID][]string{3: {"http://node1:1"}} },
			"node ID mismatch: node 2 looks for node 3 and found node 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *memory) {
				one := m.start(1, 101, nil)
				two := m.start(2, 102, nil, test.change)
				defer closeAll(t, one, two)
				<-time.After(20 * time.Second)
				if n := one.log.count(test.want); n != 1 {
					t.Errorf("%q is logged %d times, want once:\n%s", test.want, n, one.log.text.String())
				}
				if n := two.log.count("connecting to node1:1: refused: "); n != 1 {
					t.Errorf("the refused node logs it %d times, want once:\n%s", n, two.log.text.String())
				}
				if one.rec.Changes() != 0 {
					t.Error("the right node has reported the other one")
				}
			})
		})
	}
}

func TestSamePeerTwice(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		one := m.start(1, 101, nil)
		two := m.start(2, 102, nil)
		peertest.Eventually(t, "node 2 is up", func() bool { return one.rec.Incarnation(2) == 102 })
		// The same node again, as if its first process had died without a word.
		again := m.start(2, 202, nil)
		defer closeAll(t, one, two, again)
		peertest.Eventually(t, "the new process takes the place of the old one", func() bool { return one.rec.Incarnation(2) == 202 })
	})
}

func TestSilenceAndReturn(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		one, two, three := m.start(1, 101, nil), m.start(2, 102, nil), m.start(3, 103, nil)
		defer closeAll(t, one, two, three)
		for _, n := range []*node{one, two, three} {
			for id := ids.NodeID(1); id <= 3; id++ {
				if id != n.cfg.Self {
					peertest.Eventually(t, "all up", func() bool { return n.rec.Incarnation(id) != 0 && stats(n, id).Connected })
				}
			}
		}
		// Node 3's cable: what is sent to it is lost. What it sends itself arrives.
		m.cut(true, addrOf(3))
		began := time.Now()
		peertest.Eventually(t, "node 3 hears nobody", func() bool { return three.rec.Incarnation(1) == 0 && three.rec.Incarnation(2) == 0 })
		if d := time.Since(began); d > 1500*time.Millisecond {
			t.Errorf("it took %v to notice silence", d)
		}
		<-time.After(30 * time.Second)
		if one.rec.Incarnation(3) != 103 || one.rec.Incarnation(2) != 102 {
			t.Error("node 1 hears the others and says that they are down")
		}
		m.cut(false, addrOf(3))
		began = time.Now()
		peertest.Eventually(t, "node 3 hears the others again", func() bool {
			one.Send(3, letter(5, "after"))
			return three.rec.Incarnation(1) == 101 && three.rec.Incarnation(2) == 102 && three.rec.Count(1) > 0
		})
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("it took %v to return", d)
		}

		// The whole network is dead for a while.
		m.cut(true, addrOf(1), addrOf(2), addrOf(3))
		peertest.Eventually(t, "nobody hears anybody", func() bool {
			for _, n := range []*node{one, two, three} {
				for id := ids.NodeID(1); id <= 3; id++ {
					if n.rec.Incarnation(id) != 0 {
						return false
					}
				}
			}
			return true
		})
		m.cut(false, addrOf(1), addrOf(2), addrOf(3))
		began = time.Now()
		peertest.Eventually(t, "all hear all", func() bool {
			for _, n := range []*node{one, two, three} {
				for id := ids.NodeID(1); id <= 3; id++ {
					if id != n.cfg.Self && n.rec.Incarnation(id) == 0 {
						return false
					}
				}
			}
			return true
		})
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("it took %v to return", d)
		}
	})
}

// TestSlowPeer: a peer that lives and takes nothing costs bounded memory, and gets what was kept when it goes on.
func TestSlowPeer(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		const limit = 1 << 20
		one := m.start(1, 101, nil, func(c *Config) { c.MaxQueueBytes = limit })
		two := m.start(2, 102, nil)
		peertest.Eventually(t, "up", func() bool { return two.rec.Incarnation(1) != 0 && one.rec.Incarnation(2) != 0 })
		release := two.rec.Block()
		body := strings.Repeat("x", 100_000)
		for range 600 { // 60 MB: more than the window and the queue
			one.Send(2, letter(1, body))
			synctest.Wait()
		}
		<-time.After(30 * time.Second)
		s := stats(one, 2)
		if s.QueuedBytes > limit || s.Dropped == 0 {
			t.Errorf("queued %d bytes with a limit of %d, dropped %d", s.QueuedBytes, limit, s.Dropped)
		}
		if two.rec.Incarnation(1) == 0 || one.rec.Incarnation(2) == 0 {
			t.Error("a slow handler is taken for a dead node")
		}
		release()
		peertest.Eventually(t, "what was not dropped arrives", func() bool { return two.rec.Count(1) == 600-int(s.Dropped) })
		one.Send(2, letter(2, "again"))
		peertest.Eventually(t, "letters arrive again", func() bool { return two.rec.Count(1) == 601-int(s.Dropped) })
		if one.log.count("dropped letters to a peer") != 1 {
			t.Errorf("the loss is not in the log once:\n%s", one.log.text.String())
		}
		closeAll(t, one, two)
	})
}

// TestSlowNetwork: a letter that takes longer than a peer may be silent arrives, and its sender is not taken for dead.
func TestSlowNetwork(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		one, two := m.start(1, 101, nil), m.start(2, 102, nil)
		peertest.Eventually(t, "up", func() bool { return stats(one, 2).Connected && two.rec.Incarnation(1) != 0 })
		m.mu.Lock()
		m.slow = 10 * time.Millisecond
		m.mu.Unlock()
		began := time.Now()
		one.Send(2, letter(1, strings.Repeat("x", 1<<20)))
		peertest.Eventually(t, "the letter", func() bool { return two.rec.Count(1) == 1 })
		if d := time.Since(began); d < 5*time.Second {
			t.Errorf("the network is not slow: %v", d)
		}
		if two.rec.Changes() != 1 || one.rec.Changes() != 1 {
			t.Error("a node was down meanwhile")
		}
		closeAll(t, one, two)
	})
}

func TestQueueWhileUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		one := m.start(1, 101, nil)
		one.Send(2, letter(1, "early"))
		<-time.After(200 * time.Millisecond)
		two := m.start(2, 102, nil)
		peertest.Eventually(t, "a letter that waited a little arrives", func() bool { return two.rec.Count(1) == 1 })
		closeAll(t, two)
		peertest.Eventually(t, "down", func() bool { return one.rec.Incarnation(2) == 0 && !stats(one, 2).Connected })
		<-time.After(3 * time.Second)
		one.Send(2, letter(2, "nobody there"))
		<-time.After(3 * time.Second)
		if s := stats(one, 2); s.QueuedLetters != 0 || s.QueuedBytes != 0 || s.Dropped != 1 {
			t.Errorf("%d letters (%d bytes) still wait, %d dropped; want the letter dropped", s.QueuedLetters, s.QueuedBytes, s.Dropped)
		}
		two = m.start(2, 202, nil)
		peertest.Eventually(t, "up again", func() bool { return one.rec.Incarnation(2) == 202 && stats(one, 2).Connected })
		if n := two.rec.Count(1); n != 0 {
			t.Errorf("%d letters to the old process arrived", n)
		}
		closeAll(t, one, two)
	})
}

func TestSetPeers(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		one, two := m.start(1, 101, nil), m.start(2, 102, nil)
		peertest.Eventually(t, "up", func() bool { return one.rec.Incarnation(2) != 0 && two.rec.Incarnation(1) != 0 })
		if err := one.SetPeers(peersOf(1, 3)); err != nil {
			t.Fatal(err)
		}
		if one.rec.Incarnation(2) != 0 {
			t.Error("a removed peer is still up when SetPeers returns")
		}
		one.Send(2, letter(1, "to a removed peer"))
		peertest.Eventually(t, "node 2 sees node 1 down", func() bool { return two.rec.Incarnation(1) == 0 })
		<-time.After(10 * time.Second)
		if one.rec.Changes() != 2 {
			t.Error("a removed peer came back")
		}
		if err := one.SetPeers(map[ids.NodeID][]string{2: {"http://wrong:1", "http://" + addrOf(2)}}); err != nil {
			t.Fatal(err)
		}
		peertest.Eventually(t, "node 2 is back, at its second URL", func() bool {
			return one.rec.Incarnation(2) == 102 && two.rec.Incarnation(1) == 101
		})
		if n := two.rec.Count(1); n != 0 {
			t.Errorf("%d letters to the removed peer arrived", n)
		}
		for _, bad := range []string{"https://x:1", "node2:1", "http://node2", "ftp://x:1", "unix://"} {
			if err := one.SetPeers(map[ids.NodeID][]string{2: {bad}}); err == nil {
				t.Errorf("URL %q is accepted", bad)
			}
		}
		if one.rec.Incarnation(2) != 102 {
			t.Error("a faulty call changed the peers")
		}
		closeAll(t, one, two)
		if err := one.SetPeers(nil); !errors.Is(err, ErrClosed) {
			t.Errorf("SetPeers after Close: %v", err)
		}
	})
}

func TestLimits(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		small := func(c *Config) { c.MaxLetterBytes, c.MaxEnvelopeBytes, c.MaxQueueBytes = 10_000, 5_000, 100_000 }
		one, two := m.start(1, 101, nil, small), m.start(2, 102, nil, small)
		peertest.Eventually(t, "up", func() bool { return stats(one, 2).Connected && two.rec.Incarnation(1) != 0 })
		before := stats(one, 2)
		one.Send(2, letter(1, strings.Repeat("x", 10_001)))
		one.Send(2, letter(2, strings.Repeat("x", 10_000)))
		for range 9 {
			one.Send(2, letter(3, strings.Repeat("x", 1000)))
		}
		peertest.Eventually(t, "all but the large letter", func() bool { return two.rec.Count(1) == 10 })
		s := stats(one, 2)
		if s.Dropped != 1 || s.Sessions != 1 || s.SentLetters-before.SentLetters != 10 || s.QueuedBytes != 0 {
			t.Errorf("dropped %d, %d sessions, sent %d letters, %d bytes queued", s.Dropped, s.Sessions, s.SentLetters, s.QueuedBytes)
		}
		if n := s.SentEnvelopes - before.SentEnvelopes; n < 4 {
			t.Errorf("19,000 bytes left in %d envelopes of at most 5,000", n)
		}
		closeAll(t, one, two)
	})
}

// TestCloseFlushes: what a node that stops has sent arrives at those it is connected to.
func TestCloseFlushes(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		one, two := m.start(1, 101, nil), m.start(2, 102, nil)
		peertest.Eventually(t, "up", func() bool { return stats(one, 2).Connected && two.rec.Incarnation(1) != 0 })
		for i := range 1000 {
			one.Send(2, letter(1, fmt.Sprint(i)))
		}
		began := time.Now()
		closeAll(t, one)
		if d := time.Since(began); d > 20*time.Millisecond {
			t.Errorf("Close took %v", d)
		}
		peertest.Eventually(t, "down", func() bool { return two.rec.Incarnation(1) == 0 })
		if n := two.rec.Count(1); n != 1000 {
			t.Errorf("%d letters of 1000 arrived", n)
		}
		closeAll(t, two)
		closeAll(t, two) // a second time does nothing
		two.Send(1, letter(1, "after Close"))
	})
}

// TestCloseIsBounded: a peer that takes nothing does not keep a node from stopping.
func TestCloseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		one, two := m.start(1, 101, nil), m.start(2, 102, nil)
		peertest.Eventually(t, "up", func() bool { return stats(one, 2).Connected && two.rec.Incarnation(1) != 0 })
		m.cut(true, addrOf(1), addrOf(2))
		one.Send(2, letter(1, "lost"))
		began := time.Now()
		closeAll(t, one)
		if d := time.Since(began); d > time.Second {
			t.Errorf("Close took %v", d)
		}
		m.cut(false, addrOf(1), addrOf(2))
		closeAll(t, two)
	})
}

func TestStartOrder(t *testing.T) {
	bubble(t, func(t *testing.T, m *memory) {
		one := m.start(1, 101, nil)
		<-time.After(30 * time.Second) // long enough for the longest pause between attempts
		if n := m.dialed(addrOf(2)); n < 30 || n > 120 {
			t.Errorf("dialed %d times in 30 s", n)
		}
		if n := one.log.count("cannot reach a peer"); n != 2 {
			t.Errorf("logged %d times that two peers are not there:\n%s", n, one.log.text.String())
		}
		two := m.start(2, 102, nil)
		began := time.Now()
		peertest.Eventually(t, "connected both ways", func() bool { return stats(one, 2).Connected && stats(two, 1).Connected })
		if d := time.Since(began); d > 50*time.Millisecond {
			t.Errorf("it took %v: the hello of a peer should make a node dial it", d)
		}
		closeAll(t, one, two)
	})
}

func TestConfigFaults(t *testing.T) {
	err := Config{HeartbeatInterval: second, DeadAfter: second, Peers: map[ids.NodeID][]string{2: {"x"}, 3: nil}}.Validate()
	for _, want := range []string{"no ID", "no incarnation", "less than three", `URL "x"`, "node 3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the faults do not name %q: %v", want, err)
		}
	}
	if err := (Config{Self: 1, Incarnation: 1, Peers: peersOf(1, 2)}).Validate(); err != nil {
		t.Error(err)
	}
}

const second = time.Second
