package ranges

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Request asks the leader of a range for something. It is an event for Replica.Handle; it and what it points to
// must not change until Done was called, and keys and values not before they are applied.
type Request struct {
	// Generation and AuthRevision are those under which the request was routed and authorised.
	Generation   ids.Generation
	AuthRevision ids.AuthRevision
	// TimeoutTicks from now on the request is answered: CodeTimeout if it is certain not to be done, else CodeAmbiguous.
	// Zero: Timing.RequestTicks.
	TimeoutTicks int

	// Exactly one of these is set. They have been validated.
	Put     *pb.PutRequest
	Delete  *pb.DeleteRangeRequest
	Txn     *pb.TxnRequest
	Lock    *braidpb.LockRequest
	Prepare *braidpb.PrepareRequest
	Unlock  *braidpb.UnlockRequest

	// Done is called exactly once, on the replica's worker, unless the process ends before. It must return at once. The
	// Response is the callee's.
	Done func(*Response)
}

// Response answers a Request.
type Response struct {
	Code Code
	// Leader is the node that leads, if known, with CodeNotLeader.
	Leader ids.NodeID
	// Revision is that of the write; with it goes the response of the request's kind.
	Revision ids.Revision
	Put      *pb.PutResponse
	Delete   *pb.DeleteRangeResponse
	Txn      *pb.TxnResponse
	Lock     *braidpb.LockResponse
}

// Code is the outcome of a request.
type Code = braidpb.RangeErrorCode

// The outcomes; all but CodeOK and CodeAmbiguous say that nothing was done, nor will be.
const (
	CodeOK            = braidpb.RangeErrorCode_RANGE_OK
	CodeNotLeader     = braidpb.RangeErrorCode_RANGE_NOT_LEADER
	CodeGeneration    = braidpb.RangeErrorCode_RANGE_GENERATION
	CodeAuthRevision  = braidpb.RangeErrorCode_RANGE_AUTH_REVISION
	CodeReadInstead   = braidpb.RangeErrorCode_RANGE_READ_INSTEAD
	CodeAmbiguous     = braidpb.RangeErrorCode_RANGE_AMBIGUOUS
	CodeTimeout       = braidpb.RangeErrorCode_RANGE_TIMEOUT
	CodeOverloaded    = braidpb.RangeErrorCode_RANGE_OVERLOADED
	CodeTokenLapsed   = braidpb.RangeErrorCode_RANGE_TOKEN_LAPSED
	CodeLeaseNotFound = braidpb.RangeErrorCode_RANGE_LEASE_NOT_FOUND
	CodeTooLarge      = braidpb.RangeErrorCode_RANGE_TOO_LARGE
)
