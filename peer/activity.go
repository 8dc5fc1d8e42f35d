package peer

import (
	"context"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// activeConn remembers when something last came from the other end: a large letter on a slow network takes longer than a
// peer may be silent, and its bytes are signs of life.
type activeConn struct {
	net.Conn
	ticks *atomic.Uint64
	heard atomic.Uint64 // tick
}

func (c *activeConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(c.ticks.Load())
	}
	return n, err
}

// watchfulCredentials are no credentials: they let a stream's handler find its connection.
type watchfulCredentials struct {
	credentials.TransportCredentials
	ticks *atomic.Uint64
}

func newWatchfulCredentials(ticks *atomic.Uint64) credentials.TransportCredentials {
	return watchfulCredentials{insecure.NewCredentials(), ticks}
}

type connInfo struct {
	credentials.AuthInfo
	conn *activeConn
}

func (w watchfulCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := w.TransportCredentials.ServerHandshake(c)
	if err != nil {
		return nil, nil, err
	}
	a := &activeConn{Conn: c, ticks: w.ticks}
	a.heard.Store(w.ticks.Load())
	return a, connInfo{info, a}, nil
}

func (w watchfulCredentials) Clone() credentials.TransportCredentials {
	return watchfulCredentials{w.TransportCredentials.Clone(), w.ticks}
}

// connOf is the connection of a stream that a server with watchfulCredentials handles.
func connOf(ctx context.Context) *activeConn {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(connInfo); ok {
			return info.conn
		}
	}
	return nil
}
