package peer

import (
	"errors"
	"fmt"
	"sync"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Why a stream ended; they appear in logs.
var (
	errNotPeer  = errors.New("no longer a peer")
	errSilent   = errors.New("nothing was heard for too long")
	errReplaced = errors.New("replaced by a newer stream of the peer")
	errNoHello  = errors.New("the peer did not introduce itself in time")
	errEnded    = errors.New("the peer ended the stream")
)

// protocolVersion is sent in each Hello; two nodes talk only if it is equal.
const protocolVersion = 1

// checkHello tells why a node with this configuration must not talk to the sender of the hello, of which
// the caller has found out whether it is a known peer.
func checkHello(cfg *Config, h *braidpb.Hello, known bool) error {
	from := ids.NodeID(h.From)
	switch {
	case h.Protocol != protocolVersion:
		return fmt.Errorf("node %s speaks version %d of the peer protocol, node %s version %d", from, h.Protocol, cfg.Self, protocolVersion)
	case h.ClusterId != cfg.ClusterID:
		return fmt.Errorf("cluster ID mismatch: node %s is in cluster %x, node %s in cluster %x", from, h.ClusterId, cfg.Self, cfg.ClusterID)
	case ids.NodeID(h.To) != cfg.Self:
		return fmt.Errorf("node ID mismatch: node %s looks for node %s and found node %s", from, ids.NodeID(h.To), cfg.Self)
	case from == cfg.Self:
		return fmt.Errorf("node ID mismatch: another process says that it is node %s", cfg.Self)
	case !known:
		return fmt.Errorf("node %s is not a peer of node %s", from, cfg.Self)
	case h.Incarnation == 0:
		return fmt.Errorf("node %s gives no incarnation", from)
	}
	return nil
}

// refusals remembers what was logged, so that a peer that tries again and again is logged once for each reason.
type refusals struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// maxRefusals bounds what is remembered; beyond it, everything may be logged once more.
const maxRefusals = 256

func (r *refusals) first(reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.seen[reason]; ok {
		return false
	}
	if r.seen == nil || len(r.seen) >= maxRefusals {
		r.seen = map[string]struct{}{}
	}
	r.seen[reason] = struct{}{}
	return true
}
