package ranges

import (
	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// The events that Replica.Handle takes are *Request, Dispatch, Refill, Flushed, StateRequest, StateChunk, Poke, and what
// jobs given to Host.Background return.

// Dispatch brings what one order position tells the range. In ascending order of positions; those that are applied already are
// ignored. Whoever enqueues it has called Frontier.Enqueue before the position was published.
type Dispatch struct{ Items *braidpb.Items }

// Refill says that the order state has dropped items of the range up to Min: if the replica's frontier is
// below, it fetches state from another replica. Whoever enqueues it has called Frontier.Enqueue(Min) before.
type Refill struct{ Min ids.Position }

// Flushed says that everything committed to the data engine before the mark was taken is durable.
type Flushed struct{ Mark FlushMark }

// FlushMark is a replica's place in both logs at some moment.
type FlushMark struct {
	Index    ids.Index    // ordered cursor
	Frontier ids.Position // last item applied
	Seq      ids.Seq      // last seq applied
	// Compacted is the revision through which the compaction walk is done.
	Compacted ids.Revision
}

// StateRequest is a letter: a replica on another node asks for a chunk of state.
type StateRequest struct {
	From ids.NodeID
	M    *braidpb.StateRequest
}

// StateChunk is a letter: the answer to a StateRequest of this replica.
type StateChunk struct {
	From ids.NodeID
	M    *braidpb.StateChunk
}

// Poke has a replica look at the order view again although nothing has come for it: the order leader has changed, or the range was
// just created. It wakes a quiesced group.
type Poke struct{}
