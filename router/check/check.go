// Package check validates etcd's KV requests before anything is done about them, with etcd's errors. It depends on nothing but
// the request and the server's limits.
package check

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Range checks a range request.
func Range(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.GetSortOrder())]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.GetSortTarget())]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

// RangeStream checks a range request whose answer is streamed: in the order of keys, without filters.
func RangeStream(r *pb.RangeRequest) error {
	if err := Range(r); err != nil {
		return err
	}
	if r.GetSortOrder() != pb.RangeRequest_NONE && !(r.GetSortTarget() == pb.RangeRequest_KEY && r.GetSortOrder() == pb.RangeRequest_ASCEND) {
		return status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	}
	if r.GetMinModRevision() != 0 || r.GetMaxModRevision() != 0 || r.GetMinCreateRevision() != 0 || r.GetMaxCreateRevision() != 0 {
		return status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
	}
	return nil
}

// Put checks a put.
func Put(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.GetIgnoreValue() && len(r.GetValue()) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.GetIgnoreLease() && r.GetLease() != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

// DeleteRange checks a deletion.
func DeleteRange(r *pb.DeleteRangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// Txn checks a transaction. A nested transaction may have as many operations as its parent's longest list leaves of
// maxOps. A key may be put once, and not also be deleted, in whatever can happen together.
func Txn(r *pb.TxnRequest, maxOps int) error {
	if err := txn(r, maxOps); err != nil {
		return err
	}
	for _, ops := range [2][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		if _, ok := collect(ops); !ok {
			return rpctypes.ErrGRPCDuplicateKey
		}
	}
	return nil
}

func txn(r *pb.TxnRequest, maxOps int) error {
	n := max(len(r.GetCompare()), len(r.GetSuccess()), len(r.GetFailure()))
	if n > maxOps {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.GetCompare() {
		if len(c.GetKey()) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, ops := range [2][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, o := range ops {
			if err := op(o, maxOps-n); err != nil {
				return err
			}
		}
	}
	return nil
}

func op(o *pb.RequestOp, maxOps int) error {
	switch v := o.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return Range(v.RequestRange)
	case *pb.RequestOp_RequestPut:
		return Put(v.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return DeleteRange(v.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return txn(v.RequestTxn, maxOps)
	}
	return rpctypes.ErrGRPCKeyNotFound // an empty operation: so etcd calls it
}
