package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	"github.com/braidkv/braid/range/eval"
)

var bg = context.Background()

// names prints keys as "a b c".
func names(kvs []*mvccpb.KeyValue) string {
	var out []string
	for _, kv := range kvs {
		out = append(out, string(kv.Key))
	}
	return strings.Join(out, " ")
}

func all() *pb.RangeRequest { return &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}} }

func key(k string) *pb.RangeRequest { return &pb.RangeRequest{Key: []byte(k)} }

func keyTo(k, end string) *pb.RangeRequest {
	return &pb.RangeRequest{Key: []byte(k), RangeEnd: []byte(end)}
}

func (g *rig) rangeErr(r *pb.RangeRequest) error {
	g.t.Helper()
	var err error
	g.call(func() { _, err = g.s.Range(bg, r) })
	return err
}

// TestRangeFields checks each field of a range request over three ranges, on answers that were worked out by hand from
// etcd's rules.
func TestRangeFields(t *testing.T) {
	g := newRig(t, "c", "e")
	for i, k := range []string{"a", "b", "c", "d", "e", "f"} { // revisions 2 to 7
		g.put(k, fmt.Sprint(9-i))
	}
	g.put("a", "5")                                                      // a: create 2, mod 8, version 2
	g.put("x", "0")                                                      // 9
	g.del("x")                                                           // 10
	g.apply(eval.Write{Key: []byte("d"), Value: []byte("7"), Lease: 77}) // d: create 5, mod 11, version 2
	with := func(set func(*pb.RangeRequest)) *pb.RangeRequest { r := all(); set(r); return r }
	for _, c := range []struct {
		name  string
		r     *pb.RangeRequest
		keys  string
		count int64
		more  bool
	}{
		{"one key", key("b"), "b", 1, false},
		{"absent key", key("bb"), "", 0, false},
		{"deleted key", key("x"), "", 0, false},
		{"all", all(), "a b c d e f", 6, false},
		{"half open, over a border", keyTo("b", "d"), "b c", 2, false},
		{"from a key on", keyTo("d", "\x00"), "d e f", 3, false},
		{"empty", keyTo("d", "d"), "", 0, false},
		{"inverted", keyTo("e", "b"), "", 0, false},
		{"limit", with(func(r *pb.RangeRequest) { r.Limit = 4 }), "a b c d", 6, true},
		{"limit that just fits", with(func(r *pb.RangeRequest) { r.Limit = 6 }), "a b c d e f", 6, false},
		{"negative limit", with(func(r *pb.RangeRequest) { r.Limit = -1 }), "a b c d e f", 6, false},
		{"count only", with(func(r *pb.RangeRequest) { r.CountOnly = true }), "", 6, false},
		{"count only and limit", with(func(r *pb.RangeRequest) { r.CountOnly, r.Limit = true, 2 }), "", 6, false},
		{"in the past", with(func(r *pb.RangeRequest) { r.Revision = 4 }), "a b c", 3, false},
		{"deleted key in the past", with(func(r *pb.RangeRequest) { r.Key, r.RangeEnd, r.Revision = []byte("x"), nil, 9 }), "x", 1, false},
		{"negative revision", with(func(r *pb.RangeRequest) { r.Revision = -3 }), "a b c d e f", 6, false},
		{"min mod", with(func(r *pb.RangeRequest) { r.MinModRevision = 7 }), "a d f", 6, false},
		{"max mod", with(func(r *pb.RangeRequest) { r.MaxModRevision = 4 }), "b c", 6, false},
		{"create band", with(func(r *pb.RangeRequest) { r.MinCreateRevision, r.MaxCreateRevision = 3, 5 }), "b c d", 6, false},
		{"filter, then limit", with(func(r *pb.RangeRequest) { r.MinModRevision, r.Limit = 7, 2 }), "a d", 6, true},
		{"filter, then limit that just fits", with(func(r *pb.RangeRequest) { r.MinModRevision, r.Limit = 7, 3 }), "a d f", 6, false},
		{"descending keys", with(func(r *pb.RangeRequest) { r.SortOrder = pb.RangeRequest_DESCEND }), "f e d c b a", 6, false},
		{"descending keys, limit", with(func(r *pb.RangeRequest) { r.SortOrder, r.Limit = pb.RangeRequest_DESCEND, 2 }), "f e", 6, true},
		{"by mod", with(func(r *pb.RangeRequest) { r.SortTarget, r.SortOrder = pb.RangeRequest_MOD, pb.RangeRequest_DESCEND }), "d a f e c b", 6, false},
		{"by create", with(func(r *pb.RangeRequest) { r.SortTarget, r.SortOrder = pb.RangeRequest_CREATE, pb.RangeRequest_ASCEND }), "a b c d e f", 6, false},
		{"by version, limit", with(func(r *pb.RangeRequest) {
			r.SortTarget, r.SortOrder, r.Limit = pb.RangeRequest_VERSION, pb.RangeRequest_DESCEND, 2
		}), "a d", 6, true},
		{"by value", with(func(r *pb.RangeRequest) { r.SortTarget, r.SortOrder = pb.RangeRequest_VALUE, pb.RangeRequest_ASCEND }), "f a e c d b", 6, false},
		{"by value, filtered and limited", with(func(r *pb.RangeRequest) {
			r.SortTarget, r.SortOrder, r.Limit, r.MinModRevision = pb.RangeRequest_VALUE, pb.RangeRequest_ASCEND, 2, 5
		}), "f a", 6, true},
		{"target without order", with(func(r *pb.RangeRequest) { r.SortTarget = pb.RangeRequest_VALUE }), "f a e c d b", 6, false},
		// Without an order etcd takes the first limit+1 keys, sorts those, and cuts.
		{"target without order, limit", with(func(r *pb.RangeRequest) { r.SortTarget, r.Limit = pb.RangeRequest_VALUE, 2 }), "a c", 6, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := g.rangeOK(c.r)
			if names(got.Kvs) != c.keys || got.Count != c.count || got.More != c.more {
				t.Errorf("got %q count %d more %v, want %q count %d more %v", names(got.Kvs), got.Count, got.More, c.keys, c.count, c.more)
			}
			h := got.Header
			if h.Revision != 11 || h.ClusterId != 0xc1 || h.MemberId != 3 || h.RaftTerm != 7 {
				t.Errorf("header %v", h)
			}
		})
	}
	kv := g.rangeOK(key("d")).Kvs[0]
	if kv.CreateRevision != 5 || kv.ModRevision != 11 || kv.Version != 2 || kv.Lease != 77 || string(kv.Value) != "7" {
		t.Errorf("d is %v", kv)
	}
}

// TestKeysOnly: no values, and no leases unless etcd must look at the values.
func TestKeysOnly(t *testing.T) {
	g := newRig(t)
	g.apply(eval.Write{Key: []byte("a"), Value: []byte("v"), Lease: 5})
	r := all()
	r.KeysOnly = true
	if kv := g.rangeOK(r).Kvs[0]; kv.Value != nil || kv.Lease != 0 || kv.ModRevision != 2 || kv.Version != 1 {
		t.Errorf("keys only: %v", kv)
	}
	r.SortTarget, r.SortOrder = pb.RangeRequest_VALUE, pb.RangeRequest_ASCEND
	if kv := g.rangeOK(r).Kvs[0]; kv.Value != nil || kv.Lease != 5 {
		t.Errorf("keys only, by value: %v", kv)
	}
}

// TestRangeRefusals: what is wrong with a request, or with the revision it names.
func TestRangeRefusals(t *testing.T) {
	g := newRig(t)
	for range 5 {
		g.put("a", "1")
	}
	g.compact(4)
	at := func(rev int64, serializable bool) *pb.RangeRequest {
		return &pb.RangeRequest{Key: []byte("a"), Revision: rev, Serializable: serializable}
	}
	for _, c := range []struct {
		name string
		r    *pb.RangeRequest
		want error
	}{
		{"no key", &pb.RangeRequest{RangeEnd: []byte{0}}, rpctypes.ErrGRPCEmptyKey},
		{"sort order", &pb.RangeRequest{Key: []byte("a"), SortOrder: 9}, rpctypes.ErrGRPCInvalidSortOption},
		{"sort target", &pb.RangeRequest{Key: []byte("a"), SortTarget: 9}, rpctypes.ErrGRPCInvalidSortOption},
		{"future", at(7, false), rpctypes.ErrGRPCFutureRev},
		{"future, serializable", at(7, true), rpctypes.ErrGRPCFutureRev},
		{"compacted", at(3, false), rpctypes.ErrGRPCCompacted},
		{"compacted, serializable", at(3, true), rpctypes.ErrGRPCCompacted},
		{"compacted, nothing to read", &pb.RangeRequest{Key: []byte("b"), RangeEnd: []byte("a"), Revision: 3}, rpctypes.ErrGRPCCompacted},
		{"at the compaction", at(4, false), nil},
	} {
		wantErr(t, c.name, g.rangeErr(c.r), c.want)
	}
}

// TestLinearizableReadWaits: a read waits for the order log's position, for its publication here, and for the replicas of the ranges it
// touches, and for no others; the revision is that of the position.
func TestLinearizableReadWaits(t *testing.T) {
	g := newRig(t, "m")
	g.put("a", "1")
	var answer func(ids.Position, error)
	g.read = func(done func(ids.Position, error)) bool { answer = done; return true }
	var resp *pb.RangeResponse
	var err error
	c := g.start(func() { resp, err = g.s.Range(bg, all()) })
	g.waits(c)
	answer(g.view.Position+1, nil) // ahead of what is applied here
	g.run()
	g.waits(c)
	g.lagging[2] = true
	g.put("z", "1")
	g.run()
	g.waits(c)
	// Another read, of the range that has applied all, is answered meanwhile.
	g.read = nil
	if got := g.rangeOK(keyTo("a", "m")); got.Header.Revision != 3 {
		t.Errorf("revision %d, want 3", got.Header.Revision)
	}
	g.catchUp(2)
	g.run()
	g.finished(c)
	if err != nil || names(resp.Kvs) != "a z" || resp.Header.Revision != 3 {
		t.Errorf("got %v, %v", resp, err)
	}
}

// TestReadOfSeveralRangesIsOfOneRevision: writes that come while a replica is waited for are not seen in any range.
func TestReadOfSeveralRangesIsOfOneRevision(t *testing.T) {
	g := newRig(t, "m")
	g.put("a", "1")
	g.lagging[2] = true
	g.put("z", "1")
	var resp *pb.RangeResponse
	c := g.start(func() { resp, _ = g.s.Range(bg, all()) })
	g.waits(c)
	g.put("a", "2")
	g.put("z", "2")
	g.catchUp(2)
	g.run()
	g.finished(c)
	if resp.Header.Revision != 3 || string(resp.Kvs[0].Value) != "1" || string(resp.Kvs[1].Value) != "1" {
		t.Errorf("got %v", resp)
	}
}

// TestReadTimeouts: what a read that cannot be served ends with, and when.
func TestReadTimeouts(t *testing.T) {
	g := newRig(t)
	g.put("a", "1")
	g.lagging[1] = true
	g.put("a", "2")
	var err error
	c := g.start(func() { _, err = g.s.Range(bg, key("a")) })
	g.ticks(69)
	g.waits(c)
	g.ticks(1)
	g.finished(c)
	wantErr(t, "replica that lags for ever", err, rpctypes.ErrGRPCTimeout)

	for inner, want := range map[error]error{
		order.ErrTimeout: rpctypes.ErrGRPCTimeout, order.ErrNoLeader: rpctypes.ErrGRPCTimeout, order.ErrStopped: rpctypes.ErrGRPCStopped,
	} {
		g.read = func(done func(ids.Position, error)) bool { g.w.later(func() { done(0, inner) }); return true }
		wantErr(t, inner.Error(), g.rangeErr(key("a")), want)
	}
	var late func(ids.Position, error)
	g.read = func(done func(ids.Position, error)) bool { late = done; return true }
	c = g.start(func() { _, err = g.s.Range(bg, key("a")) })
	g.w.cancel(c, context.Canceled)
	g.finished(c)
	wantErr(t, "client gone", err, status.Error(codes.Canceled, "context canceled"))
	late(1, nil) // nobody listens any more
	g.run()
	c = g.start(func() { _, err = g.s.Range(bg, key("a")) })
	g.w.cancel(c, context.DeadlineExceeded)
	wantErr(t, "client's deadline", err, status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
}

// TestReadBeforeInit waits until the cluster has its ranges.
func TestReadBeforeInit(t *testing.T) {
	g := newRig(t)
	ready := *g.view
	empty := ready
	empty.Initialised, empty.Routing = false, order.NewRouting(nil)
	g.view = &empty
	for _, serializable := range []bool{false, true} {
		g.view = &empty
		var err error
		c := g.start(func() { _, err = g.s.Range(bg, &pb.RangeRequest{Key: []byte("a"), Serializable: serializable}) })
		g.waits(c)
		next := ready
		next.Position = empty.Position + 1
		g.publish(&next)
		g.run()
		g.finished(c)
		if err != nil {
			t.Error(err)
		}
	}
}

// TestNoReplica: a range without a replica here is an error that says so, for any read.
func TestNoReplica(t *testing.T) {
	g := newRig(t, "m")
	g.put("a", "1")
	delete(g.fronts, 2)
	for _, serializable := range []bool{false, true} {
		r := all()
		r.Serializable = serializable
		if err := g.rangeErr(r); err == nil || !strings.Contains(err.Error(), "no replica") {
			t.Errorf("got %v", err)
		}
		g.rangeOK(&pb.RangeRequest{Key: []byte("a"), Serializable: serializable})
	}
}

// TestReadStartsAgainAfterCompaction: a read that named no revision takes a new one when its own was compacted meanwhile; one that named
// it is told.
func TestReadStartsAgainAfterCompaction(t *testing.T) {
	for _, named := range []bool{false, true} {
		g := newRig(t)
		g.put("a", "1") // 2
		g.lagging[1] = true
		g.put("a", "2") // 3
		r := key("a")
		if named {
			r.Revision = 3
		}
		var resp *pb.RangeResponse
		var err error
		c := g.start(func() { resp, err = g.s.Range(bg, r) })
		g.waits(c)
		g.put("a", "3") // 4
		g.compact(4)
		g.catchUp(1)
		g.run()
		g.finished(c)
		if named {
			wantErr(t, "named revision", err, rpctypes.ErrGRPCCompacted)
		} else if err != nil || string(resp.Kvs[0].Value) != "3" || resp.Header.Revision != 4 {
			t.Errorf("got %v, %v", resp, err)
		}
	}
}

// TestCompactionBeforePublication: a replica may carry a compaction out before its position is published. The read
// waits for that, rather than to miss versions without knowing.
func TestCompactionBeforePublication(t *testing.T) {
	g := newRig(t)
	g.put("a", "1") // 2
	g.put("a", "2") // 3
	next := *g.view
	next.Position++
	next.CompactRevision = 3
	g.fronts[1].Enqueue(next.Position)
	g.fronts[1].Advance(next.Position)
	g.remove(3)
	r := key("a")
	r.Revision = 2
	var err error
	c := g.start(func() { _, err = g.s.Range(bg, r) })
	g.waits(c)
	g.publish(&next)
	g.run()
	g.finished(c)
	wantErr(t, "read of what is gone", err, rpctypes.ErrGRPCCompacted)
}

// TestSerializableRead asks nobody, and takes the newest revision that the node has.
func TestSerializableRead(t *testing.T) {
	g := newRig(t)
	g.put("a", "1")
	g.read = func(done func(ids.Position, error)) bool { t.Error("the order leader is asked"); return false }
	r := key("a")
	r.Serializable = true
	if got := g.rangeOK(r); got.Header.Revision != 2 || len(got.Kvs) != 1 {
		t.Errorf("got %v", got)
	}
}

// TestSerializableAfterRestart waits until the order state has reached what was committed before.
func TestSerializableAfterRestart(t *testing.T) {
	g := newRig(t)
	g.caughtUp = false
	var err error
	r := key("a")
	r.Serializable = true
	c := g.start(func() { _, err = g.s.Range(bg, r) })
	g.waits(c)
	g.caughtUp = true
	for _, fn := range g.onCaught {
		fn()
	}
	g.run()
	g.finished(c)
	if err != nil {
		t.Error(err)
	}
	g.caughtUp = false // once is enough
	g.rangeOK(r)
}

// TestSerializableLag: a replica that lags is waited for a little; then a lower revision must do, but none below one that the node has
// shown.
func TestSerializableLag(t *testing.T) {
	g := newRig(t, "m")
	g.put("a", "1") // 2
	g.lagging[1] = true
	g.put("a", "2") // 3
	g.put("z", "1") // 4
	r := key("a")
	r.Serializable = true
	var resp *pb.RangeResponse
	var err error
	read := func() *coroutine { return g.start(func() { resp, err = g.s.Range(bg, r) }) }

	c := read()
	g.ticks(1)
	g.waits(c)
	g.ticks(1)
	g.finished(c)
	if err != nil || resp.Header.Revision != 2 || string(resp.Kvs[0].Value) != "1" {
		t.Fatalf("lagging replica: got %v, %v", resp, err)
	}
	// The other range does not lag.
	if got := g.rangeOK(&pb.RangeRequest{Key: []byte("z"), Serializable: true}); got.Header.Revision != 4 {
		t.Errorf("range that does not lag: %v", got.Header)
	}
	// Now 4 has been shown, and nothing below will do.
	c = read()
	g.ticks(10)
	g.waits(c)
	g.catchUp(1)
	g.run()
	g.finished(c)
	if err != nil || resp.Header.Revision != 4 || string(resp.Kvs[0].Value) != "2" {
		t.Errorf("caught up: got %v, %v", resp, err)
	}
}

// TestSerializableAfterOwnWrite: the answer to a write may come before its revision is published here.
func TestSerializableAfterOwnWrite(t *testing.T) {
	g := newRig(t)
	g.put("a", "1")
	g.s.fill(&pb.ResponseHeader{Revision: 3}) // an answer of a leader elsewhere
	r := key("a")
	r.Serializable = true
	var resp *pb.RangeResponse
	c := g.start(func() { resp, _ = g.s.Range(bg, r) })
	g.ticks(5)
	g.waits(c)
	g.put("a", "2")
	g.run()
	g.finished(c)
	if resp.Header.Revision != 3 || string(resp.Kvs[0].Value) != "2" {
		t.Errorf("got %v", resp)
	}
}

// TestSerializableNotBelowCompaction: a replica that lags behind the compaction cannot be read at what it has.
func TestSerializableNotBelowCompaction(t *testing.T) {
	g := newRig(t)
	g.put("a", "1") // 2
	g.lagging[1] = true
	g.put("a", "2") // 3
	g.compact(3)
	r := key("a")
	r.Serializable = true
	var resp *pb.RangeResponse
	c := g.start(func() { resp, _ = g.s.Range(bg, r) })
	g.ticks(10)
	g.waits(c)
	g.catchUp(1)
	g.run()
	g.finished(c)
	if resp.Header.Revision != 3 {
		t.Errorf("got %v", resp)
	}
}

// TestErrorTable: every inner error has one of etcd's, wrapped or not, and etcd's own pass through.
func TestErrorTable(t *testing.T) {
	for _, row := range errorTable {
		wantErr(t, row.inner.Error(), readError(row.inner), row.etcds)
		wantErr(t, row.inner.Error(), readError(fmt.Errorf("while reading: %w", row.inner)), row.etcds)
	}
	wantErr(t, "etcd's", readError(rpctypes.ErrGRPCNoSpace), rpctypes.ErrGRPCNoSpace)
	if readError(nil) != nil || writeError(nil) != nil {
		t.Error("no error is an error")
	}
	wantErr(t, "write of a client that is gone", writeError(context.Canceled), rpctypes.ErrGRPCCanceled)
	wantErr(t, "write past its client's deadline", writeError(context.DeadlineExceeded), rpctypes.ErrGRPCTimeout)
	if s := readError(errors.New("disk on fire")); !strings.Contains(s.Error(), "disk on fire") || !strings.Contains(s.Error(), "Unknown") {
		t.Errorf("unknown error: %v", s)
	}
}
