package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/braidkv/braid/internal/ids"
)

// Config is what a Transport is made of. Zero limits and times stand for the defaults.
type Config struct {
	// Self, ClusterID and Incarnation are what this node says of itself. The incarnation is unique among all starts of
	// the node's process.
	Self        ids.NodeID
	ClusterID   uint64
	Incarnation uint64

	// Peers are the URLs of the other nodes: http://host:port or unix://path. They are tried in turn. Self may be among them and is
	// ignored. SetPeers changes them.
	Peers map[ids.NodeID][]string

	// HeartbeatInterval without a letter to a peer makes an empty envelope leave (default 100 ms).
	HeartbeatInterval time.Duration
	// DeadAfter is how long a peer may be silent before it is down; about an election time-out (default ten
	// heartbeat intervals, at least three).
	DeadAfter time.Duration

	// MaxQueueBytes bounds what waits for one peer (default 64 MiB); a letter beyond it is dropped and counted. One letter is
	// always accepted into an empty queue.
	MaxQueueBytes int
	// MaxEnvelopeBytes is where an envelope ends and the next begins (default 1 MiB). A larger letter travels alone.
	MaxEnvelopeBytes int
	// MaxLetterBytes bounds a letter's body (default 256 MiB): a larger one is dropped by the sender, and ends the stream at
	// the receiver.
	MaxLetterBytes int

	// Dial connects to an address, "host:port" or a socket's path (default: package net).
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	Logger *slog.Logger
}

// letterOverhead is what a queued letter counts beside its body.
const letterOverhead = 64

func (c *Config) setDefaults() {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.MaxQueueBytes, 64<<20)
	def(&c.MaxEnvelopeBytes, 1<<20)
	def(&c.MaxLetterBytes, 256<<20)
	if c.HeartbeatInterval == 0 {
		c.HeartbeatInterval = 100 * time.Millisecond
	}
	if c.DeadAfter == 0 {
		c.DeadAfter = 10 * c.HeartbeatInterval
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports every fault of the configuration. Zero values are right where there is a default.
func (c Config) Validate() error {
	c.setDefaults()
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("peer: "+format, args...))
		}
	}
	need(c.Self != 0, "the node has no ID")
	need(c.Incarnation != 0, "the process has no incarnation")
	need(c.HeartbeatInterval > 0, "heartbeat interval %v is not positive", c.HeartbeatInterval)
	need(c.DeadAfter >= 3*c.HeartbeatInterval, "a peer is taken for dead after %v, which is less than three heartbeat intervals of %v", c.DeadAfter, c.HeartbeatInterval)
	need(c.MaxQueueBytes > 0 && c.MaxEnvelopeBytes > 0 && c.MaxLetterBytes > 0, "a limit is negative")
	need(c.MaxLetterBytes <= 1<<30, "letters of %d bytes are too large", c.MaxLetterBytes)
	if _, err := parsePeers(c.Self, c.Peers); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// deadTicks is DeadAfter in ticks.
func (c *Config) deadTicks() uint64 {
	return uint64((c.DeadAfter + c.HeartbeatInterval - 1) / c.HeartbeatInterval)
}

// address is where a peer listens.
type address struct{ network, addr string }

func parseAddress(s string) (address, error) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok && path != "" {
		return address{"unix", path}, nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return address{}, fmt.Errorf("peer: URL %q: %w", s, err)
	case u.Scheme == "https":
		return address{}, fmt.Errorf("peer: URL %q: TLS between peers is not supported", s)
	case u.Scheme != "http" || u.Host == "":
		return address{}, fmt.Errorf("peer: URL %q: want http://host:port or unix://path", s)
	case u.Port() == "":
		return address{}, fmt.Errorf("peer: URL %q has no port", s)
	}
	return address{"tcp", u.Host}, nil
}

// parsePeers reads the URLs of all peers but self.
func parsePeers(self ids.NodeID, peers map[ids.NodeID][]string) (map[ids.NodeID][]address, error) {
	var errs []error
	out := make(map[ids.NodeID][]address, len(peers))
	for node, urls := range peers {
		if node == self {
			continue
		}
		if node == 0 || len(urls) == 0 {
			errs = append(errs, fmt.Errorf("peer: node %s has no ID or no URL", node))
			continue
		}
		for _, u := range urls {
			a, err := parseAddress(u)
			if err != nil {
				errs = append(errs, fmt.Errorf("node %s: %w", node, err))
				continue
			}
			out[node] = append(out[node], a)
		}
	}
	return out, errors.Join(errs...)
}
