package router

import (
	"bytes"
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/range/latch"
)

// participants cuts what a request latches into the parts of the ranges. Keys whose former value is wanted are read too: one range would look
// when it applies the write, but here the answer is made by the coordinator.
func participants(w *write, descs []*braidpb.RangeDescriptor) []*participant {
	all := w.spans()
	reads, writes := all.Reads, all.Writes
	if prev := wantsPrev(w); len(prev) > 0 {
		reads = append(slices.Clone(reads), prev...)
	}
	out := make([]*participant, 0, len(descs))
	for _, d := range descs {
		out = append(out, &participant{desc: d, id: ids.RangeID(d.GetId()), reads: cut(reads, d), writes: cut(writes, d)})
	}
	slices.SortFunc(out, func(a, b *participant) int { return cmp.Compare(a.id, b.id) })
	return out
}

// cut is what lies in a range of spans, of which none is empty.
func cut(spans []latch.Span, d *braidpb.RangeDescriptor) (out []*braidpb.Span) {
	for _, sp := range spans {
		if sp.Point() {
			if mvcc.Contains(d.GetStart(), d.GetEnd(), sp.Start) {
				out = append(out, &braidpb.Span{Start: sp.Start})
			}
			continue
		}
		start, end := sp.Start, sp.End
		if bytes.Compare(start, d.GetStart()) < 0 {
			start = d.GetStart()
		}
		if len(d.GetEnd()) > 0 && (len(end) == 0 || bytes.Compare(end, d.GetEnd()) > 0) {
			end = d.GetEnd()
		}
		if len(end) == 0 || bytes.Compare(start, end) < 0 {
			out = append(out, &braidpb.Span{Start: start, End: end, ToEnd: len(end) == 0})
		}
	}
	return out
}

// wantsPrev are the keys of puts that ask for the former value. (Deletions read what they delete anyway.)
func wantsPrev(w *write) []latch.Span {
	switch {
	case w.put.GetPrevKv():
		return []latch.Span{{Start: w.put.Key}}
	case w.txn != nil:
		return txnWantsPrev(nil, w.txn)
	}
	return nil
}

func txnWantsPrev(out []latch.Span, t *pb.TxnRequest) []latch.Span {
	for _, ops := range [2][]*pb.RequestOp{t.GetSuccess(), t.GetFailure()} {
		for _, op := range ops {
			if p := op.GetRequestPut(); p.GetPrevKv() {
				out = append(out, latch.Span{Start: p.Key})
			}
			if n := op.GetRequestTxn(); n != nil {
				out = txnWantsPrev(out, n)
			}
		}
	}
	return out
}
