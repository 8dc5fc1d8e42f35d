package clientapi

import (
	"errors"
	"net"
	"strings"
	"sync"
	"time"
)

// splitter accepts connections and gives each to the gRPC or to the HTTP server: an HTTP/2 client begins with "PRI",
// which is no method of HTTP/1.
type splitter struct {
	lis        net.Listener
	grpc, http *handover
	wg         sync.WaitGroup // connections that are looked at; Add only under mu while not closed

	mu      sync.Mutex
	closed  bool
	looking map[net.Conn]struct{}
}

const (
	http2Begins = "PRI "
	// lookTimeout bounds how long a client may say nothing.
	lookTimeout = 30 * time.Second
	// acceptPause is waited after an error of accept that may pass, such as too many open files.
	acceptPause = 20 * time.Millisecond
)

func newSplitter(lis net.Listener) *splitter {
	return &splitter{
		lis: lis, looking: map[net.Conn]struct{}{},
		grpc: newHandover(lis.Addr()), http: newHandover(lis.Addr()),
	}
}

// run accepts until the listener is closed.
func (sp *splitter) run() error {
	for {
		c, err := sp.lis.Accept()
		if err != nil {
			var passing interface{ Temporary() bool }
			if errors.As(err, &passing) && passing.Temporary() {
				pause := time.NewTimer(acceptPause)
				<-pause.C
				continue
			}
			return err
		}
		sp.mu.Lock()
		if sp.closed {
			sp.mu.Unlock()
			c.Close()
			return net.ErrClosed
		}
		sp.looking[c] = struct{}{}
		sp.wg.Add(1)
		sp.mu.Unlock()
		go sp.look(c)
	}
}

// look reads the first bytes of a connection and hands it over.
func (sp *splitter) look(c net.Conn) {
	defer sp.wg.Done()
	to, begin, err := sp.decide(c)
	sp.mu.Lock()
	delete(sp.looking, c)
	closed := sp.closed
	sp.mu.Unlock()
	if err != nil || closed || !to.give(&begun{Conn: c, begin: begin}) {
		c.Close()
	}
}

func (sp *splitter) decide(c net.Conn) (to *handover, begin []byte, err error) {
	if err := c.SetReadDeadline(time.Now().Add(lookTimeout)); err != nil {
		return nil, nil, err
	}
	buf := make([]byte, 64)
	n := 0
	for to == nil {
		m, err := c.Read(buf[n:])
		n += m
		switch got := string(buf[:n]); {
		case strings.HasPrefix(got, http2Begins):
			to = sp.grpc
		case !strings.HasPrefix(http2Begins, got):
			to = sp.http
		case err != nil:
			return nil, nil, err
		}
	}
	return to, buf[:n], c.SetReadDeadline(time.Time{})
}

// close ends the handing over; connections that were handed over stay.
func (sp *splitter) close() {
	sp.mu.Lock()
	sp.closed = true
	for c := range sp.looking {
		c.Close()
	}
	sp.mu.Unlock()
	sp.lis.Close()
	sp.grpc.Close()
	sp.http.Close()
}

// wait returns when no connection is looked at any more.
func (sp *splitter) wait() { sp.wg.Wait() }

// begun is a connection of which some bytes were read already.
type begun struct {
	net.Conn
	begin []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.begin) > 0 {
		n := copy(p, b.begin)
		if b.begin = b.begin[n:]; len(b.begin) == 0 {
			b.begin = nil
		}
		return n, nil
	}
	return b.Conn.Read(p)
}

// handover is the listener of a server behind a splitter.
type handover struct {
	addr  net.Addr
	conns chan net.Conn // not buffered: a connection is the giver's until the server has it
	done  chan struct{}
	once  sync.Once
}

func newHandover(addr net.Addr) *handover {
	return &handover{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *handover) give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.done:
		return false
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handover) Addr() net.Addr { return h.addr }
