package router

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/braidkv/braid/order"
	ranges "github.com/braidkv/braid/range"
)

// What may become of a request at a range or in the order log, beside an answer.
var (
	// errTryAgain: the request is certainly not done and may succeed if it is routed or evaluated anew.
	errTryAgain = errors.New("router: to be tried again")
	// errReadInstead: the request changes nothing, or fails by the state: it is to be evaluated as a read.
	errReadInstead = errors.New("router: to be evaluated as a read")
	// errNotOffered is wrapped by what is not offered yet.
	errNotOffered = errors.New("is not offered by braid yet")
)

// errorTable says which of etcd's errors stands for an inner one. The first row that fits counts, so an error comes before
// what it wraps.
//
// An outcome that is not known (O6) is a time-out of etcd's, never "no leader" or "too many requests": clients take those for "not
// done".
var errorTable = []struct{ inner, etcds error }{
	{errCompacted, rpctypes.ErrGRPCCompacted},
	{order.ErrCompacted, rpctypes.ErrGRPCCompacted},
	{order.ErrFutureRev, rpctypes.ErrGRPCFutureRev},
	{order.ErrNoMember, rpctypes.ErrGRPCMemberNotFound},
	{order.ErrFull, rpctypes.ErrGRPCRequestTooManyRequests},
	{order.ErrStopped, rpctypes.ErrGRPCStopped},
	{order.ErrTxnLease, rpctypes.ErrGRPCLeaseNotFound},
	{order.ErrTimeout, rpctypes.ErrGRPCTimeout},
	{order.ErrNoLeader, rpctypes.ErrGRPCTimeout}, // after the time-out: etcd says no more either
	{order.ErrAmbiguous, rpctypes.ErrGRPCTimeoutDueToLeaderFail},
	{errTimedOut, rpctypes.ErrGRPCTimeout},
	{errTryAgain, rpctypes.ErrGRPCTimeout},
	{errNoReplica, status.Error(codes.Unavailable, "braid: this member has no replica of a range that the request touches")},
	{context.Canceled, status.Error(codes.Canceled, context.Canceled.Error())},
	{context.DeadlineExceeded, status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())},
}

// readError turns the error of a request that changes nothing into etcd's. Errors that are etcd's already pass through.
func readError(err error) error {
	if err == nil {
		return nil
	}
	for i := range errorTable {
		if errors.Is(err, errorTable[i].inner) {
			return errorTable[i].etcds
		}
	}
	if errors.Is(err, errNotOffered) {
		return status.Error(codes.Unimplemented, err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

// writeError is readError for requests that may change something: when the client gives up, etcd has other words.
func writeError(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return rpctypes.ErrGRPCCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return rpctypes.ErrGRPCTimeout
	}
	return readError(err)
}

// outcome turns a range's answer into an error: errTryAgain where the request is certainly not done and trying again makes
// sense.
func outcome(c ranges.Code) error {
	switch c {
	case ranges.CodeOK:
		return nil
	case ranges.CodeReadInstead:
		return errReadInstead
	case ranges.CodeNotLeader, ranges.CodeGeneration, ranges.CodeAuthRevision, ranges.CodeTokenLapsed:
		return errTryAgain
	case ranges.CodeAmbiguous:
		return rpctypes.ErrGRPCTimeoutDueToLeaderFail
	case ranges.CodeTimeout:
		return rpctypes.ErrGRPCTimeout
	case ranges.CodeOverloaded:
		return rpctypes.ErrGRPCRequestTooManyRequests
	case ranges.CodeLeaseNotFound:
		return rpctypes.ErrGRPCLeaseNotFound
	case ranges.CodeTooLarge:
		return rpctypes.ErrGRPCRequestTooLarge
	}
	return status.Errorf(codes.Unknown, "braid: a range answered with the unknown outcome %d", c)
}
