package peer

import (
	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Handler is told what comes from other nodes. Calls that concern one peer come one at a time and in order: Up,
// letters, Down, and so on; calls for different peers come at the same time. A call must return promptly:
// while it does not, nothing else arrives from that peer. A Handler must not call Close or SetPeers.
type Handler interface {
	// Receive takes a letter over. It may be kept; its body shares memory with other letters of its envelope and
	// must not be changed.
	Receive(from ids.NodeID, l *braidpb.Letter)
	// Up says that letters of this process of the node arrive.
	Up(node ids.NodeID, incarnation uint64)
	// Down says that the node has stopped sending: its stream ended, it was silent for too long, or it is no longer a peer.
	Down(node ids.NodeID)
}
