package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// link is the outgoing half of a pair: a queue, and a goroutine that keeps a stream to the peer and empties the queue
// into it.
type link struct {
	t     *Transport
	node  ids.NodeID
	addrs atomic.Pointer[[]address]
	log   *slog.Logger

	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when run has returned
	wake   chan struct{} // capacity 1: the queue is no longer empty, a heartbeat is due, or the link drains
	kick   chan struct{} // capacity 1: dial now

	beat  atomic.Bool   // a heartbeat is due
	sent  atomic.Bool   // an envelope left since the last tick
	heard atomic.Uint64 // tick of the peer's last echo on the established stream

	mu       sync.Mutex
	letters  []*braidpb.Letter
	bytes    int // of letters and of those taken but not yet handed to gRPC; never above MaxQueueBytes, but for one letter
	draining bool
	session  context.CancelCauseFunc // ends the established stream; nil while there is none
	since    uint64                  // tick since which session is as it is
	warned   uint64                  // counts.dropped when it was last logged

	counts struct {
		sentEnvelopes, sentLetters, sentBytes             atomic.Uint64
		receivedEnvelopes, receivedLetters, receivedBytes atomic.Uint64
		dropped, sessions                                 atomic.Uint64
	}
}

func newLink(t *Transport, node ids.NodeID, addrs []address) *link {
	k := &link{
		t: t, node: node, log: t.cfg.Logger.With("peer", node.String()),
		done: make(chan struct{}), wake: make(chan struct{}, 1), kick: make(chan struct{}, 1),
		since: t.ticks.Load(),
	}
	k.addrs.Store(&addrs)
	k.ctx, k.cancel = context.WithCancelCause(t.ctx)
	return k
}

// push queues a letter or drops it.
func (k *link) push(l *braidpb.Letter) {
	size := len(l.Body) + letterOverhead
	k.mu.Lock()
	if k.draining || len(l.Body) > k.t.cfg.MaxLetterBytes || k.bytes > 0 && k.bytes+size > k.t.cfg.MaxQueueBytes {
		k.mu.Unlock()
		k.counts.dropped.Add(1)
		return
	}
	k.letters = append(k.letters, l)
	k.bytes += size
	first := len(k.letters) == 1
	k.mu.Unlock()
	if first { // the sender takes all there is, so later letters need no signal
		ring(k.wake)
	}
}

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take empties the queue into spare. The letters count as queued until settle.
func (k *link) take(spare []*braidpb.Letter) (batch []*braidpb.Letter, draining bool) {
	k.mu.Lock()
	batch, k.letters = k.letters, spare
	draining = k.draining
	k.mu.Unlock()
	return batch, draining
}

// settle takes bytes of letters that left off the queue's account.
func (k *link) settle(bytes int) {
	k.mu.Lock()
	k.bytes -= bytes
	k.mu.Unlock()
}

// discard drops what is queued.
func (k *link) discard() {
	k.mu.Lock()
	n := len(k.letters)
	k.letters, k.bytes = nil, 0
	k.mu.Unlock()
	k.counts.dropped.Add(uint64(n))
}

// drain makes the link send what is queued, if it is connected, and end.
func (k *link) drain() {
	k.mu.Lock()
	k.draining = true
	connected := k.session != nil
	k.mu.Unlock()
	if !connected {
		k.cancel(ErrClosed)
	}
	ring(k.wake)
}

// tick does what time asks for.
func (k *link) tick(now uint64) {
	k.mu.Lock()
	end, age := k.session, now-k.since
	dropped := k.counts.dropped.Load()
	warn := dropped != k.warned && now%k.t.deadTicks == 0
	if warn {
		k.warned = dropped
	}
	k.mu.Unlock()
	if warn {
		k.log.Warn("dropped letters to a peer that cannot be reached or does not keep up", "dropped-total", dropped)
	}
	if end == nil {
		if age >= k.t.deadTicks {
			k.discard() // whoever wrote them has given up by now
		}
		return
	}
	if now >= k.heard.Load()+k.t.deadTicks {
		end(errSilent) // what is sent goes nowhere
		return
	}
	if !k.sent.Swap(false) {
		k.beat.Store(true)
		ring(k.wake)
	}
}

// run keeps a stream to the peer until the link ends.
func (k *link) run() {
	defer close(k.done)
	defer k.discard()
	pause, reported := k.minPause(), ""
	for attempt := 0; ; attempt++ {
		addrs := *k.addrs.Load()
		established, err := k.connect(addrs[attempt%len(addrs)])
		if k.ctx.Err() != nil || k.isDraining() {
			return
		}
		if established {
			pause, reported = k.minPause(), ""
			k.log.Info("lost the stream to a peer", "error", err.Error())
		} else if reason := err.Error(); reason != reported {
			reported = reason
			k.log.Warn("cannot reach a peer", "error", reason)
		}
		// Up to twice as long as the time before, with jitter so that the nodes of a cluster do not dial in step.
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-k.ctx.Done():
			timer.Stop()
			return
		case <-k.kick:
			pause = k.minPause()
		case <-timer.C:
			pause = min(2*pause, max(k.minPause(), k.t.cfg.DeadAfter/2))
		}
		timer.Stop()
	}
}

func (k *link) minPause() time.Duration { return k.t.cfg.HeartbeatInterval / 4 }

func (k *link) isDraining() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.draining
}

// setSession notes the established stream, or with nil that there is none.
func (k *link) setSession(end context.CancelCauseFunc) {
	now := k.t.ticks.Load()
	k.heard.Store(now)
	k.mu.Lock()
	k.session, k.since = end, now
	if k.draining && end != nil {
		k.session = nil
		end(ErrClosed)
	}
	k.mu.Unlock()
}

// connect dials, introduces this node and sends until the stream ends. It tells whether the peer had accepted the stream.
func (k *link) connect(a address) (established bool, err error) {
	ctx, cancel := context.WithCancelCause(k.ctx)
	defer cancel(nil)
	conn, err := grpc.NewClient("passthrough:///"+a.addr, dialOptions(&k.t.cfg, a)...)
	if err != nil {
		return false, fmt.Errorf("dialing %s: %w", a.addr, err)
	}
	defer conn.Close()
	stream, err := k.greet(ctx, cancel, conn)
	if err != nil {
		return false, fmt.Errorf("connecting to %s: %w", a.addr, explain(ctx, err))
	}
	k.setSession(cancel)
	defer k.setSession(nil)
	k.counts.sessions.Add(1)
	k.log.Info("established the stream to a peer", "address", a.addr)

	reader := make(chan struct{})
	go func() { // ends with the stream, which connect waits for
		defer close(reader)
		var in incoming
		for {
			if err := stream.RecvMsg(&in); err != nil {
				if errors.Is(err, io.EOF) {
					err = errEnded
				}
				cancel(err)
				return
			}
			k.heard.Store(k.t.ticks.Load())
		}
	}()
	err = explain(ctx, k.pump(ctx, stream))
	cancel(err)
	<-reader
	return true, err
}

// explain prefers the reason for which a stream was ended here to what gRPC makes of it.
func explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if s, ok := status.FromError(err); ok && s.Code() == codes.FailedPrecondition {
		return fmt.Errorf("refused: %s", s.Message())
	}
	return err
}

type peerStream = grpc.BidiStreamingClient[braidpb.PeerMessage, braidpb.PeerMessage]

// greet opens a stream and exchanges hellos on it.
func (k *link) greet(ctx context.Context, cancel context.CancelCauseFunc, conn *grpc.ClientConn) (peerStream, error) {
	timer := time.AfterFunc(helloTimeout(&k.t.cfg), func() { cancel(errNoHello) })
	defer timer.Stop()
	stream, err := braidpb.NewPeerClient(conn).Exchange(ctx, grpc.ForceCodecV2(codec{}))
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(helloMessage(&k.t.cfg, k.node)); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var in incoming
	if err := stream.RecvMsg(&in); err != nil {
		return nil, err
	}
	if in.hello == nil {
		return nil, errNoHello
	}
	if err := checkHello(&k.t.cfg, in.hello, ids.NodeID(in.hello.From) == k.node); err != nil {
		return nil, err
	}
	return stream, nil
}

func helloMessage(cfg *Config, to ids.NodeID) *braidpb.PeerMessage {
	return &braidpb.PeerMessage{Kind: &braidpb.PeerMessage_Hello{Hello: &braidpb.Hello{
		Protocol: protocolVersion, ClusterId: cfg.ClusterID, From: uint64(cfg.Self), To: uint64(to), Incarnation: cfg.Incarnation,
	}}}
}

// keepLetters is the capacity up to which a batch's slice is used again.
const keepLetters = 4096

// pump sends what is queued, as soon as it is queued, until the stream ends or the link is drained.
func (k *link) pump(ctx context.Context, stream peerStream) error {
	var spare []*braidpb.Letter
	var out outgoing
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-k.wake:
		}
		for {
			batch, draining := k.take(spare)
			spare = nil
			if len(batch) == 0 {
				if k.beat.Swap(false) {
					if err := k.send(stream, &out, nil); err != nil {
						return err
					}
				}
				if draining {
					stream.CloseSend()
					<-ctx.Done() // the peer has taken everything and ended the stream, or time is up
					return ErrClosed
				}
				spare = batch
				break
			}
			k.beat.Store(false)
			if err := k.sendBatch(stream, &out, batch); err != nil {
				return err
			}
			clear(batch)
			if cap(batch) <= keepLetters {
				spare = batch[:0]
			}
		}
	}
}

// sendBatch sends letters in as few envelopes as the limit allows.
func (k *link) sendBatch(stream peerStream, out *outgoing, batch []*braidpb.Letter) error {
	for from := 0; from < len(batch); {
		to, size := from, 0
		for to < len(batch) && (to == from || size+len(batch[to].Body) <= k.t.cfg.MaxEnvelopeBytes) {
			size += len(batch[to].Body) + letterOverhead
			to++
		}
		err := k.send(stream, out, batch[from:to])
		k.settle(size)
		if err != nil {
			k.counts.dropped.Add(uint64(len(batch) - to))
			rest := 0
			for _, l := range batch[to:] {
				rest += len(l.Body) + letterOverhead
			}
			k.settle(rest)
			return err
		}
		k.sent.Store(true)
		k.counts.sentLetters.Add(uint64(to - from))
		k.counts.sentBytes.Add(uint64(size - (to-from)*letterOverhead))
		from = to
	}
	return nil
}

func (k *link) send(stream peerStream, out *outgoing, letters []*braidpb.Letter) error {
	out.letters = letters
	err := stream.SendMsg(out)
	out.letters = nil
	k.counts.sentEnvelopes.Add(1)
	return err
}

func (k *link) stats() Stats {
	k.mu.Lock()
	s := Stats{Node: k.node, Connected: k.session != nil, QueuedLetters: len(k.letters), QueuedBytes: k.bytes}
	k.mu.Unlock()
	c := &k.counts
	s.SentEnvelopes, s.SentLetters, s.SentBytes = c.sentEnvelopes.Load(), c.sentLetters.Load(), c.sentBytes.Load()
	s.ReceivedEnvelopes, s.ReceivedLetters, s.ReceivedBytes = c.receivedEnvelopes.Load(), c.receivedLetters.Load(), c.receivedBytes.Load()
	s.Dropped, s.Sessions = c.dropped.Load(), c.sessions.Load()
	return s
}
