package router

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
)

func putReq(k, v string) *pb.PutRequest { return &pb.PutRequest{Key: []byte(k), Value: []byte(v)} }

func opPut(k, v string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: putReq(k, v)}}
}

func opGet(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func opDel(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(end), PrevKv: true}}}
}

func modIs(k string, rev int64) *pb.Compare {
	return &pb.Compare{Key: []byte(k), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
}

// putAs starts a put as a client's request.
func (g *rig) putAs(r *pb.PutRequest) (c *coroutine, resp func() (*pb.PutResponse, error)) {
	var out *pb.PutResponse
	var err error
	c = g.start(func() { out, err = g.s.Put(bg, r) })
	return c, func() (*pb.PutResponse, error) {
		g.t.Helper()
		g.finished(c)
		return out, err
	}
}

func (g *rig) txn(t *pb.TxnRequest) (resp *pb.TxnResponse, err error) {
	g.t.Helper()
	g.call(func() { resp, err = g.s.Txn(bg, t) })
	return resp, err
}

// TestPut: header, former value, and which range is asked.
func TestPut(t *testing.T) {
	g := newRig(t, "m")
	_, resp := g.putAs(putReq("a", "1"))
	if got, err := resp(); err != nil || got.Header.Revision != 2 || got.Header.ClusterId != 0xc1 || got.Header.MemberId != 3 || got.Header.RaftTerm != 7 || got.PrevKv != nil {
		t.Errorf("got %v, %v", got, err)
	}
	_, resp = g.putAs(&pb.PutRequest{Key: []byte("z"), Value: []byte("1"), PrevKv: true})
	resp()
	_, resp = g.putAs(&pb.PutRequest{Key: []byte("z"), Value: []byte("2"), PrevKv: true})
	if got, err := resp(); err != nil || got.Header.Revision != 4 || string(got.PrevKv.GetValue()) != "1" || got.PrevKv.ModRevision != 3 {
		t.Errorf("got %v, %v", got, err)
	}
	if got := strings.Join(g.submitted, ", "); got != "put 1, put 2, put 2" {
		t.Errorf("submitted %s", got)
	}
}

// TestWriteRefusals: requests that never reach a range.
func TestWriteRefusals(t *testing.T) {
	g := newRig(t)
	big := make([]byte, 1536<<10)
	var err error
	for _, c := range []struct {
		name string
		do   func() error
		want error
	}{
		{"put without key", func() error { _, err = g.s.Put(bg, &pb.PutRequest{}); return err }, rpctypes.ErrGRPCEmptyKey},
		{"put too large", func() error { _, err = g.s.Put(bg, &pb.PutRequest{Key: []byte("a"), Value: big}); return err }, rpctypes.ErrGRPCRequestTooLarge},
		{"delete without key", func() error { _, err = g.s.DeleteRange(bg, &pb.DeleteRangeRequest{}); return err }, rpctypes.ErrGRPCEmptyKey},
		{"txn too large", func() error {
			_, err = g.s.Txn(bg, &pb.TxnRequest{Success: []*pb.RequestOp{opPut("a", string(big))}})
			return err
		}, rpctypes.ErrGRPCRequestTooLarge},
		{"txn with one key twice", func() error {
			_, err = g.s.Txn(bg, &pb.TxnRequest{Success: []*pb.RequestOp{opPut("a", "1"), opPut("a", "2")}})
			return err
		}, rpctypes.ErrGRPCDuplicateKey},
	} {
		g.call(func() { wantErr(t, c.name, c.do(), c.want) })
	}
	// What etcd takes just so, braid takes.
	_, resp := g.putAs(&pb.PutRequest{Key: []byte("a"), Value: big[:1536<<10-64]})
	if _, err := resp(); err != nil {
		t.Error(err)
	}
	if len(g.submitted) != 1 {
		t.Errorf("submitted %v", g.submitted)
	}
}

// TestRangeAnswers: what each answer of a range other than OK leads to. A request is tried again only if it is certainly not done (O6).
func TestRangeAnswers(t *testing.T) {
	for _, c := range []struct {
		code  ranges.Code
		want  error // nil: it is tried again, and succeeds
		ticks int
	}{
		{ranges.CodeNotLeader, nil, 0},
		{ranges.CodeGeneration, nil, 1},
		{ranges.CodeAuthRevision, nil, 1},
		{ranges.CodeReadInstead, nil, 0}, // as a read it would change something: from the beginning
		{ranges.CodeTokenLapsed, nil, 0},
		{ranges.CodeAmbiguous, rpctypes.ErrGRPCTimeoutDueToLeaderFail, 0},
		{ranges.CodeTimeout, rpctypes.ErrGRPCTimeout, 0},
		{ranges.CodeOverloaded, rpctypes.ErrGRPCRequestTooManyRequests, 0},
		{ranges.CodeLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound, 0},
		{ranges.CodeTooLarge, rpctypes.ErrGRPCRequestTooLarge, 0},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			g := newRig(t)
			g.refuse(1, &ranges.Response{Code: c.code})
			_, resp := g.putAs(putReq("a", "1"))
			g.ticks(c.ticks)
			got, err := resp()
			tried := len(g.submitted)
			if c.want == nil {
				if err != nil || got.Header.Revision != 2 || tried != 2 {
					t.Errorf("got %v, %v after %v", got, err, g.submitted)
				}
				return
			}
			wantErr(t, "put", err, c.want)
			if tried != 1 {
				t.Errorf("tried %d times", tried)
			}
		})
	}
}

// TestRetriesArePaced: after the second refusal there is a pause before each try, and all end with the request's time.
func TestRetriesArePaced(t *testing.T) {
	g := newRig(t)
	g.refuse(1000, &ranges.Response{Code: ranges.CodeNotLeader})
	c, resp := g.putAs(putReq("a", "1"))
	g.waits(c)
	if n := len(g.submitted); n != 2 {
		t.Errorf("%d tries at once", n)
	}
	g.ticks(69)
	g.waits(c)
	if n := len(g.submitted); n != 2+69 {
		t.Errorf("%d tries after 69 ticks", n)
	}
	g.ticks(1)
	_, err := resp()
	wantErr(t, "put", err, rpctypes.ErrGRPCTimeout)
}

// TestTimeToSpend: what is submitted late in a request's life gets what is left of its time.
func TestTimeToSpend(t *testing.T) {
	g := newRig(t)
	var ticks []int
	n := 0
	g.submit = func(_ ids.RangeID, req *ranges.Request) bool {
		ticks = append(ticks, req.TimeoutTicks)
		if n++; n < 4 {
			g.w.later(func() { req.Done(&ranges.Response{Code: ranges.CodeNotLeader}) })
			return true
		}
		return false
	}
	_, resp := g.putAs(putReq("a", "1"))
	g.ticks(2)
	if _, err := resp(); err != nil {
		t.Error(err)
	}
	if !slices.Equal(ticks, []int{70, 70, 69, 68}) {
		t.Errorf("time-outs %v", ticks)
	}
}

// TestGenerationChanged: the request is routed anew when this node has learned of the split.
func TestGenerationChanged(t *testing.T) {
	g := newRig(t)
	old := g.view.Routing
	split := g.routing(2, "m")
	g.submit = func(r ids.RangeID, req *ranges.Request) bool {
		if req.Generation == 1 {
			g.describe("generation 1 to %d", r)
			g.w.later(func() { req.Done(&ranges.Response{Code: ranges.CodeGeneration}) })
			return true
		}
		return false
	}
	c, resp := g.putAs(putReq("z", "1"))
	g.waits(c)
	if g.view.Routing != old {
		t.Fatal("no split yet")
	}
	g.noop(func(v *order.View) { v.Routing = split })
	g.run()
	if _, err := resp(); err != nil {
		t.Error(err)
	}
	if got := strings.Join(g.submitted, ", "); got != "generation 1 to 1, put 2" {
		t.Errorf("submitted %s", got)
	}
}

// TestAuthRevisionChanged: the request is authorised anew, under what the node has learned.
func TestAuthRevisionChanged(t *testing.T) {
	g := newRig(t)
	g.submit = func(r ids.RangeID, req *ranges.Request) bool {
		if req.AuthRevision == 0 {
			g.w.later(func() { req.Done(&ranges.Response{Code: ranges.CodeAuthRevision}) })
			return true
		}
		return false
	}
	c, resp := g.putAs(putReq("z", "1"))
	g.waits(c)
	g.noop(func(v *order.View) { v.AuthRevision = 5 })
	g.run()
	if _, err := resp(); err != nil {
		t.Error(err)
	}
}

// TestNothingToWrite: requests that change nothing, or fail by the state, are answered as reads at a revision obtained after they came.
func TestNothingToWrite(t *testing.T) {
	g := newRig(t, "m")
	g.put("a", "1")
	g.put("z", "1")
	rev := int64(3)
	var del *pb.DeleteRangeResponse
	var err error
	for _, d := range []*pb.DeleteRangeRequest{
		{Key: []byte("b")}, {Key: []byte("b"), RangeEnd: []byte("y")}, {Key: []byte("z"), RangeEnd: []byte("a")}, {Key: []byte("z"), RangeEnd: []byte("z")},
	} {
		g.call(func() { del, err = g.s.DeleteRange(bg, d) })
		if err != nil || del.Deleted != 0 || del.Header.Revision != rev {
			t.Errorf("%v: got %v, %v", d, del, err)
		}
	}
	_, resp := g.putAs(&pb.PutRequest{Key: []byte("b"), IgnoreValue: true})
	_, err = resp()
	wantErr(t, "ignore_value of an absent key", err, rpctypes.ErrGRPCKeyNotFound)
	_, resp = g.putAs(&pb.PutRequest{Key: []byte("b"), Lease: 9})
	_, err = resp()
	wantErr(t, "unknown lease", err, rpctypes.ErrGRPCLeaseNotFound)
	for _, x := range []*pb.TxnRequest{
		{},
		{Success: []*pb.RequestOp{opGet(key("a")), opGet(key("z"))}},
		{Success: []*pb.RequestOp{opDel("b", ""), opDel("y", "")}},
		{Compare: []*pb.Compare{modIs("a", 9)}, Success: []*pb.RequestOp{opPut("a", "2")}},
		{Compare: []*pb.Compare{modIs("a", 9)}, Success: []*pb.RequestOp{opPut("a", "2"), opPut("z", "2")}},
	} {
		got, err := g.txn(x)
		if err != nil || got.Header.Revision != rev || got.Header.MemberId != 3 {
			t.Errorf("%v: got %v, %v", x, got, err)
		}
	}
	_, err = g.txn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut("a", "2"), opGet(&pb.RangeRequest{Key: []byte("a"), Revision: 4})}})
	wantErr(t, "read of the future", err, rpctypes.ErrGRPCFutureRev)
	if g.view.Revision != 3 {
		t.Errorf("revision %d", g.view.Revision)
	}
}

// TestReadInsteadSeesItsPoint: the evaluation as a read is at a revision obtained after the refusal, not at what this node had.
func TestReadInsteadSeesItsPoint(t *testing.T) {
	g := newRig(t)
	g.put("a", "1")
	// The leader has seen a deletion that is not published here yet.
	n := 0
	g.submit = func(_ ids.RangeID, req *ranges.Request) bool {
		n++
		g.w.later(func() { req.Done(&ranges.Response{Code: ranges.CodeReadInstead}) })
		return true
	}
	g.hidden = &order.View{}
	*g.hidden = *g.view
	g.hidden.Position++
	var del *pb.DeleteRangeResponse
	c := g.start(func() { del, _ = g.s.DeleteRange(bg, &pb.DeleteRangeRequest{Key: []byte("a")}) })
	g.waits(c)
	g.hidden = nil
	g.del("a") // at the position that the read was told of
	g.run()
	g.finished(c)
	if del.GetDeleted() != 0 || del.Header.Revision != 3 || n != 1 {
		t.Errorf("got %v after %d tries", del, n)
	}
}

// TestWriteTimesOut: if no answer comes, what became of the write is not known, and it is not tried again.
func TestWriteTimesOut(t *testing.T) {
	g := newRig(t)
	var held *ranges.Request
	g.submit = func(_ ids.RangeID, req *ranges.Request) bool { held = req; return true }
	_, late := g.putAs(putReq("a", "1"))
	g.ticks(70)
	_, err := late()
	wantErr(t, "no answer", err, rpctypes.ErrGRPCTimeout)
	held.Done(&ranges.Response{Code: ranges.CodeOK}) // too late
	g.run()
	c, resp := g.putAs(putReq("a", "1"))
	g.w.cancel(c, context.Canceled)
	_, err = resp()
	wantErr(t, "client gone", err, rpctypes.ErrGRPCCanceled)
}

// TestCompact: revisions out of bounds, the header, and physical compaction.
func TestCompact(t *testing.T) {
	g := newRig(t)
	for range 5 {
		g.put("a", "1")
	}
	compact := func(rev int64) (resp *pb.CompactionResponse, err error) {
		g.call(func() { resp, err = g.s.Compact(bg, &pb.CompactionRequest{Revision: rev}) })
		return resp, err
	}
	if resp, err := compact(0); err != nil || resp.Header.Revision != 6 {
		t.Errorf("at 0, never compacted: %v, %v", resp, err)
	}
	_, err := compact(-1)
	wantErr(t, "-1, never compacted", err, rpctypes.ErrGRPCCompacted)
	resp, err := compact(4)
	if err != nil || resp.Header.Revision != 6 {
		t.Errorf("got %v, %v", resp, err)
	}
	for _, rev := range []int64{4, 3, 0, -1} {
		_, err := compact(rev)
		wantErr(t, fmt.Sprint(rev), err, rpctypes.ErrGRPCCompacted)
	}
	_, err = compact(7)
	wantErr(t, "7", err, rpctypes.ErrGRPCFutureRev)

	c := g.start(func() { resp, err = g.s.Compact(bg, &pb.CompactionRequest{Revision: 5, Physical: true}) })
	g.ticks(500)
	g.waits(c)
	g.remove(5)
	g.run()
	g.finished(c)
	if err != nil {
		t.Error(err)
	}

	g.propose = func(_ *braidpb.OrderCommand, done func(order.Result)) bool {
		g.w.later(func() { done(order.Result{Err: order.ErrAmbiguous}) })
		return true
	}
	_, err = compact(6)
	wantErr(t, "unknown outcome", err, rpctypes.ErrGRPCTimeoutDueToLeaderFail)
}

// TestRoute: which ranges a request touches.
func TestRoute(t *testing.T) {
	g := newRig(t, "c", "e")
	txn := func(ops ...*pb.RequestOp) *write { return &write{txn: &pb.TxnRequest{Success: ops}} }
	for _, c := range []struct {
		name string
		w    *write
		want string
	}{
		{"put", &write{put: putReq("d", "")}, "2"},
		{"put at a border", &write{put: putReq("c", "")}, "2"},
		{"delete of one key", &write{del: &pb.DeleteRangeRequest{Key: []byte("b")}}, "1"},
		{"delete of a span", &write{del: &pb.DeleteRangeRequest{Key: []byte("b"), RangeEnd: []byte("d")}}, "1 2"},
		{"delete up to a border", &write{del: &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte("c")}}, "1"},
		{"delete from a key on", &write{del: &pb.DeleteRangeRequest{Key: []byte("d"), RangeEnd: []byte{0}}}, "2 3"},
		{"delete of everything", &write{del: &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}}, "1 2 3"},
		{"delete of nothing", &write{del: &pb.DeleteRangeRequest{Key: []byte("d"), RangeEnd: []byte("a")}}, ""},
		{"empty txn", txn(), ""},
		{"txn of one range", txn(opPut("d", ""), opGet(key("c"))), "2"},
		{"txn of two", txn(opPut("f", ""), opPut("a", ""), opPut("g", "")), "1 3"},
		{"txn with a span", txn(opDel("d", "z")), "2 3"},
		{"the past does not count", txn(opPut("a", ""), opGet(&pb.RangeRequest{Key: []byte("f"), Revision: 1})), "1"},
		{"compares and the other branch count", &write{txn: &pb.TxnRequest{Compare: []*pb.Compare{modIs("f", 0)}, Success: []*pb.RequestOp{opPut("a", "")}, Failure: []*pb.RequestOp{opGet(key("d"))}}}, "1 2 3"},
	} {
		var got []string
		for _, d := range c.w.route(g.view) {
			got = append(got, fmt.Sprint(d.Id))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.name, s, c.want)
		}
	}
}

// TestTxnOfOneRange goes to the range as it is.
func TestTxnOfOneRange(t *testing.T) {
	g := newRig(t, "m")
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{modIs("a", 0)},
		Success: []*pb.RequestOp{opPut("a", "1"), opGet(key("a")), opPut("b", "1")},
		Failure: []*pb.RequestOp{opGet(key("a"))},
	}
	before := proto.Clone(req)
	got, err := g.txn(req)
	if err != nil || !got.Succeeded || got.Header.Revision != 2 || len(got.Responses) != 3 {
		t.Fatalf("got %v, %v", got, err)
	}
	if kv := got.Responses[1].GetResponseRange().Kvs[0]; kv.ModRevision != 2 || kv.CreateRevision != 2 || kv.Version != 1 {
		t.Errorf("read back %v", kv)
	}
	if !proto.Equal(before, req) {
		t.Error("the request was changed")
	}
	if got, err = g.txn(req); err != nil || got.Succeeded || string(got.Responses[0].GetResponseRange().Kvs[0].Value) != "1" {
		t.Errorf("got %v, %v", got, err)
	}
	if s := strings.Join(g.submitted, ", "); s != "txn 1, txn 1" {
		t.Errorf("submitted %s", s)
	}
}

// TestPastOutsideOfTheRange: a transaction that writes in one range and reads the past of another goes through the coordinator.
func TestPastOutsideOfTheRange(t *testing.T) {
	g := newRig(t, "m")
	g.put("z", "1") // 2
	g.put("z", "2") // 3
	got, err := g.txn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut("a", "1"), opGet(&pb.RangeRequest{Key: []byte("z"), Revision: 2})}})
	if err != nil || got.Header.Revision != 4 || string(got.Responses[1].GetResponseRange().Kvs[0].Value) != "1" {
		t.Errorf("got %v, %v", got, err)
	}
	if s := strings.Join(g.submitted, ", "); s != "lock 1, prepare 1, commit" {
		t.Errorf("submitted %s", s)
	}
}

// TestSerializableTxn asks nobody, if all its operations are serializable reads.
func TestSerializableTxn(t *testing.T) {
	g := newRig(t)
	g.put("a", "1")
	asked := 0
	g.read = func(func(ids.Position, error)) bool { asked++; return false }
	r := &pb.RangeRequest{Key: []byte("a"), Serializable: true}
	for i, x := range []*pb.TxnRequest{
		{Success: []*pb.RequestOp{opGet(r)}, Failure: []*pb.RequestOp{opGet(r)}},
		{Success: []*pb.RequestOp{opGet(r), opGet(key("a"))}},
	} {
		if got, err := g.txn(x); err != nil || got.Header.Revision != 2 || asked != i {
			t.Errorf("%d: got %v, %v, asked %d times", i, got, err, asked)
		}
	}
}
