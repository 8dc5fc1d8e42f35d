package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
	"github.com/braidkv/braid/range/eval"
)

// both writes a key in each of two ranges.
func both(v string) *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{opPut("z", v), opPut("a", v)}}
}

func (g *rig) saw(want string) {
	g.t.Helper()
	if got := strings.Join(g.submitted, ", "); got != want {
		g.t.Errorf("steps:\n got %s\nwant %s", got, want)
	}
}

// TestTxnOverRanges: one revision, locks in the order of range IDs, sub-revisions in the order of operations, reads and former values from
// what is locked.
func TestTxnOverRanges(t *testing.T) {
	g := newRig(t, "m")
	g.put("a", "0") // 2
	g.put("z", "0") // 3
	x := both("1")
	x.Compare = []*pb.Compare{modIs("a", 2), modIs("z", 3)}
	x.Success[0].GetRequestPut().PrevKv = true
	x.Success = append(x.Success, opGet(keyTo("a", "\x00")), opPut("n", "1"), opDel("b", "c"))
	x.Failure = []*pb.RequestOp{opGet(key("z"))}
	got, err := g.txn(x)
	if err != nil || !got.Succeeded || got.Header.Revision != 4 || got.Header.MemberId != 3 {
		t.Fatalf("got %v, %v", got, err)
	}
	if kv := got.Responses[0].GetResponsePut().PrevKv; string(kv.GetValue()) != "0" || kv.ModRevision != 3 {
		t.Errorf("former value %v", kv)
	}
	kvs := got.Responses[2].GetResponseRange().Kvs
	if names(kvs) != "a z" || kvs[0].ModRevision != 4 || kvs[0].CreateRevision != 2 || kvs[0].Version != 2 || string(kvs[1].Value) != "1" {
		t.Errorf("read back %v", kvs)
	}
	g.saw("lock 1, lock 2, prepare 1, prepare 2, commit")
	if all := g.rangeOK(all()); names(all.Kvs) != "a n z" || all.Kvs[1].ModRevision != 4 {
		t.Errorf("afterwards %v", all)
	}
	// The same again fails its compares: locks are given back, and the answer is a read's.
	g.submitted = nil
	if got, err = g.txn(x); err != nil || got.Succeeded || got.Header.Revision != 4 || string(got.Responses[0].GetResponseRange().Kvs[0].Value) != "1" {
		t.Errorf("got %v, %v", got, err)
	}
	g.saw("lock 1, lock 2, unlock 1, unlock 2")
	if len(g.locks) != 0 {
		t.Errorf("%d locks left", len(g.locks))
	}
}

// TestDeleteOverRanges is one revision.
func TestDeleteOverRanges(t *testing.T) {
	g := newRig(t, "m", "t")
	for _, k := range []string{"a", "n", "z"} {
		g.put(k, k)
	}
	var got *pb.DeleteRangeResponse
	var err error
	g.call(func() {
		got, err = g.s.DeleteRange(bg, &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, PrevKv: true})
	})
	if err != nil || got.Deleted != 3 || names(got.PrevKvs) != "a n z" || got.Header.Revision != 5 {
		t.Errorf("got %v, %v", got, err)
	}
	if left := g.rangeOK(all()); left.Count != 0 || left.Header.Revision != 5 {
		t.Errorf("left %v", left)
	}
}

// refuseTxn has the next request of a kind to a range answered with a code.
func (g *rig) refuseTxn(r ids.RangeID, kind string, code ranges.Code) {
	done := false
	g.submit = func(to ids.RangeID, req *ranges.Request) bool {
		is := kind == "lock" && req.Lock != nil || kind == "prepare" && req.Prepare != nil
		if done || !is || to != r {
			return false
		}
		done = true
		g.describe("%s %d: %v", kind, r, code)
		g.w.later(func() { req.Done(&ranges.Response{Code: code}) })
		return true
	}
}

// TestTxnRefusedByRange: until a commit is proposed everything can be given up; what is locked or prepared is given back.
func TestTxnRefusedByRange(t *testing.T) {
	const ok = "lock 1, lock 2, prepare 1, prepare 2, commit"
	const aborted = ", abort, unlock 1, unlock 2"
	for _, c := range []struct {
		kind  string
		code  ranges.Code
		ticks int
		want  error // nil: another attempt succeeds
		steps string
	}{
		{"lock", ranges.CodeNotLeader, 0, nil, "lock 1, lock 2: RANGE_NOT_LEADER, unlock 1, " + ok},
		{"lock", ranges.CodeGeneration, 1, nil, "lock 1, lock 2: RANGE_GENERATION, unlock 1, " + ok},
		{"lock", ranges.CodeAmbiguous, 0, nil, "lock 1, lock 2: RANGE_AMBIGUOUS, unlock 1, unlock 2, " + ok},
		{"lock", ranges.CodeTimeout, 0, rpctypes.ErrGRPCTimeout, "lock 1, lock 2: RANGE_TIMEOUT, unlock 1"},
		{"lock", ranges.CodeOverloaded, 0, rpctypes.ErrGRPCRequestTooManyRequests, "lock 1, lock 2: RANGE_OVERLOADED, unlock 1"},
		{"prepare", ranges.CodeTokenLapsed, 0, nil, "lock 1, lock 2, prepare 2: RANGE_TOKEN_LAPSED, prepare 1" + aborted + ", " + ok},
		{"prepare", ranges.CodeAmbiguous, 0, nil, "lock 1, lock 2, prepare 2: RANGE_AMBIGUOUS, prepare 1" + aborted + ", " + ok},
		{"prepare", ranges.CodeOverloaded, 0, rpctypes.ErrGRPCRequestTooManyRequests, "lock 1, lock 2, prepare 2: RANGE_OVERLOADED, prepare 1" + aborted},
		{"prepare", ranges.CodeTooLarge, 0, rpctypes.ErrGRPCRequestTooLarge, "lock 1, lock 2, prepare 2: RANGE_TOO_LARGE, prepare 1" + aborted},
	} {
		t.Run(c.kind+" "+c.code.String(), func(t *testing.T) {
			g := newRig(t, "m")
			g.refuseTxn(2, c.kind, c.code)
			var got *pb.TxnResponse
			var err error
			k := g.start(func() { got, err = g.s.Txn(bg, both("1")) })
			g.ticks(c.ticks)
			g.finished(k)
			wantErr(t, "txn", err, c.want)
			if c.want == nil && got.GetHeader().GetRevision() != 2 {
				t.Errorf("got %v", got)
			}
			// Of a second attempt's locks the fake tells them apart by token only; the order of unlock and abort is not promised.
			g.saw(sortedSteps(g.submitted, c.steps))
			if len(g.prepares) != 0 || len(g.locks) != 0 {
				t.Errorf("left: %d prepares, %d locks", len(g.prepares), len(g.locks))
			}
		})
	}
}

// sortedSteps is want if got has the same steps in any order, so that saw complains only about what differs.
func sortedSteps(got []string, want string) string {
	count := map[string]int{}
	for _, s := range got {
		count[s]++
	}
	for _, s := range strings.Split(want, ", ") {
		count[s]--
	}
	for _, n := range count {
		if n != 0 {
			return want
		}
	}
	return strings.Join(got, ", ")
}

// TestTxnDecisions: what the order log may make of the commit.
func TestTxnDecisions(t *testing.T) {
	for _, c := range []struct {
		name string
		res  order.Result
		want error // nil: another attempt succeeds
	}{
		{"an abort was first", order.Result{}, nil},
		{"past its deadline", order.Result{Err: order.ErrTxnDeadline}, nil},
		{"generation", order.Result{Err: order.ErrTxnGeneration}, nil},
		{"auth revision", order.Result{Err: order.ErrTxnAuth}, nil},
		{"lease of a key that keeps it", order.Result{Err: order.ErrTxnLease}, nil},
		{"unknown", order.Result{Err: order.ErrAmbiguous}, rpctypes.ErrGRPCTimeoutDueToLeaderFail},
		{"time-out", order.Result{Err: order.ErrTimeout}, rpctypes.ErrGRPCTimeout},
		{"no leader", order.Result{Err: order.ErrNoLeader}, rpctypes.ErrGRPCTimeout},
		{"full", order.Result{Err: order.ErrFull}, rpctypes.ErrGRPCRequestTooManyRequests},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, "m")
			commits := 0
			g.propose = func(cmd *braidpb.OrderCommand, done func(order.Result)) bool {
				m := cmd.GetCommit()
				if m == nil {
					return false
				}
				if commits++; commits > 1 {
					return false
				}
				if m.Deadline != uint64(g.view.Position)+deadlinePositions || len(m.Participants) != 2 || len(m.Generations) != 2 {
					t.Errorf("commit %v", m)
				}
				delete(g.prepares, txnOf(m.Txn))
				g.w.later(func() { done(c.res) })
				return true
			}
			_, err := g.txn(both("1"))
			wantErr(t, "txn", err, c.want)
			if tries := map[bool]int{true: 2, false: 1}[c.want == nil]; commits != tries {
				t.Errorf("%d commits", commits)
			}
		})
	}
}

// TestTxnLeaseLost: only who named the lease is told that it is gone.
func TestTxnLeaseLost(t *testing.T) {
	for _, c := range []struct {
		lease int64
		want  error
	}{{0, errTryAgain}, {5, order.ErrTxnLease}} {
		g := newRig(t)
		g.propose = func(_ *braidpb.OrderCommand, done func(order.Result)) bool {
			done(order.Result{Err: order.ErrTxnLease})
			return true
		}
		nested := &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
			Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("a"), Lease: c.lease}}}},
		}}}}}
		g.call(func() {
			k := &coordination{call: g.s.begin(bg), v: g.view, w: &write{txn: nested}}
			if _, err := k.commit(1, nil); !errors.Is(err, c.want) {
				t.Errorf("lease %d: %v", c.lease, err)
			}
		})
	}
}

// TestTxnGivenUp: before the commit is proposed, giving up aborts; afterwards the outcome is not known, and nothing is aborted.
func TestTxnGivenUp(t *testing.T) {
	g := newRig(t, "m")
	g.submit = func(r ids.RangeID, req *ranges.Request) bool { return req.Prepare != nil && r == 2 } // never answered
	var err error
	c := g.start(func() { _, err = g.s.Txn(bg, both("1")) })
	g.waits(c)
	g.w.cancel(c, context.Canceled)
	g.finished(c)
	wantErr(t, "txn", err, rpctypes.ErrGRPCCanceled)
	g.saw("lock 1, lock 2, prepare 1, abort, unlock 1, unlock 2")

	g = newRig(t, "m")
	g.propose = func(*braidpb.OrderCommand, func(order.Result)) bool { g.describe("proposed"); return true }
	c = g.start(func() { _, err = g.s.Txn(bg, both("1")) })
	g.ticks(70)
	g.finished(c)
	wantErr(t, "txn", err, rpctypes.ErrGRPCTimeout)
	g.saw("lock 1, lock 2, prepare 1, prepare 2, proposed")
}

// TestTxnSpans: every participant is told what it has to lock, and no more.
func TestTxnSpans(t *testing.T) {
	g := newRig(t, "h", "p")
	w := &write{txn: &pb.TxnRequest{
		Compare: []*pb.Compare{modIs("a", 1), {Key: []byte("g"), RangeEnd: []byte("i"), Target: pb.Compare_MOD}},
		Success: []*pb.RequestOp{opPut("b", ""), opDel("x", "\x00"), opGet(key("h"))},
		Failure: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: []*pb.RequestOp{opPut("o\xff", "")}}}},
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("z"), Revision: 1}}},
		},
	}}
	w.txn.Success[0].GetRequestPut().PrevKv = true
	show := func(in []*braidpb.Span) string {
		var out []string
		for _, s := range in {
			switch {
			case s.ToEnd:
				out = append(out, string(s.Start)+"..")
			case len(s.End) == 0:
				out = append(out, string(s.Start))
			default:
				out = append(out, string(s.Start)+".."+string(s.End))
			}
		}
		return strings.Join(out, " ")
	}
	var got []string
	for _, p := range participants(w, []*braidpb.RangeDescriptor{g.descriptor("z"), g.descriptor("a"), g.descriptor("h")}) {
		got = append(got, fmt.Sprintf("%d R[%s] W[%s]", p.id, show(p.reads), show(p.writes)))
	}
	if want := "1 R[a g..h b] W[b]; 2 R[h..i h] W[o\xff]; 3 R[x..] W[x..]"; strings.Join(got, "; ") != want {
		t.Errorf("got %s\nwant %s", strings.Join(got, "; "), want)
	}
	w = &write{del: &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}}
	got = nil
	for _, p := range participants(w, g.view.Routing.Ranges()) {
		got = append(got, fmt.Sprintf("%d R[%s] W[%s]", p.id, show(p.reads), show(p.writes)))
	}
	if want := "1 R[\x00..h] W[\x00..h]; 2 R[h..p] W[h..p]; 3 R[p..] W[p..]"; strings.Join(got, "; ") != want {
		t.Errorf("got %s\nwant %s", strings.Join(got, "; "), want)
	}
	w = &write{put: &pb.PutRequest{Key: []byte("k"), PrevKv: true}}
	if p := participants(w, g.view.Routing.Ranges()[1:2]); show(p[0].reads) != "k" || show(p[0].writes) != "k" {
		t.Errorf("put with prev_kv: %v", p[0])
	}
}

// TestTxnByState: what fails by the state, or changes nothing, is answered by a read, with nothing left behind.
func TestTxnByState(t *testing.T) {
	const locked = "lock 1, lock 2, unlock 1, unlock 2"
	for _, c := range []struct {
		what  string
		op    *pb.RequestOp
		want  error
		steps string
	}{
		{"missing key", &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("z"), IgnoreValue: true}}}, rpctypes.ErrGRPCKeyNotFound, locked},
		{"unknown lease", &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("z"), Lease: 7}}}, rpctypes.ErrGRPCLeaseNotFound, locked},
		{"future", &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("z"), Revision: 9}}}, rpctypes.ErrGRPCFutureRev, "lock 1, unlock 1"},
		{"compacted", &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("z"), Revision: 2}}}, rpctypes.ErrGRPCCompacted, "lock 1, unlock 1"},
	} {
		g := newRig(t, "m")
		for range 3 {
			g.put("a", "0")
		}
		g.compact(3)
		_, err := g.txn(&pb.TxnRequest{Success: []*pb.RequestOp{opPut("b", "1"), c.op}})
		wantErr(t, c.what, err, c.want)
		if got := strings.Join(g.submitted, ", "); got != c.steps {
			t.Errorf("%s: %s, want %s", c.what, got, c.steps)
		}
		if left := g.rangeOK(key("b")); left.Count != 0 || left.Header.Revision != 4 || len(g.locks) != 0 {
			t.Errorf("%s left %v, %d locks", c.what, left, len(g.locks))
		}
	}
	g := newRig(t, "m")
	g.put("a", "0")
	got, err := g.txn(&pb.TxnRequest{Success: []*pb.RequestOp{opDel("b", "\x00"), opDel("z", "")}})
	if err != nil || got.Header.Revision != 2 || got.Responses[0].GetResponseDeleteRange().Header.Revision != 2 {
		t.Errorf("deletion of nothing: %v, %v", got, err)
	}
}

// TestTxnReadsPast: the past of a range that is not written comes from this node's replica, at a revision that it has passed, and
// not without what a compaction has removed.
func TestTxnReadsPast(t *testing.T) {
	past := func() *pb.TxnRequest {
		return &pb.TxnRequest{Success: []*pb.RequestOp{
			opPut("a", "1"), {Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("z"), Revision: 2}}},
		}}
	}
	g := newRig(t, "m")
	g.put("z", "old") // 2
	g.lagging[2] = true
	g.put("z", "new") // 3
	var got *pb.TxnResponse
	var err error
	c := g.start(func() { got, err = g.s.Txn(bg, past()) })
	g.waits(c)
	g.catchUp(2)
	g.run()
	g.finished(c)
	if err != nil || got.Header.Revision != 4 || string(got.Responses[1].GetResponseRange().Kvs[0].Value) != "old" {
		t.Errorf("got %v, %v", got, err)
	}
	g.saw("lock 1, prepare 1, commit")

	// A compaction that a replica carries out while it reads: the order state that says so is waited for, then it starts again, and finds its
	// revision compacted.
	g.submitted = nil
	g.read = func(func(ids.Position, error)) bool {
		g.read = nil
		g.fronts[2].Advance(g.view.Position + 1)
		return false
	}
	c = g.start(func() { got, err = g.s.Txn(bg, past()) })
	g.waits(c)
	g.compact(3)
	g.catchUp(2)
	g.run()
	g.finished(c)
	wantErr(t, "compacted meanwhile", err, rpctypes.ErrGRPCCompacted)
	if left := g.rangeOK(key("a")); left.Kvs[0].Version != 1 || len(g.locks)+len(g.prepares) != 0 {
		t.Errorf("left %v", left)
	}
	g.saw("lock 1, unlock 1, lock 1, unlock 1")

	// No position to read at, or none that says whether something was compacted: certainly not done.
	g.read = func(done func(ids.Position, error)) bool {
		g.w.later(func() { done(0, order.ErrNoLeader) })
		return true
	}
	_, err = g.txn(past())
	wantErr(t, "no leader", err, rpctypes.ErrGRPCTimeout)
	g.read = func(func(ids.Position, error)) bool {
		g.fronts[2].Advance(g.view.Position + 1)
		return false
	}
	c = g.start(func() { got, err = g.s.Txn(bg, past()) })
	g.ticks(70)
	g.finished(c)
	wantErr(t, "order state lags", err, rpctypes.ErrGRPCTimeout)
	if len(g.locks)+len(g.prepares) != 0 {
		t.Error("something is left")
	}
}

// TestTxnGivesLocksBack at once, whatever it was that ended the attempt.
func TestTxnGivesLocksBack(t *testing.T) {
	// A lock that is not answered: it may have been given, so it is given back as well.
	g := newRig(t, "m")
	var held *ranges.Request
	g.submit = func(r ids.RangeID, req *ranges.Request) bool {
		if req.Lock != nil && r == 2 {
			held = req
			return true
		}
		if req.Unlock != nil && r == 2 && req.Unlock.Token != 0 {
			t.Errorf("unlock with token %d", req.Unlock.Token)
		}
		return false
	}
	var err error
	c := g.start(func() { _, err = g.s.Txn(bg, both("1")) })
	g.waits(c)
	g.ticks(70)
	g.finished(c)
	wantErr(t, "txn", err, rpctypes.ErrGRPCTimeout)
	g.saw("lock 1, unlock 1, unlock 2")
	held.Done(&ranges.Response{Lock: &braidpb.LockResponse{Token: 99}}) // too late, and no harm

	// Waiting for the order state comes after unlocking.
	g = newRig(t, "m")
	g.refuseTxn(2, "lock", ranges.CodeGeneration)
	c = g.start(func() { _, err = g.s.Txn(bg, both("1")) })
	g.waits(c)
	g.saw("lock 1, lock 2: RANGE_GENERATION, unlock 1")
	g.ticks(1)
	g.finished(c)

	// A participant that sends nonsense.
	g = newRig(t, "m")
	g.submit = func(r ids.RangeID, req *ranges.Request) bool {
		if req.Lock == nil || r != 2 {
			return false
		}
		g.w.later(func() { req.Done(&ranges.Response{Lock: &braidpb.LockResponse{Token: 5, Kvs: [][]byte{{0xff}}}}) })
		return true
	}
	if _, err = g.txn(both("1")); status.Code(err) != codes.Unknown {
		t.Errorf("malformed key: %v", err)
	}
	g.saw("lock 1, unlock 1, unlock 2")
}

// TestTxnFirstRefusalDecides: who cannot prepare is not made up for by waiting for the others.
func TestTxnFirstRefusalDecides(t *testing.T) {
	g := newRig(t, "m")
	var slow *ranges.Request
	g.submit = func(r ids.RangeID, req *ranges.Request) bool {
		switch {
		case req.Prepare == nil || r == 2 && slow == nil:
			return false
		case r == 1 && slow == nil:
			slow = req // not answered
			return true
		}
		return false
	}
	refused := g.submit
	first := true
	g.submit = func(r ids.RangeID, req *ranges.Request) bool {
		if req.Prepare != nil && r == 2 && first {
			first = false
			g.w.later(func() { req.Done(&ranges.Response{Code: ranges.CodeTokenLapsed}) })
			return true
		}
		return refused(r, req)
	}
	got, err := g.txn(both("1"))
	if err != nil || got.Header.Revision != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	slow.Done(&ranges.Response{}) // too late
	g.saw("lock 1, lock 2, abort, unlock 1, unlock 2, lock 1, lock 2, prepare 1, prepare 2, commit")
}

// TestTxnOutOfTimeBeforeCommit: as long as no commit is proposed, the end of the request's time is the end of the transaction.
func TestTxnOutOfTimeBeforeCommit(t *testing.T) {
	g := newRig(t, "m")
	g.submit = func(r ids.RangeID, req *ranges.Request) bool {
		if req.Prepare != nil && r == 2 {
			g.s.clock.now.Add(70)
		}
		return false
	}
	_, err := g.txn(both("1"))
	wantErr(t, "txn", err, rpctypes.ErrGRPCTimeout)
	g.saw("lock 1, lock 2, prepare 1, prepare 2, abort, unlock 1, unlock 2")
	if left := g.rangeOK(all()); left.Count != 0 || len(g.prepares) != 0 {
		t.Errorf("left %v", left)
	}
}

// TestTxnCommitNames what the order log checks: participants in ascending order with their generations, the leases of all writes, the auth
// revision.
func TestTxnCommitNames(t *testing.T) {
	g := newRig(t, "m")
	g.noop(func(v *order.View) { v.AuthRevision = 6 })
	var m *braidpb.TxnCommit
	g.propose = func(cmd *braidpb.OrderCommand, done func(order.Result)) bool {
		m = cmd.GetCommit()
		done(order.Result{Committed: true, Revision: 9})
		return true
	}
	descs := g.view.Routing.Ranges()
	c := &coordination{call: g.s.begin(bg), v: g.view, w: &write{txn: both("1")}, txn: ids.TxnID{Node: 3, Incarnation: 1, Counter: 8}}
	c.parts = participants(c.w, []*braidpb.RangeDescriptor{descs[1], descs[0]})
	g.call(func() {
		rev, err := c.commit(77, []eval.Write{{Key: []byte("a"), Lease: 4}, {Key: []byte("b")}, {Key: []byte("c"), Lease: 3}, {Key: []byte("z"), Lease: 4}})
		if rev != 9 || err != nil {
			t.Errorf("%d, %v", rev, err)
		}
	})
	want := &braidpb.TxnCommit{
		Txn: &braidpb.TxnID{Node: 3, Incarnation: 1, Counter: 8}, Participants: []uint64{1, 2}, Deadline: 77, AuthRevision: 6, Leases: []int64{4, 3},
		Generations: []*braidpb.Generation{{Generation: 1}, {Generation: 1}},
	}
	if !proto.Equal(m, want) {
		t.Errorf("got %v\nwant %v", m, want)
	}
}
