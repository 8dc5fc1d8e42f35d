package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/peer/peertest"
	"google.golang.org/grpc/test/bufconn"
)

// memory is a network of in-memory connections whose cables can be cut.
type memory struct {
	t *testing.T

	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	dead      map[string]bool // addresses at which connections are made and everything written to them, or from them, is lost
	slow      time.Duration   // what a kilobyte takes from the dialing side
	dials     map[string]int
}

func newMemory(t *testing.T) *memory {
	return &memory{t: t, listeners: map[string]*bufconn.Listener{}, dead: map[string]bool{}, dials: map[string]int{}}
}

func (m *memory) listen(addr string) net.Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	lis := bufconn.Listen(1 << 20)
	m.listeners[addr] = lis
	return lis
}

func (m *memory) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	m.mu.Lock()
	lis := m.listeners[addr]
	m.dials[addr]++
	m.mu.Unlock()
	if lis == nil {
		return nil, errors.New("connection refused")
	}
	c, err := lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return &cable{Conn: c, m: m, addr: addr}, nil
}

// dialed counts the attempts to connect to an address.
func (m *memory) dialed(addr string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dials[addr]
}

// cut loses what is sent on connections to the addresses, in both directions; the ends notice nothing.
func (m *memory) cut(dead bool, addrs ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range addrs {
		m.dead[a] = dead
	}
}

func (m *memory) isDead(addr string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead[addr]
}

type cable struct {
	net.Conn
	m    *memory
	addr string
}

func (c *cable) Write(b []byte) (int, error) {
	if c.m.isDead(c.addr) {
		return len(b), nil
	}
	c.m.mu.Lock()
	slow := c.m.slow
	c.m.mu.Unlock()
	if slow == 0 {
		return c.Conn.Write(b)
	}
	n := 0
	for n < len(b) {
		part := b[n:min(len(b), n+10<<10)]
		<-time.After(slow * time.Duration(len(part)) / 1024)
		m, err := c.Conn.Write(part)
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (c *cable) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.m.isDead(c.addr) {
			return n, err
		}
	}
}

func addrOf(id ids.NodeID) string { return fmt.Sprintf("node%d:1", id) }

func peersOf(nodes ...ids.NodeID) map[ids.NodeID][]string {
	out := map[ids.NodeID][]string{}
	for _, n := range nodes {
		out[n] = []string{"http://" + addrOf(n)}
	}
	return out
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), s)
}

// node is a transport that serves on the network.
type node struct {
	*Transport
	rec *peertest.Recorder
	log *logBuffer
	end chan error
}

// start brings up a node of cluster 77 with peers 1 to 3; change adapts its configuration.
func (m *memory) start(id ids.NodeID, incarnation uint64, h Handler, change ...func(*Config)) *node {
	n := &node{log: new(logBuffer), end: make(chan error, 1)}
	cfg := Config{
		Self: id, ClusterID: 77, Incarnation: incarnation, Peers: peersOf(1, 2, 3), Dial: m.dial,
		Logger: slog.New(slog.NewTextHandler(n.log, nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	if h == nil {
		n.rec = peertest.NewRecorder(m.t, id)
		h = n.rec
	}
	var err error
	if n.Transport, err = New(cfg, h); err != nil {
		m.t.Fatal(err)
	}
	lis := m.listen(addrOf(id))
	go func() { n.end <- n.Serve(lis) }()
	return n
}

// Close closes the transport and checks that Serve has ended.
func (n *node) Close() error {
	err := n.Transport.Close()
	if n.end != nil {
		if serr := <-n.end; !errors.Is(serr, ErrClosed) {
			err = errors.Join(err, fmt.Errorf("Serve ended with %v", serr))
		}
		n.end = nil
	}
	return err
}

type kitNetwork struct{ m *memory }

func (k kitNetwork) Start(id ids.NodeID, incarnation uint64, h peertest.Handler) peertest.Node {
	return k.m.start(id, incarnation, h)
}

func TestNetwork(t *testing.T) {
	peertest.Run(t, func(t *testing.T) peertest.Network { return kitNetwork{newMemory(t)} })
}
