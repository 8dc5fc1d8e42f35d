package order

import (
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Host is what the machine needs from its node. All methods are called on the worker of group 0 and must not block.
type Host interface {
	// Propose appends data to the order log: nil says that this node leads in the term of the last Role and has appended; an
	// error says that nothing was appended. The data is copied.
	Propose(data []byte) error
	// ReadIndex asks for the commit index, by a round to a quorum. The answer comes by Machine.ReadState, or never.
	ReadIndex(ctx uint64)
	// Truncate lets the order log forget the entries up to through.
	Truncate(through ids.Position)
	// Send sends a letter to the order machine of another node, where it arrives as a Letter event; it may be lost,
	// delayed or doubled. m is encoded before Send returns: the machine uses it again.
	Send(to ids.NodeID, kind LetterKind, m proto.Message)

	// CreateRange says that a range with a replica on this node exists. Repeated for each such range at every start.
	CreateRange(d *braidpb.RangeDescriptor)
	// Refill says that the local replica of the range cannot get items up to min any more, which the order state has
	// dropped: if its frontier is below min, it must fetch state from another replica.
	Refill(r ids.RangeID, min ids.Position)
	// Dispatch hands what one position tells a range to its local replica. Positions ascend within a range, except that at a start items
	// come again which the replica has applied. The state that made the items is committed to the data
	// engine before; the position is published after. The items are the receiver's.
	Dispatch(r ids.RangeID, it *braidpb.Items)

	// FlushData makes durable what is committed to the data engine, and then calls done, from any goroutine. If it
	// cannot, the node must stop, and done is not called.
	FlushData(done func())
	// Fatal stops the node: its disk fails, or it cannot read the order log. The machine does nothing any more.
	Fatal(err error)
}

// LetterKind says what a letter between order machines contains. The numbers are on the wire.
type LetterKind uint32

// The kinds, with their bodies.
const (
	LetterReport       LetterKind = 0 // braidpb.Report, to the order leader
	LetterReadIndex    LetterKind = 1 // braidpb.ReadIndexRequest, to the order leader
	LetterReadPosition LetterKind = 2 // braidpb.ReadIndexResponse, back
	LetterProposal     LetterKind = 3 // braidpb.OrderProposal, to the order leader
)
