package router

import (
	"context"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
)

// Backend is the node as the router sees it. Its methods may be called from any goroutine and do not block; functions given to
// them are called once, from any goroutine, and return at once.
type Backend interface {
	NodeID() ids.NodeID
	// View is the order state as last published.
	View() *order.View
	// CaughtUp calls fn when the order state has reached what the node knew to be committed when it started.
	CaughtUp(fn func())
	// ReadIndex finds a position that covers everything answered before the call.
	ReadIndex(done func(ids.Position, error))
	// WaitApplied calls fn with the first published position at or past p, and the revision there.
	WaitApplied(p ids.Position, fn func(ids.Position, ids.Revision))
	// RevisionAt is the revision at a recent position.
	RevisionAt(p ids.Position) (ids.Revision, bool)
	// Frontier is that of the local replica of a range; nil if there is none.
	Frontier(r ids.RangeID) *ranges.Frontier
	// Reader reads the data engine.
	Reader() mvcc.Reader
	// Submit hands a request to the leader of a range, wherever that is.
	Submit(r ids.RangeID, req *ranges.Request)
	// Propose has a command put into the order log.
	Propose(cmd *braidpb.OrderCommand, timeoutTicks int, done func(order.Result))
	// NewTxnID makes a new ID.
	NewTxnID() ids.TxnID
	// Compacted calls fn when the compaction at a revision has been carried out on this node.
	Compacted(rev ids.Revision, fn func())
	// DBSize is what the data takes on disk, and what of it is in use, in bytes.
	DBSize() (total, inUse int64)
	// RaftIndex is what is committed of the order log, as far as the node knows, and what is applied of it.
	RaftIndex() (committed, applied ids.Position)
	// Defragment compacts the engine.
	Defragment(ctx context.Context) error
}
