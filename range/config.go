package ranges

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Config is what a replica is made of. Zero limits and timings stand for the defaults.
type Config struct {
	// Descriptor is the range's, from the order state. It is not changed.
	Descriptor *braidpb.RangeDescriptor
	Node       ids.NodeID
	// Incarnation is unique among all starts of this node's process: answers meant for an earlier one are told by it.
	Incarnation uint64
	Limits      Limits
	Timing      Timing
	Mutation    Mutation
	Logger      *slog.Logger
}

// Limits bound what a replica holds in memory and does at once. At a limit, requests are refused with CodeOverloaded
// or CodeTooLarge unless said otherwise.
type Limits struct {
	// MaxPayloadBytes is when a payload under construction is proposed, so about the size of an entry (default 1 MiB).
	MaxPayloadBytes int
	// MaxTxnBytes bounds the writes of one request, which travel in one entry (default 16 MiB).
	MaxTxnBytes int
	// MaxLockBytes bounds the keys and values that one lock hands out (default 4 MiB).
	MaxLockBytes int
	// MaxUnorderedBytes bounds the writes that are proposed or delivered and not applied (default 64 MiB).
	MaxUnorderedBytes int
	// MaxWaiting bounds the requests that wait: for latches, for the order, for the leader to become
	// ready (default 16384).
	MaxWaiting int
	// MaxApplyBytes is when an apply batch is committed and another one begun (default 4 MiB; one item may exceed it).
	MaxApplyBytes int
	// ChunkBytes is the size of a chunk of state on its way to another node (default 512 KiB).
	ChunkBytes int
	// MaxExports bounds the states that are being sent at the same time (default 2); more are told to come again.
	MaxExports int
	// KeepEntries and KeepBytes are how much of the log stays, below what is flushed, for followers that lag
	// (defaults 10000 and 32 MiB); whichever is less.
	KeepEntries uint64
	KeepBytes   int64
}

// Timing is in ticks of the Raft group.
type Timing struct {
	// ElectionTicks is Raft's (default 10).
	ElectionTicks int
	// RequestTicks is the time-out of a request that names none (default 70).
	RequestTicks int
	// LockTicks is how long a lock lives after it was granted (default 50).
	LockTicks int
	// StuckTicks is how long a transaction may be prepared and undecided before the leader proposes its abort, and
	// how long it then waits to propose it again (default 30).
	StuckTicks int
	// NotReadyTicks bounds how long requests wait for a new leader to become ready (default 30).
	NotReadyTicks int
	// FollowTicks is how long a leader lives apart from the order leader before it hands over (default 4 times ElectionTicks).
	FollowTicks int
	// TransferTicks without an answer make a receiver of state try again, elsewhere, and a sender forget (default 20).
	TransferTicks int
}

// Mutation switches single rules off, so that the simulation can show that it finds out.
type Mutation struct {
	// NoO5: a new leader evaluates before what it inherited is ordered and applied.
	NoO5 bool
	// NoRelatch: a new leader does not latch what inherited prepares lock.
	NoRelatch bool
	// PrepareWithoutToken: a Prepare is logged whether or not its lock is still held.
	PrepareWithoutToken bool
	// CertainTooEarly: what is in flight when leadership is lost is answered "not done".
	CertainTooEarly bool
	// AnyPipelining: a request may be evaluated on any unordered write, also one that names a lease.
	AnyPipelining bool
}

// Validate reports every fault of the configuration.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(c.Descriptor.GetId() != 0, "the range has no ID")
	need(c.Descriptor.GetGeneration() != 0, "the range has no generation")
	need(c.Node != 0, "the node has no ID")
	l, t := c.Limits, c.Timing
	need(min(l.MaxPayloadBytes, l.MaxTxnBytes, l.MaxLockBytes, l.MaxUnorderedBytes, l.MaxWaiting, l.MaxApplyBytes, l.ChunkBytes, l.MaxExports) >= 0 &&
		l.KeepBytes >= 0, "a limit is negative")
	need(min(t.ElectionTicks, t.RequestTicks, t.LockTicks, t.StuckTicks, t.NotReadyTicks, t.FollowTicks, t.TransferTicks) >= 0, "a timing is negative")
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ranges: range %d: %w", c.Descriptor.GetId(), err)
	}
	return nil
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	or := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	l, t := &c.Limits, &c.Timing
	or(&l.MaxPayloadBytes, 1<<20)
	or(&l.MaxTxnBytes, 16<<20)
	or(&l.MaxLockBytes, 4<<20)
	or(&l.MaxUnorderedBytes, 64<<20)
	or(&l.MaxWaiting, 16384)
	or(&l.MaxApplyBytes, 4<<20)
	or(&l.ChunkBytes, 512<<10)
	or(&l.MaxExports, 2)
	if l.KeepEntries == 0 {
		l.KeepEntries = 10000
	}
	if l.KeepBytes == 0 {
		l.KeepBytes = 32 << 20
	}
	or(&t.ElectionTicks, 10)
	or(&t.RequestTicks, 70)
	or(&t.LockTicks, 50)
	or(&t.StuckTicks, 30)
	or(&t.NotReadyTicks, 30)
	or(&t.FollowTicks, 4*t.ElectionTicks)
	or(&t.TransferTicks, 20)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
