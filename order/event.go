package order

import (
	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// The events that Machine.Handle takes are Progress, ProgressReset, Flushed, Letter, Read and Propose, as values.

// Progress says that the seqs in (From, Through] of a range are committed in its log, and stamped alike. The leader of the
// range says so, in ascending order without gaps within a term; the first of a term, or after ProgressReset, begins at or
// below what the replica has applied, so that nothing is left out which is not ordered.
type Progress struct {
	Range         ids.RangeID
	Term          ids.Term // of the range's leader
	From, Through ids.Seq
	Generation    ids.Generation
	AuthRevision  ids.AuthRevision
	Leases        []SeqLease // ascending seq
}

// SeqLease says that a seq names a lease.
type SeqLease struct {
	Seq   ids.Seq
	Lease ids.LeaseID
}

// ProgressReset says that the range is no longer led here; what was committed is reported by its next leader.
type ProgressReset struct{ Range ids.RangeID }

// Flushed says what of this node is durable in the data engine: to be read (View.Position, the replicas' frontiers)
// before the flush began and told after it has ended.
type Flushed struct {
	Order  ids.Position // the order state; zero: not told
	Ranges []RangeFlushed
}

// RangeFlushed is the durable frontier of a local replica.
type RangeFlushed struct {
	Range    ids.RangeID
	Position ids.Position
}

// Letter is a letter from the order machine of another node.
type Letter struct {
	From ids.NodeID
	Kind LetterKind
	Body []byte
}

// Read asks for a position that covers everything ordered before the event was enqueued. Done gets it, or ErrTimeout
// or ErrNoLeader; it is called on the worker and must not block. The position may be ahead of what is applied here
// (WaitApplied).
type Read struct {
	Done func(ids.Position, error)
}

// Propose has a command put into the order log.
type Propose struct {
	// Cmd belongs to the machine, which sets its proposal ID.
	Cmd *braidpb.OrderCommand
	// TimeoutTicks without an outcome end the wait; zero: the default.
	TimeoutTicks int
	// Done gets the outcome once it is applied and published here, or why it is not known; it is called on the worker and must
	// not block. Nil: nobody asks.
	Done func(Result)
}

// Result is the outcome of a command.
type Result struct {
	// Proposal is the command's proposal ID.
	Proposal ids.TxnID
	// Position is where the outcome was decided; zero if it is not known.
	Position ids.Position
	// Revision is a committed transaction's, otherwise the store's after the command.
	Revision ids.Revision
	// Committed is the decision that won, of TxnCommit and TxnAbort.
	Committed bool
	// Err is nil if the command did what it says. For a TxnCommit that lost it is an ErrTxnAborted; a TxnAbort that lost has no
	// error, but Committed.
	Err error

	// late marks an outcome of a transaction past its deadline, of which the state remembers no decision.
	late bool
}
