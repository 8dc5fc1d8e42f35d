// Package peertest is the test kit for networks between nodes: Run holds an implementation to what package peer
// promises. The kit runs in synctest bubbles, so time is virtual and an implementation must use in-memory connections.
package peertest

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Handler is what a node is told; see peer.Handler.
type Handler interface {
	Receive(from ids.NodeID, l *braidpb.Letter)
	Up(node ids.NodeID, incarnation uint64)
	Down(node ids.NodeID)
}

// Node is a node on the network.
type Node interface {
	Send(to ids.NodeID, l *braidpb.Letter)
	// Close takes the node off the network; no handler call comes after it.
	Close() error
}

// Network connects the nodes 1, 2 and 3, which know each other.
type Network interface {
	// Start brings up a node, or brings it up again after Close.
	Start(id ids.NodeID, incarnation uint64, h Handler) Node
}

// Run tests a network. newNetwork is called in a bubble, once for each property; what it starts must have ended when the
// nodes are closed.
func Run(t *testing.T, newNetwork func(t *testing.T) Network) {
	for _, test := range []struct {
		name string
		run  func(*kit)
	}{
		{"letters arrive in order", (*kit).ordered},
		{"letters arrive as they were", (*kit).intact},
		{"pairs do not wait for each other", (*kit).independent},
		{"a restarted node is down, then up with its new incarnation", (*kit).restart},
		{"an idle network stays up", (*kit).idle},
		{"letters to nobody vanish", (*kit).nobody},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &kit{T: t, net: newNetwork(t)}
				defer k.close()
				test.run(k)
			})
		})
	}
}

type kit struct {
	*testing.T
	net   Network
	nodes []Node
}

func (k *kit) close() {
	for _, n := range k.nodes {
		if err := n.Close(); err != nil {
			k.Errorf("closing a node: %v", err)
		}
	}
}

func (k *kit) start(id ids.NodeID, incarnation uint64) (Node, *Recorder) {
	r := NewRecorder(k.T, id)
	n := k.net.Start(id, incarnation, r)
	k.nodes = append(k.nodes, n)
	return n, r
}

// cluster starts nodes 1 to 3 and waits until all are up at all.
func (k *kit) cluster() (nodes [4]Node, recs [4]*Recorder) {
	for i := range 3 {
		nodes[i+1], recs[i+1] = k.start(ids.NodeID(i+1), uint64(100+i+1))
	}
	for i := range 3 {
		for j := range 3 {
			if i != j {
				Eventually(k.T, fmt.Sprintf("node %d sees node %d", i+1, j+1), func() bool {
					return recs[i+1].Incarnation(ids.NodeID(j+1)) == uint64(100+j+1)
				})
			}
		}
	}
	return nodes, recs
}

func (k *kit) ordered() {
	nodes, recs := k.cluster()
	const n = 3000
	pairs := [][2]ids.NodeID{{1, 2}, {2, 1}, {1, 3}, {3, 2}}
	for i := range uint64(n) {
		for _, p := range pairs {
			nodes[p[0]].Send(p[1], &braidpb.Letter{Kind: 7, Group: i, Body: fmt.Appendf(nil, "%d->%d %d", p[0], p[1], i)})
		}
	}
	for _, p := range pairs {
		Eventually(k.T, fmt.Sprintf("all letters %d->%d", p[0], p[1]), func() bool { return recs[p[1]].Count(p[0]) == n })
		for i, l := range recs[p[1]].Letters(p[0]) {
			if want := fmt.Sprintf("%d->%d %d", p[0], p[1], i); l.Group != uint64(i) || string(l.Body) != want {
				k.Fatalf("letter %d of %d->%d is number %d, %q", i, p[0], p[1], l.Group, l.Body)
			}
		}
	}
}

func (k *kit) intact() {
	nodes, recs := k.cluster()
	var want []*braidpb.Letter
	for i, size := range []int{0, 1, 127, 128, 1023, 4095, 4096, 4097, 16383, 16384, 70000, 1 << 20, 3 << 20, 0} {
		body := bytes.Repeat([]byte{byte(i), 0xff, 0}, size/3+1)[:size]
		want = append(want, &braidpb.Letter{Kind: uint32(i), Group: uint64(size), Body: body})
	}
	want = append(want, &braidpb.Letter{}, &braidpb.Letter{Kind: 1<<32 - 1, Group: 1<<64 - 1, Body: []byte{0}})
	for _, l := range want {
		nodes[1].Send(2, l)
	}
	Eventually(k.T, "all letters", func() bool { return recs[2].Count(1) == len(want) })
	for i, got := range recs[2].Letters(1) {
		if got.Kind != want[i].Kind || got.Group != want[i].Group || !bytes.Equal(got.Body, want[i].Body) {
			k.Errorf("letter %d: kind %d, group %d, %d bytes; want kind %d, group %d, %d bytes", i,
				got.Kind, got.Group, len(got.Body), want[i].Kind, want[i].Group, len(want[i].Body))
		}
	}
}

func (k *kit) independent() {
	nodes, recs := k.cluster()
	release := recs[2].Block()
	defer release()
	for i := range uint64(500) {
		nodes[1].Send(2, &braidpb.Letter{Kind: 1, Group: i, Body: make([]byte, 1000)})
		nodes[1].Send(3, &braidpb.Letter{Kind: 1, Group: i, Body: make([]byte, 1000)})
	}
	Eventually(k.T, "letters to the node that takes them", func() bool { return recs[3].Count(1) == 500 })
	if n := recs[2].Count(1); n != 0 {
		k.Errorf("the blocked node has taken %d letters", n)
	}
}

func (k *kit) restart() {
	nodes, recs := k.cluster()
	nodes[1].Send(2, &braidpb.Letter{Kind: 1})
	Eventually(k.T, "a letter before the restart", func() bool { return recs[2].Count(1) == 1 })
	if err := nodes[2].Close(); err != nil {
		k.Fatal(err)
	}
	Eventually(k.T, "node 1 sees node 2 down", func() bool { return recs[1].Incarnation(2) == 0 })
	nodes[1].Send(2, &braidpb.Letter{Kind: 2}) // may be lost
	_, again := k.start(2, 202)
	Eventually(k.T, "node 1 sees node 2 again", func() bool { return recs[1].Incarnation(2) == 202 })
	Eventually(k.T, "node 2 sees node 1", func() bool { return again.Incarnation(1) == 101 })
	Eventually(k.T, "a letter after the restart", func() bool {
		nodes[1].Send(2, &braidpb.Letter{Kind: 3})
		return again.Count(1) > 0
	})
	for _, l := range recs[2].Letters(1) {
		if l.Kind != 1 {
			k.Errorf("the node that was closed got letter %d", l.Kind)
		}
	}
}

func (k *kit) idle() {
	_, recs := k.cluster()
	<-time.After(10 * time.Minute)
	for i := 1; i <= 3; i++ {
		if n := recs[i].Changes(); n != 2 {
			k.Errorf("node %d was told of %d changes, want two peers up", i, n)
		}
	}
}

func (k *kit) nobody() {
	nodes, recs := k.cluster()
	for _, to := range []ids.NodeID{0, 1, 99} {
		nodes[1].Send(to, &braidpb.Letter{Kind: 1, Body: []byte("to nobody")})
	}
	nodes[1].Send(2, &braidpb.Letter{Kind: 2})
	Eventually(k.T, "a letter after those to nobody", func() bool { return recs[2].Count(1) == 1 })
	if err := nodes[3].Close(); err != nil {
		k.Fatal(err)
	}
	for range 100 {
		nodes[1].Send(3, &braidpb.Letter{Kind: 1, Body: []byte("to a node that is gone")})
	}
	nodes[3].Send(1, &braidpb.Letter{Kind: 1})
	nodes[1].Send(2, &braidpb.Letter{Kind: 2})
	Eventually(k.T, "a letter after those to a node that is gone", func() bool { return recs[2].Count(1) == 2 })
}

// Eventually lets virtual time pass until cond holds, for a minute at most.
func Eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for range 60_000 {
		synctest.Wait()
		if cond() {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Fatalf("a minute has passed without: %s", what)
}
