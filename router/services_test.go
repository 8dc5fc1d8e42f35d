package router

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
)

// TestStatus: all fields, and the complaint when there is no leader.
func TestStatus(t *testing.T) {
	g := newRig(t)
	g.put("a", "1")
	m := g.s.Maintenance()
	st, err := m.Status(bg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h := st.Header; h.Revision != 2 || h.MemberId != 3 || h.ClusterId != 0xc1 || h.RaftTerm != 7 {
		t.Errorf("header %v", h)
	}
	if st.Version != "3.7.3" || st.StorageVersion != "3.7.0" || st.Leader != 3 || st.RaftTerm != 7 || st.RaftIndex != 3 || st.RaftAppliedIndex != 2 ||
		st.DbSize != 4096 || st.DbSizeInUse != 1024 || st.DbSizeQuota != 2<<30 || st.IsLearner || len(st.Errors) != 0 || st.DowngradeInfo == nil || st.DowngradeInfo.Enabled {
		t.Errorf("status %v", st)
	}
	g.noop(func(v *order.View) { v.Leader = 0 })
	if st, _ = m.Status(bg, nil); st.Leader != 0 || len(st.Errors) != 1 || st.Errors[0] != "etcdserver: no leader" {
		t.Errorf("status without a leader %v", st)
	}
}

// TestAlarms: none.
func TestAlarms(t *testing.T) {
	g := newRig(t)
	g.put("a", "1")
	for _, a := range []pb.AlarmRequest_AlarmAction{pb.AlarmRequest_GET, pb.AlarmRequest_DEACTIVATE} {
		var resp *pb.AlarmResponse
		var err error
		g.call(func() { resp, err = g.s.Maintenance().Alarm(bg, &pb.AlarmRequest{Action: a}) })
		if err != nil || len(resp.Alarms) != 0 || resp.Header.Revision != 2 {
			t.Errorf("%v: %v, %v", a, resp, err)
		}
	}
}

// TestHash: equal contents have equal sums, whatever a compaction has removed yet; the bounds are etcd's.
func TestHash(t *testing.T) {
	build := func() *rig {
		g := newRig(t, "m")
		g.put("a", "1")
		g.put("z", "1")
		g.put("a", "2")
		g.del("z")
		return g
	}
	hash := func(g *rig, rev int64) (resp *pb.HashKVResponse, err error) {
		g.call(func() { resp, err = g.s.Maintenance().HashKV(bg, &pb.HashKVRequest{Revision: rev}) })
		return resp, err
	}
	g, o := build(), build()
	a, err := hash(g, 0)
	if err != nil || a.CompactRevision != -1 || a.HashRevision != 5 || a.Header.Revision != 5 {
		t.Errorf("got %v, %v", a, err)
	}
	if b, _ := hash(o, 5); b.Hash != a.Hash {
		t.Error("equal stores, other sums")
	}
	if b, _ := hash(o, 4); b.Hash == a.Hash {
		t.Error("another revision, the same sum")
	}
	var whole *pb.HashResponse
	g.call(func() { whole, err = g.s.Maintenance().Hash(bg, nil) })
	if err != nil || whole.Hash != a.Hash || whole.Header.Revision != 5 {
		t.Errorf("got %v, %v", whole, err)
	}
	_, err = hash(g, 6)
	wantErr(t, "future", err, rpctypes.ErrGRPCFutureRev)
	g.compact(4)
	o.noop(func(v *order.View) { v.CompactRevision = 4 }) // not carried out
	a, _ = hash(g, 0)
	if b, err := hash(o, 0); err != nil || a.Hash != b.Hash || b.CompactRevision != 4 {
		t.Errorf("compacted: %v and %v, %v", a, b, err)
	}
	_, err = hash(g, 3)
	wantErr(t, "compacted", err, rpctypes.ErrGRPCCompacted)
}

// TestMemberList: linearizable unless asked otherwise; no revision in the header.
func TestMemberList(t *testing.T) {
	g := newRig(t)
	asked := 0
	g.read = func(func(ids.Position, error)) bool { asked++; return false }
	for i, linearizable := range []bool{false, true} {
		var resp *pb.MemberListResponse
		var err error
		g.call(func() {
			resp, err = g.s.Cluster().MemberList(bg, &pb.MemberListRequest{Linearizable: linearizable})
		})
		if err != nil || asked != i || len(resp.Members) != 2 || resp.Header.Revision != 0 || resp.Header.MemberId != 3 {
			t.Errorf("%v: %v, %v, asked %d times", linearizable, resp, err, asked)
		}
		if m := resp.Members[0]; m.ID != 1 || m.Name != "a" || m.PeerURLs[0] != "http://a:2380" || m.ClientURLs[0] != "http://a:2379" || !m.IsLearner || resp.Members[1].IsLearner {
			t.Errorf("members %v", resp.Members)
		}
	}
	g.read = func(done func(ids.Position, error)) bool { done(0, order.ErrTimeout); return true }
	var err error
	g.call(func() { _, err = g.s.Cluster().MemberList(bg, &pb.MemberListRequest{Linearizable: true}) })
	wantErr(t, "no quorum", err, rpctypes.ErrGRPCTimeout)
}

// TestMemberChangesThatMustFail have etcd's reasons.
func TestMemberChangesThatMustFail(t *testing.T) {
	g := newRig(t)
	c, m := g.s.Cluster(), g.s.Maintenance()
	check := func(name string, want error, do func() error) {
		t.Helper()
		g.call(func() { wantErr(t, name, do(), want) })
	}
	for _, urls := range [][]string{nil, {"no-url"}, {"http://x"}, {"http://x:1/path"}, {"ftp://x:1"}, {"http://x:1", ":"}} {
		check("add with bad URLs", rpctypes.ErrGRPCMemberBadURLs, func() error { _, err := c.MemberAdd(bg, &pb.MemberAddRequest{PeerURLs: urls}); return err })
	}
	check("add with a URL in use", rpctypes.ErrGRPCPeerURLExist, func() error {
		_, err := c.MemberAdd(bg, &pb.MemberAddRequest{PeerURLs: []string{"http://c:2380"}})
		return err
	})
	check("remove unknown", rpctypes.ErrGRPCMemberNotFound, func() error { _, err := c.MemberRemove(bg, &pb.MemberRemoveRequest{ID: 9}); return err })
	check("promote unknown", rpctypes.ErrGRPCMemberNotFound, func() error { _, err := c.MemberPromote(bg, &pb.MemberPromoteRequest{ID: 9}); return err })
	check("promote a voter", rpctypes.ErrGRPCMemberNotLearner, func() error { _, err := c.MemberPromote(bg, &pb.MemberPromoteRequest{ID: 3}); return err })
	check("update unknown", rpctypes.ErrGRPCMemberNotFound, func() error { _, err := c.MemberUpdate(bg, &pb.MemberUpdateRequest{ID: 9}); return err })
	check("update to a URL in use", rpctypes.ErrGRPCPeerURLExist, func() error {
		_, err := c.MemberUpdate(bg, &pb.MemberUpdateRequest{ID: 1, PeerURLs: []string{"http://c:2380"}})
		return err
	})
	check("move the leader to nobody", rpctypes.ErrGRPCBadLeaderTransferee, func() error { _, err := m.MoveLeader(bg, &pb.MoveLeaderRequest{TargetID: 9}); return err })
	check("move the leader to a learner", rpctypes.ErrGRPCBadLeaderTransferee, func() error { _, err := m.MoveLeader(bg, &pb.MoveLeaderRequest{TargetID: 1}); return err })
	g.noop(func(v *order.View) { v.Leader = 1 })
	check("move the leader, asked elsewhere", rpctypes.ErrGRPCNotLeader, func() error { _, err := m.MoveLeader(bg, &pb.MoveLeaderRequest{TargetID: 3}); return err })
}
