package router

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	"github.com/braidkv/braid/order"
	ranges "github.com/braidkv/braid/range"
)

// served is a rig behind a real gRPC server. One request at a time: the fake node is not for several.
type served struct {
	*rig
	conn *grpc.ClientConn
}

func newServed(t testing.TB, options ...grpc.ServerOption) *served {
	t.Helper()
	f := newFake(t, &world{now: true}, "m")
	g := &served{rig: &rig{fake: f, s: New(f, Config{Version: "3.7.3"})}}
	server := grpc.NewServer(options...)
	g.s.Register(server)
	lis := bufconn.Listen(1 << 20)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	g.conn = conn
	return g
}

// TestOverTheWire: every kind of answer arrives whole.
func TestOverTheWire(t *testing.T) {
	seen := map[string]int{}
	g := newServed(t, grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		seen[info.FullMethod]++
		return handle(ctx, req)
	}))
	kv := pb.NewKVClient(g.conn)
	for i := range 30 {
		if _, err := kv.Put(t.Context(), putReq(fmt.Sprint(string(rune('a'+i%26)), i), strings.Repeat("v", i*3000))); err != nil {
			t.Fatal(err)
		}
	}
	got, err := kv.Range(t.Context(), all())
	if err != nil || len(got.Kvs) != 30 || got.Count != 30 || got.Header.Revision != 31 || got.Header.MemberId != 3 {
		t.Fatalf("got %d keys, count %d, header %v, %v", len(got.Kvs), got.Count, got.Header, err)
	}
	// As an object and as a stream it is the same.
	if plain, err := g.s.Range(t.Context(), all()); err != nil || !proto.Equal(plain, got) {
		t.Errorf("the encoded answer differs (%v)", err)
	}
	stream, err := kv.RangeStream(t.Context(), all())
	if err != nil {
		t.Fatal(err)
	}
	whole := &pb.RangeResponse{}
	for {
		c, err := stream.Recv()
		if err != nil {
			break
		}
		proto.Merge(whole, c.RangeResponse)
	}
	if !proto.Equal(whole, got) {
		t.Error("the streamed answer differs")
	}
	if _, err := kv.Range(t.Context(), &pb.RangeRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v", err)
	}
	if _, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: 99}); status.Code(err) != codes.OutOfRange {
		t.Errorf("got %v", err)
	}
	if seen[pb.KV_Range_FullMethodName] != 3 || seen[pb.KV_Put_FullMethodName] != 30 {
		t.Errorf("the port's interceptor saw %v", seen)
	}
}

// TestAdmission: what etcd's interceptors refuse.
func TestAdmission(t *testing.T) {
	g := newServed(t)
	kv, maint, cluster := pb.NewKVClient(g.conn), pb.NewMaintenanceClient(g.conn), pb.NewClusterClient(g.conn)
	g.put("a", "1")
	leader := metadata.AppendToOutgoingContext(t.Context(), rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
	get := func(ctx context.Context) error {
		_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), Serializable: true})
		return err
	}
	list := func(ctx context.Context) error {
		s, err := kv.RangeStream(ctx, all())
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	wantErr(t, "with a leader", get(leader), nil)
	wantErr(t, "stream with a leader", list(leader), nil)
	g.noop(func(v *order.View) { v.Leader = 0 })
	wantErr(t, "no leader", get(leader), rpctypes.ErrGRPCNoLeader)
	wantErr(t, "no leader, stream", list(leader), rpctypes.ErrGRPCNoLeader)
	wantErr(t, "no leader wanted", get(t.Context()), nil)
	// gRPC's own client does not send such a version.
	bad := metadata.NewIncomingContext(t.Context(), metadata.Pairs(rpctypes.MetadataClientAPIVersionKey, "\xff"))
	wantErr(t, "bad version", g.s.admit(bad, key("a"), false), rpctypes.ErrGRPCInvalidClientAPIVersion)

	learner := *g.view
	learner.Position++
	learner.Members = append(learner.Members[:1:1], proto.CloneOf(learner.Members[1]))
	learner.Members[1].IsLearner = true
	g.publish(&learner)
	wantErr(t, "learner, serializable read", get(t.Context()), nil)
	_, err := maint.Status(t.Context(), &pb.StatusRequest{})
	wantErr(t, "learner, status", err, nil)
	_, err = kv.Range(t.Context(), key("a"))
	wantErr(t, "learner, linearizable read", err, rpctypes.ErrGRPCNotSupportedForLearner)
	_, err = kv.Put(t.Context(), putReq("a", ""))
	wantErr(t, "learner, put", err, rpctypes.ErrGRPCNotSupportedForLearner)
	_, err = cluster.MemberList(t.Context(), &pb.MemberListRequest{})
	wantErr(t, "learner, members", err, rpctypes.ErrGRPCNotSupportedForLearner)
	wantErr(t, "learner, stream", list(t.Context()), rpctypes.ErrGRPCNotSupportedForLearner)
}

// TestPanics: a request that panics is an error of its own; a broken invariant is not caught.
func TestPanics(t *testing.T) {
	g := newServed(t)
	g.submit = func(ids.RangeID, *ranges.Request) bool { panic("oh no") }
	_, err := pb.NewKVClient(g.conn).Put(t.Context(), putReq("a", "1"))
	wantErr(t, "put", err, status.Error(codes.Internal, "braid: internal error"))

	defer func() {
		if r := recover(); r == nil || !strings.HasPrefix(fmt.Sprint(r), "invariant O4") {
			t.Errorf("recovered %v", r)
		}
	}()
	func() (err error) {
		defer g.s.recovered(&err)
		invariant.Fail("O4", "revision %d", 1)
		return nil
	}()
}

// TestNotOffered: what is not there yet says so.
func TestNotOffered(t *testing.T) {
	g := newServed(t)
	g.noop(func(v *order.View) { v.Leader = 3 })
	maint, cluster := pb.NewMaintenanceClient(g.conn), pb.NewClusterClient(g.conn)
	for name, call := range map[string]func() error{
		"snapshot": func() error {
			s, err := maint.Snapshot(t.Context(), &pb.SnapshotRequest{})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"downgrade":   func() error { _, err := maint.Downgrade(t.Context(), &pb.DowngradeRequest{}); return err },
		"move leader": func() error { _, err := maint.MoveLeader(t.Context(), &pb.MoveLeaderRequest{TargetID: 3}); return err },
		"alarm": func() error {
			_, err := maint.Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
			return err
		},
		"add": func() error {
			_, err := cluster.MemberAdd(t.Context(), &pb.MemberAddRequest{PeerURLs: []string{"http://d:2380"}})
			return err
		},
		"remove": func() error { _, err := cluster.MemberRemove(t.Context(), &pb.MemberRemoveRequest{ID: 1}); return err },
		"update": func() error {
			_, err := cluster.MemberUpdate(t.Context(), &pb.MemberUpdateRequest{ID: 1, PeerURLs: []string{"http://a:1"}})
			return err
		},
		"promote": func() error {
			_, err := cluster.MemberPromote(t.Context(), &pb.MemberPromoteRequest{ID: 1})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "not offered by braid yet") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
