package raftgroup

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/braidkv/braid/internal/ids"
)

// Config is what a Store is made of. Zero values of the limits stand for the defaults.
type Config struct {
	Node ids.NodeID
	// Incarnation is unique among all starts of this node's process.
	Incarnation uint64

	// Workers is the number of goroutines that share the groups. The default is half the processors, at most 4: with few
	// groups, a group that talks to another on the same worker saves a wake-up.
	Workers int

	// ElectionTicks without a word from the leader make a follower campaign (default 10; the library draws from one to
	// two times this). A leader sends heartbeats every HeartbeatTicks (default 1).
	ElectionTicks  int
	HeartbeatTicks int
	// QuiesceTicks without any work let a group quiesce that may (default 30).
	QuiesceTicks int
	// SnapshotTicks after a snapshot was offered to a follower it is offered again if nothing came of it (default 50).
	SnapshotTicks int

	// HandOverTimeout bounds how long Stop waits for leaderships to be handed over (default 1.5 s).
	HandOverTimeout time.Duration

	// MaxMessageBytes bounds the entries in one message (default 1 MiB; a larger entry travels alone).
	MaxMessageBytes uint64
	// MaxInflightMessages and MaxInflightBytes bound what a leader sends a follower before
	// it hears back (default 256 and 32 MiB): the bandwidth-delay product, and what a follower must buffer.
	MaxInflightMessages int
	MaxInflightBytes    uint64
	// MaxDeliverBytes bounds what one Deliver carries (default 4 MiB; a larger entry comes alone).
	MaxDeliverBytes uint64
	// MaxUncommittedBytes bounds what a leader has appended and not seen committed (default 64 MiB); above, proposals are
	// dropped (ErrDropped).
	MaxUncommittedBytes uint64
	// MaxInboxBytes bounds the messages from other nodes that wait for a group's worker (default 64 MiB); above, they
	// are dropped and Raft sends them again. Events of Enqueue are not bounded here: each stands for
	// something that its producer has bounded.
	MaxInboxBytes int

	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Workers, min(4, max(1, runtime.GOMAXPROCS(0)/2)))
	def(&c.ElectionTicks, 10)
	def(&c.HeartbeatTicks, 1)
	def(&c.QuiesceTicks, 30)
	def(&c.SnapshotTicks, 50)
	def(&c.MaxInflightMessages, 256)
	def(&c.MaxInboxBytes, 64<<20)
	defBytes := func(p *uint64, v uint64) {
		if *p == 0 {
			*p = v
		}
	}
	defBytes(&c.MaxMessageBytes, 1<<20)
	defBytes(&c.MaxInflightBytes, 32<<20)
	defBytes(&c.MaxDeliverBytes, 4<<20)
	defBytes(&c.MaxUncommittedBytes, 64<<20)
	if c.HandOverTimeout == 0 {
		c.HandOverTimeout = 1500 * time.Millisecond
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports every fault of the configuration. Zero values are right where there is a default.
func (c Config) Validate() error {
	c.setDefaults()
	var errs []error
	if c.Node == 0 {
		errs = append(errs, errors.New("the node has no ID"))
	}
	for _, x := range []struct {
		name string
		v    int
	}{
		{"Workers", c.Workers}, {"HeartbeatTicks", c.HeartbeatTicks}, {"QuiesceTicks", c.QuiesceTicks},
		{"SnapshotTicks", c.SnapshotTicks}, {"MaxInflightMessages", c.MaxInflightMessages}, {"MaxInboxBytes", c.MaxInboxBytes},
	} {
		if x.v < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", x.name))
		}
	}
	if c.ElectionTicks <= c.HeartbeatTicks {
		errs = append(errs, errors.New("ElectionTicks must be more than HeartbeatTicks"))
	}
	if c.MaxInflightBytes < c.MaxMessageBytes {
		errs = append(errs, errors.New("MaxInflightBytes is less than MaxMessageBytes"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("raftgroup: configuration: %w", err)
	}
	return nil
}

// GroupConfig is what a group is made of.
type GroupConfig struct {
	ID      ids.GroupID
	Replica ids.ReplicaID // this node's; never zero
	// Peers names the node of a replica, zero if unknown (then nothing is sent to it). It is called on the group's worker.
	Peers func(ids.ReplicaID) ids.NodeID
	// Initial is the newest configuration that the machine's durable state knows; for a new group the one it starts with, with
	// Index zero, equal on all replicas (empty for a replica that will be added to a running group). The log's
	// own record counts if it is newer. It is delivered to a new group's machine as entry 1.
	Initial ConfState
	// Applied is the entry that the machine's durable state contains last, AppliedTerm its term (zero if
	// unknown, which only works if the log reaches that far). Delivery begins behind it.
	Applied     ids.Index
	AppliedTerm ids.Term
	// Quiesce lets the group fall silent when there is nothing to do. Not for a group that every node asks all the time.
	Quiesce bool
	// New makes the machine. The group handed to it is not yet running.
	New func(*Group) Machine
}

// Sender takes messages to other nodes.
type Sender interface {
	// SendRaft queues a message for the group's replica on a node; it never blocks and may drop it. The body is the receiver's. Any
	// goroutine may call it.
	SendRaft(to ids.NodeID, group ids.GroupID, body []byte)
}
