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

// errTryAgain says that a request is certainly not done and may succeed if it is routed or evaluated anew.
var errTryAgain = errors.New("router: to be tried again")

// toClient is the one table from inner errors to etcd's. Errors that already are etcd's pass through.
func toClient(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, order.ErrCompacted):
		return rpctypes.ErrGRPCCompacted
	case errors.Is(err, order.ErrFutureRev):
		return rpctypes.ErrGRPCFutureRev
	case errors.Is(err, order.ErrNoLeader):
		return rpctypes.ErrGRPCNoLeader
	case errors.Is(err, order.ErrTimeout), errors.Is(err, order.ErrAmbiguous), errors.Is(err, errTryAgain):
		return rpctypes.ErrGRPCTimeout
	case errors.Is(err, order.ErrStopped):
		return rpctypes.ErrGRPCStopped
	case errors.Is(err, order.ErrFull):
		return rpctypes.ErrGRPCRequestTooManyRequests
	case errors.Is(err, order.ErrTxnLease):
		return rpctypes.ErrGRPCLeaseNotFound
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, context.Canceled.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Internal, err.Error())
}

// outcome turns a range's answer other than OK into an error: errTryAgain where the request is certainly not done and trying again makes
// sense.
func outcome(c ranges.Code) error {
	switch c {
	case ranges.CodeOK:
		return nil
	case ranges.CodeNotLeader, ranges.CodeGeneration, ranges.CodeAuthRevision, ranges.CodeReadInstead, ranges.CodeTokenLapsed:
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
	return status.Errorf(codes.Internal, "braid: unknown outcome %d of a range", c)
}
