package order

import (
	"errors"
	"fmt"
)

// What a proposal or a read may end with.
var (
	// ErrCompacted: the revision to compact at is compacted already.
	ErrCompacted = errors.New("order: revision has been compacted")
	// ErrFutureRev: the revision to compact at is above the store's.
	ErrFutureRev = errors.New("order: revision is a future revision")
	// ErrNoMember: SetMember names a member that is none.
	ErrNoMember = errors.New("order: no such member")
	// ErrTimeout: the time is over. A read has not been done; what became of a proposal is not known (O6).
	ErrTimeout = errors.New("order: timed out")
	// ErrNoLeader: the time is over and the order group has no leader. As for ErrTimeout, a proposal may still take effect.
	ErrNoLeader = errors.New("order: no leader")
	// ErrAmbiguous: what became of a proposal cannot be known any more, for this node has skipped a part of the log (O6).
	ErrAmbiguous = errors.New("order: outcome unknown")
	// ErrStopped: the machine was stopped. What became of a proposal is not known.
	ErrStopped = errors.New("order: stopped")
	// ErrFull: too many proposals wait at this node. Certain: not done.
	ErrFull = errors.New("order: too many proposals")

	// ErrTxnAborted: the transaction is aborted, for good. The more precise ones below wrap it; they are known to the one
	// whose proposal decided.
	ErrTxnAborted = errors.New("order: transaction aborted")
	// ErrTxnDeadline: the commit came past the transaction's deadline.
	ErrTxnDeadline = fmt.Errorf("%w: past its deadline", ErrTxnAborted)
	// ErrTxnLease: a lease that the transaction names is gone.
	ErrTxnLease = fmt.Errorf("%w: lease not found", ErrTxnAborted)
	// ErrTxnAuth: the auth revision is another one than the transaction was authorised at.
	ErrTxnAuth = fmt.Errorf("%w: auth revision changed", ErrTxnAborted)
	// ErrTxnGeneration: a participant was split or merged since the transaction was routed.
	ErrTxnGeneration = fmt.Errorf("%w: range generation changed", ErrTxnAborted)

	// ErrCorrupt marks a record of the data engine, or an order log entry, that cannot be what was written.
	ErrCorrupt = errors.New("order: corrupt record")
	// ErrFormat marks a record, entry or snapshot of a format that this version does not know.
	ErrFormat = errors.New("order: unknown format")
)
