package ranges

import (
	"bytes"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// alone is a host whose proposals are committed at once.
type alone struct {
	*member
	proposed []Entry
	index    ids.Index
	view     OrderView
	through  ids.Seq
}

func (h *alone) Propose(data []byte) error {
	h.index++
	h.proposed = append(h.proposed, Entry{Index: h.index, Term: 2, Data: bytes.Clone(data)})
	return nil
}

func (h *alone) Progress(p Progress)         { h.through = p.Through }
func (h *alone) ProgressReset(r ids.RangeID) {}
func (h *alone) OrderView() OrderView        { return h.view }

// benchmarkWrites measures what a leader, without Raft and without the order log, spends on a write: batches of
// requests go in, are proposed, delivered, ordered, applied and answered. ns/op is per request.
func benchmarkWrites(b *testing.B, batch int, request func(i int) *Request) {
	c := newClusterOf(1, 64<<20, nil)
	defer c.close()
	h := &alone{member: c.nodes[0], view: OrderView{Position: 1, Revision: 1, AuthRevision: 1, Leader: 1}, index: 2}
	r, _, err := New(Config{Descriptor: c.descriptor(), Node: 1}, h)
	if err != nil {
		b.Fatal(err)
	}
	r.Role(Role{Term: 2, Leader: 1, LeaderReplica: 1, IsLeader: true})
	r.Deliver([]Entry{{Index: 1, Term: 1}, {Index: 2, Term: 2}})
	r.Flush()
	done := 0
	var ordered ids.Seq
	events := make([]any, 0, batch)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += batch {
		events = events[:0]
		for j := range batch {
			q := request(i + j)
			q.Generation, q.AuthRevision = 1, 1
			q.Done = func(r *Response) {
				if r.Code != CodeOK {
					b.Fatalf("answered %+v", r)
				}
				done++
			}
			events = append(events, q)
		}
		r.Handle(events)
		r.Deliver(h.proposed)
		h.proposed = h.proposed[:0]
		h.view.Position++
		it := &braidpb.SeqsItem{From: uint64(ordered), Through: uint64(h.through), FirstRevision: int64(h.view.Revision + 1)}
		h.view.Revision += ids.Revision(h.through - ordered)
		ordered = h.through
		r.Frontier().Enqueue(h.view.Position)
		r.Handle([]any{Dispatch{&braidpb.Items{Position: uint64(h.view.Position), Items: []*braidpb.Item{{Kind: &braidpb.Item_Seqs{Seqs: it}}}}}})
		r.Flush()
	}
	b.StopTimer()
	if done < b.N {
		b.Fatalf("%d of %d answered", done, b.N)
	}
}

func BenchmarkPut(b *testing.B) {
	value := make([]byte, 256)
	for _, batch := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			benchmarkWrites(b, batch, func(i int) *Request {
				return &Request{Put: &pb.PutRequest{Key: fmt.Appendf(nil, "key-%08d", i%100000), Value: value}}
			})
		})
	}
}

// BenchmarkCAS is many compare-and-swaps on one key at a time, each on top of the one before.
func BenchmarkCAS(b *testing.B) {
	value := make([]byte, 256)
	benchmarkWrites(b, 64, func(i int) *Request {
		k := []byte("key")
		return &Request{Txn: &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: k, Target: pb.Compare_VERSION, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_Version{Version: int64(i)}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: k, Value: value}}}},
		}}
	})
}
