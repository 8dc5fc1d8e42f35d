package peer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// service is the gRPC face of the transport.
type service struct {
	braidpb.UnimplementedPeerServer
	t *Transport
}

type serverStream = grpc.BidiStreamingServer[braidpb.PeerMessage, braidpb.PeerMessage]

// Exchange takes in one stream of a peer, and sends the echoes by which the peer knows that it is heard. The stream is read by a
// goroutine of its own: only by returning from here can it be ended while nothing comes.
func (s *service) Exchange(stream serverStream) error {
	t := s.t
	in := &inbound{t: t, conn: connOf(stream.Context()), done: make(chan struct{}), echo: make(chan struct{}, 1)}
	in.heard.Store(t.ticks.Load())
	in.ctx, in.cancel = context.WithCancelCause(stream.Context())
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return status.Error(codes.Unavailable, ErrClosed.Error())
	}
	t.streams.Add(1)
	t.mu.Unlock()
	go in.receive(stream)

	for in.ctx.Err() == nil {
		select {
		case <-in.ctx.Done():
		case <-in.echo:
			if err := stream.SendMsg(new(outgoing)); err != nil {
				in.stop(err)
			}
		}
	}
	err := context.Cause(in.ctx)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

// inbound is a stream of a peer to this node. Node and incarnation are set before it is put into the transport's table.
type inbound struct {
	t           *Transport
	node        ids.NodeID
	incarnation uint64
	link        *link // for its counters
	conn        *activeConn

	ctx    context.Context
	cancel context.CancelCauseFunc
	heard  atomic.Uint64 // tick of the last message
	busy   atomic.Bool   // the handler has an envelope: that nothing is read meanwhile is not the peer's silence
	up     atomic.Bool
	done   chan struct{} // closed when no handler call will come from the stream any more
	echo   chan struct{} // capacity 1: an echo is due
}

// tick does what time asks for; it does not block.
func (in *inbound) tick(now uint64) {
	if in.busy.Load() {
		in.heard.Store(now)
	} else if now >= max(in.heard.Load(), in.conn.heard.Load())+in.t.deadTicks {
		in.stop(errSilent)
		return
	}
	ring(in.echo)
}

// stop ends the stream. Handler calls may go on until done is closed.
func (in *inbound) stop(reason error) { in.cancel(reason) }

// receive owns the stream: hello, Up, letters, Down.
func (in *inbound) receive(stream serverStream) {
	t := in.t
	defer t.streams.Done()
	previous, err := in.admit(stream)
	if err != nil {
		in.cancel(err)
		return
	}
	if previous != nil {
		previous.stop(errReplaced)
		<-previous.done // one stream at a time talks to the handler
	}
	if in.ctx.Err() == nil {
		in.up.Store(true)
		in.link.log.Info("a peer's stream is up", "incarnation", in.incarnation)
		t.handler.Up(in.node, in.incarnation)
		err = in.deliver(stream)
		in.up.Store(false)
		if cause := context.Cause(in.ctx); cause != nil {
			err = cause
		}
		in.link.log.Info("a peer's stream is down", "reason", reason(err))
		t.handler.Down(in.node)
	}
	in.cancel(err)
	t.mu.Lock()
	if t.inbound[in.node] == in {
		delete(t.inbound, in.node)
	}
	t.mu.Unlock()
	close(in.done)
}

func reason(err error) string {
	if errors.Is(err, io.EOF) {
		return errEnded.Error()
	}
	return err.Error()
}

// admit reads the hello, answers it and puts the stream into the place of an earlier one of the same node, which it returns.
func (in *inbound) admit(stream serverStream) (previous *inbound, err error) {
	t := in.t
	timer := time.AfterFunc(helloTimeout(&t.cfg), func() { in.stop(errNoHello) })
	defer timer.Stop()
	var m incoming
	if err := stream.RecvMsg(&m); err != nil {
		return nil, err
	}
	if m.hello == nil {
		return nil, status.Error(codes.FailedPrecondition, errNoHello.Error())
	}
	in.node, in.incarnation = ids.NodeID(m.hello.From), m.hello.Incarnation

	t.mu.Lock()
	in.link = (*t.links.Load())[in.node]
	err = checkHello(&t.cfg, m.hello, in.link != nil)
	t.mu.Unlock()
	if err != nil {
		if t.refusals.first(err.Error()) {
			t.cfg.Logger.Warn("refused a stream", "error", err.Error())
		}
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := stream.SendMsg(helloMessage(&t.cfg, in.node)); err != nil {
		return nil, err
	}
	ring(in.link.kick) // it lives: no need to wait before dialing it

	in.heard.Store(t.ticks.Load())
	t.mu.Lock()
	defer t.mu.Unlock()
	if (*t.links.Load())[in.node] != in.link {
		return nil, errNotPeer // removed meanwhile
	}
	previous = t.inbound[in.node]
	t.inbound[in.node] = in
	return previous, nil
}

// deliver hands the letters over until the stream ends.
func (in *inbound) deliver(stream serverStream) error {
	counts := &in.link.counts
	var m incoming // its letters are new memory each time
	for {
		if err := stream.RecvMsg(&m); err != nil {
			return err
		}
		if m.hello != nil {
			return status.Error(codes.FailedPrecondition, "a second hello")
		}
		in.heard.Store(in.t.ticks.Load())
		counts.receivedEnvelopes.Add(1)
		if len(m.letters) == 0 {
			continue
		}
		counts.receivedLetters.Add(uint64(len(m.letters)))
		counts.receivedBytes.Add(uint64(m.bytes))
		in.busy.Store(true)
		for i := range m.letters {
			if in.ctx.Err() != nil {
				break
			}
			in.t.handler.Receive(in.node, &m.letters[i])
		}
		in.heard.Store(in.t.ticks.Load())
		in.busy.Store(false)
	}
}
