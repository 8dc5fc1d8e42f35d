package check

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// certain are the errors with which a store says "not done, and never will be". All others,
// such as time-outs, lost connections and lost leaders, leave the outcome open; so does every
// error that is not listed, for a wrong "certain" would accuse the store, a wrong "open" only proves less.
var certain = []error{
	rpctypes.ErrEmptyKey, rpctypes.ErrKeyNotFound, rpctypes.ErrValueProvided, rpctypes.ErrLeaseProvided,
	rpctypes.ErrTooManyOps, rpctypes.ErrDuplicateKey, rpctypes.ErrInvalidSortOption,
	rpctypes.ErrCompacted, rpctypes.ErrFutureRev, rpctypes.ErrNoSpace,
	rpctypes.ErrLeaseNotFound, rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyRequests,
	rpctypes.ErrPermissionDenied, rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserEmpty,
}

// Classify tells what an error says about the outcome of the request that got it. err is what
// clientv3 returned, or a gRPC status error straight from a server; nil is OK.
func Classify(err error) (Outcome, Refusal) {
	if err == nil {
		return OK, NotJudged
	}
	known := rpctypes.Error(err)
	switch {
	case errors.Is(known, rpctypes.ErrCompacted):
		return Failed, Compacted
	case errors.Is(known, rpctypes.ErrFutureRev):
		return Failed, FutureRevision
	case errors.Is(known, rpctypes.ErrKeyNotFound):
		return Failed, KeyNotFound
	}
	for _, c := range certain {
		if errors.Is(known, c) {
			return Failed, NotJudged
		}
	}
	return Ambiguous, NotJudged
}
