package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"google.golang.org/grpc"
)

// ErrClosed is returned by calls on a closed Transport.
var ErrClosed = errors.New("peer: the transport is closed")

// Transport connects a node with its peers. All methods may be called from any goroutine.
type Transport struct {
	cfg       Config
	handler   Handler
	deadTicks uint64
	server    *grpc.Server
	refusals  refusals

	ctx    context.Context // ends when everything must stop
	cancel context.CancelFunc
	wg     sync.WaitGroup // ticker and links
	ticks  atomic.Uint64

	links atomic.Pointer[map[ids.NodeID]*link] // copied on change; read by Send

	mu      sync.Mutex // guards changes of links, and what follows
	inbound map[ids.NodeID]*inbound
	closed  bool
	streams sync.WaitGroup // incoming streams; Add only under mu while not closed
}

// New makes a transport and starts to dial the peers. Letters are taken in once Serve is called.
func New(cfg Config, h Handler) (*Transport, error) {
	cfg.setDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Transport{cfg: cfg, handler: h, deadTicks: cfg.deadTicks(), inbound: map[ids.NodeID]*inbound{}}
	t.links.Store(&map[ids.NodeID]*link{})
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.server = grpc.NewServer(serverOptions(&t.cfg, &t.ticks)...)
	braidpb.RegisterPeerServer(t.server, &service{t: t})
	if err := t.SetPeers(cfg.Peers); err != nil {
		t.cancel()
		return nil, err
	}
	t.wg.Go(t.tick)
	return t, nil
}

// Send queues a letter for a node and returns at once. The transport owns the letter from then on: neither it nor its body may be changed.
// A letter that cannot be queued is dropped and counted; so is one to an unknown node or to the node itself.
func (t *Transport) Send(to ids.NodeID, l *braidpb.Letter) {
	if k := (*t.links.Load())[to]; k != nil {
		k.push(l)
	}
}

// Serve takes in the peers' streams on a listener until Close, and closes the listener. It may be called for several.
func (t *Transport) Serve(lis net.Listener) error {
	err := t.server.Serve(lis)
	if t.ctx.Err() != nil || errors.Is(err, grpc.ErrServerStopped) {
		lis.Close()
		return ErrClosed
	}
	return fmt.Errorf("peer: serving on %s: %w", lis.Addr(), err)
}

// SetPeers replaces the set of peers and their URLs. A peer that is no longer named is cut off: what is queued for it is
// dropped, and it is down when SetPeers returns. An existing connection stays if its peer's URLs change.
func (t *Transport) SetPeers(peers map[ids.NodeID][]string) error {
	parsed, err := parsePeers(t.cfg.Self, peers)
	if err != nil {
		return err
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return ErrClosed
	}
	next := make(map[ids.NodeID]*link, len(parsed))
	var gone []*link
	for node, k := range *t.links.Load() {
		if parsed[node] == nil {
			gone = append(gone, k)
		} else {
			next[node] = k
		}
	}
	for node, addrs := range parsed {
		if k := next[node]; k != nil {
			k.addrs.Store(&addrs)
			continue
		}
		k := newLink(t, node, addrs)
		next[node] = k
		t.wg.Go(k.run)
	}
	t.links.Store(&next)
	var stopped []*inbound
	for _, k := range gone {
		k.cancel(errNotPeer)
		if in := t.inbound[k.node]; in != nil {
			stopped = append(stopped, in)
		}
	}
	t.mu.Unlock()
	for _, in := range stopped {
		in.stop(errNotPeer)
		<-in.done
	}
	return nil
}

// flushTimeout bounds how long Close waits for queued letters to leave.
const flushTimeout = 250 * time.Millisecond

// Close sends what is queued to the connected peers, for at most a quarter of a second (a leader that stops wants its last
// letters to arrive), then ends all streams, outgoing ones first, and returns when no goroutine of the
// transport is left. Handler calls have ended then. Later Sends do nothing.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	links := *t.links.Load()
	t.links.Store(&map[ids.NodeID]*link{})
	var stopped []*inbound
	for _, in := range t.inbound {
		stopped = append(stopped, in)
	}
	t.mu.Unlock()

	timer := time.AfterFunc(flushTimeout, t.cancel)
	for _, k := range links {
		k.drain()
	}
	for _, k := range links {
		<-k.done
	}
	timer.Stop()
	t.cancel()
	for _, in := range stopped {
		in.stop(ErrClosed)
	}
	t.server.Stop()
	t.streams.Wait()
	t.wg.Wait()
	return nil
}

// Stats describes the traffic with one peer since the transport was made.
type Stats struct {
	Node ids.NodeID
	// Connected: the stream to the peer stands. Up: the peer's stream to this node stands and is alive.
	Connected, Up bool
	// QueuedLetters and QueuedBytes wait to be sent.
	QueuedLetters, QueuedBytes int
	// Sent and Received count what was handed to, and taken from, gRPC; heartbeats are envelopes without letters.
	SentEnvelopes, SentLetters, SentBytes             uint64
	ReceivedEnvelopes, ReceivedLetters, ReceivedBytes uint64
	// Dropped counts letters that were never handed to gRPC.
	Dropped uint64
	// Sessions counts the times that a stream to the peer was established.
	Sessions uint64
}

// Stats returns the state of every link, by ascending node.
func (t *Transport) Stats() []Stats {
	links := *t.links.Load()
	out := make([]Stats, 0, len(links))
	t.mu.Lock()
	for node, k := range links {
		s := k.stats()
		s.Up = t.inbound[node] != nil && t.inbound[node].up.Load()
		out = append(out, s)
	}
	t.mu.Unlock()
	slices.SortFunc(out, func(a, b Stats) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	return out
}

// tick counts time and acts on it: heartbeats and echoes, silent peers, letters that wait for a peer that cannot be reached.
func (t *Transport) tick() {
	ticker := time.NewTicker(t.cfg.HeartbeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-ticker.C:
		}
		now := t.ticks.Add(1)
		for _, k := range *t.links.Load() {
			k.tick(now)
		}
		t.mu.Lock()
		for _, in := range t.inbound {
			in.tick(now)
		}
		t.mu.Unlock()
	}
}
