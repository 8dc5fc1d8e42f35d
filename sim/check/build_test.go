package check

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// at is a header with a revision.
func at(rev int64) *pb.ResponseHeader { return &pb.ResponseHeader{Revision: rev} }

// answered is an answered request; the answer has its header.
func answered(invoke, ret int64, req, resp any) Op {
	return Op{Invoke: invoke, Return: ret, Request: req, Response: resp}
}

func putReq(k, v string) *pb.PutRequest { return &pb.PutRequest{Key: []byte(k), Value: []byte(v)} }

func putAt(invoke, ret int64, k, v string, rev int64) Op {
	return answered(invoke, ret, putReq(k, v), &pb.PutResponse{Header: at(rev)})
}

func open(invoke int64, req any) Op {
	return Op{Invoke: invoke, Return: invoke + 1, Request: req, Outcome: Ambiguous}
}

func refused(invoke, ret int64, req any, why Refusal) Op {
	return Op{Invoke: invoke, Return: ret, Request: req, Outcome: Failed, Refusal: why}
}

func kv(k, v string, create, mod, version int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(k), Value: []byte(v), CreateRevision: create, ModRevision: mod, Version: version}
}

// getAt is a read of one key, answered at rev.
func getAt(invoke, ret int64, k string, rev int64, kvs ...*mvccpb.KeyValue) Op {
	return answered(invoke, ret, &pb.RangeRequest{Key: []byte(k)}, &pb.RangeResponse{Header: at(rev), Kvs: kvs, Count: int64(len(kvs))})
}

func serializableAt(node string, invoke, ret int64, k string, rev int64, kvs ...*mvccpb.KeyValue) Op {
	op := getAt(invoke, ret, k, rev, kvs...)
	op.Request.(*pb.RangeRequest).Serializable = true
	op.Node = node
	return op
}

func historicalAt(invoke, ret int64, k string, asked, rev int64, kvs ...*mvccpb.KeyValue) Op {
	op := getAt(invoke, ret, k, rev, kvs...)
	op.Request.(*pb.RangeRequest).Revision = asked
	return op
}

func putEvent(rev int64, k, v string) Event { return Event{Revision: rev, Key: k, Value: v} }

func deleteEvent(rev int64, k string) Event { return Event{Revision: rev, Key: k, Delete: true} }

func putOp(k, v string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: putReq(k, v)}}
}

func deleteOp(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(end)}}}
}

func rangeOp(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(k), RangeEnd: []byte(end)}}}
}

func putResp() *pb.ResponseOp {
	return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}
}

func modIs(k string, rev int64) *pb.Compare {
	return &pb.Compare{Key: []byte(k), Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
}
