package check

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

var someKeys = []string{"a", "b", "c", "d"}

// perfect draws the history of a store that does everything right: each request takes effect at one
// moment between its sending and its answer, ambiguous ones then, later or never.
func perfect(t *rapid.T) History {
	type moment struct {
		at int64
		op int
	}
	h := History{Base: 1}
	n := rapid.IntRange(1, 30).Draw(t, "requests")
	var moments []moment
	for i := range n {
		invoke := rapid.Int64Range(0, int64(4*n)).Draw(t, "invoke")
		length := rapid.Int64Range(2, 20).Draw(t, "length")
		op := Op{Client: i, Invoke: invoke, Return: invoke + length, Request: request(t, i)}
		at := invoke + rapid.Int64Range(1, length-1).Draw(t, "at")
		if rapid.IntRange(0, 5).Draw(t, "ambiguous") == 0 {
			op.Outcome = Ambiguous
			at += rapid.Int64Range(0, 100).Draw(t, "late")
		}
		h.Ops = append(h.Ops, op)
		if op.Outcome == OK || rapid.Bool().Draw(t, "happens") {
			moments = append(moments, moment{at, i})
		}
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	p := newPoint(&h)
	for _, m := range moments {
		op := &h.Ops[m.op]
		from := p
		if serializable(op.Request) { // any past state will do
			for back := rapid.IntRange(0, 3).Draw(t, "back"); back > 0 && from.below != nil; back-- {
				from = from.below
			}
		}
		res, err := evaluate(from, from.rev, from.floor, op.Request)
		if err != nil {
			t.Fatal(err)
		}
		if res.refusal != NotJudged {
			op.Outcome, op.Refusal, op.Return = Failed, res.refusal, max(op.Return, m.at+1)
			continue
		}
		h.Events = append(h.Events, res.events...)
		p = p.advance(op, res)
		if op.Outcome == OK {
			op.Response = res.answer
			rev := from.rev
			if len(res.events) > 0 {
				rev = p.rev
			}
			setHeader(op.Response, rev)
		}
	}
	h.Final = p.rev
	return h
}

func setHeader(resp any, rev int64) {
	switch r := resp.(type) {
	case *pb.PutResponse:
		r.Header = at(rev)
	case *pb.DeleteRangeResponse:
		r.Header = at(rev)
	case *pb.RangeResponse:
		r.Header = at(rev)
	case *pb.TxnResponse:
		r.Header = at(rev)
	case *pb.CompactionResponse:
		r.Header = at(rev)
	}
}

func request(t *rapid.T, i int) any {
	key := rapid.SampledFrom(someKeys)
	k := key.Draw(t, "key")
	v := fmt.Sprint(i)
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1:
		return &pb.PutRequest{Key: []byte(k), Value: []byte(v), PrevKv: rapid.Bool().Draw(t, "prev")}
	case 2:
		return &pb.PutRequest{Key: []byte(k), IgnoreValue: true}
	case 3:
		return &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(rapid.SampledFrom([]string{"", "c", "\x00"}).Draw(t, "end")), PrevKv: true}
	case 4:
		return &pb.TxnRequest{
			Compare: []*pb.Compare{modIs(k, rapid.Int64Range(0, 6).Draw(t, "mod"))},
			Success: []*pb.RequestOp{putOp(k, v), deleteOp(k+"!", "z")}, // etcd refuses overlaps
			Failure: []*pb.RequestOp{rangeOp("a", "z")},
		}
	case 5:
		return &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("z"), Revision: rapid.Int64Range(0, 8).Draw(t, "revision")}
	case 6:
		return &pb.RangeRequest{Key: []byte(k), Serializable: true}
	case 7:
		return &pb.CompactionRequest{Revision: rapid.Int64Range(1, 8).Draw(t, "compact")}
	case 8:
		inner := &pb.TxnRequest{Success: []*pb.RequestOp{putOp(k, v), rangeOp("a", "z")}}
		return &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(k, ""), {Request: &pb.RequestOp_RequestTxn{RequestTxn: inner}}}}
	default:
		return &pb.RangeRequest{
			Key: []byte("a"), RangeEnd: []byte("z"), Limit: rapid.Int64Range(0, 3).Draw(t, "limit"),
			SortTarget: pb.RangeRequest_SortTarget(rapid.IntRange(0, 4).Draw(t, "target")),
			SortOrder:  pb.RangeRequest_SortOrder(rapid.IntRange(0, 2).Draw(t, "order")),
			KeysOnly:   rapid.Bool().Draw(t, "keys only"), CountOnly: rapid.IntRange(0, 3).Draw(t, "count") == 0,
			MinModRevision: rapid.Int64Range(0, 2).Draw(t, "min"),
		}
	}
}

// TestPerfectHistories: a right store is never accused, with its events known or searched for.
func TestPerfectHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := perfect(t)
		if err := Check(h).Err(); err != nil {
			t.Fatal(err)
		}
		if len(h.Ops) > 10 {
			return // the search may take any time
		}
		events, final, err := Recover(h, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		// Serializable reads may have seen an ambiguous write that nothing else saw.
		h.Ops = slices.DeleteFunc(h.Ops, func(op Op) bool { return op.Outcome == OK && serializable(op.Request) })
		h.Events, h.Final = events, final
		if err := Check(h).Err(); err != nil {
			t.Fatalf("recovered: %v", err)
		}
	})
}

// TestMutatedHistories: one wrong detail in a right history is noticed.
func TestMutatedHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := perfect(t)
		i := rapid.IntRange(0, len(h.Ops)-1).Draw(t, "victim")
		op := &h.Ops[i]
		if op.Outcome != OK {
			t.Skip("not answered")
		}
		rev, _ := header(op.Response)
		switch r := op.Response.(type) {
		case *pb.PutResponse:
			if rapid.Bool().Draw(t, "lose") {
				h.Events = slices.DeleteFunc(h.Events, func(e Event) bool { return e.Revision == rev })
				break
			}
			r.PrevKv = kv("a", "from nowhere", 1, 1, 1)
		case *pb.RangeResponse:
			if len(r.Kvs) == 0 || rapid.Bool().Draw(t, "count") {
				r.Count++
				break
			}
			r.Kvs[0] = proto.CloneOf(r.Kvs[0])
			r.Kvs[0].Version++
		case *pb.DeleteRangeResponse:
			r.Deleted++
		case *pb.TxnResponse:
			r.Succeeded = !r.Succeeded
		default:
			t.Skip("nothing to change")
		}
		if Check(h).Err() == nil {
			t.Fatalf("request %d: the change went unnoticed", i)
		}
	})
}
