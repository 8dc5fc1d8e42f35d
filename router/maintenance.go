package router

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	braidpb "github.com/braidkv/braid/proto"
)

// Cluster serves etcd's Cluster service: so far, the list of members.
type Cluster struct {
	pb.UnimplementedClusterServer
	s *Server
}

// Maintenance serves etcd's Maintenance service: so far, Status, Hash, HashKV, Defragment and the list of alarms, of which there are none.
type Maintenance struct {
	pb.UnimplementedMaintenanceServer
	s *Server
}

// Cluster is the server's Cluster service.
func (s *Server) Cluster() *Cluster { return &Cluster{s: s} }

// Maintenance is the server's Maintenance service.
func (s *Server) Maintenance() *Maintenance { return &Maintenance{s: s} }

// MemberList serves Cluster.MemberList.
func (c *Cluster) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	s := c.s
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if r.GetLinearizable() {
		if _, err := s.linearizable(ctx, nil); err != nil {
			return nil, toClient(err)
		}
	}
	v := s.b.View()
	resp := &pb.MemberListResponse{Header: s.header(v.Revision)}
	for _, m := range v.Members {
		resp.Members = append(resp.Members, member(m))
	}
	return resp, nil
}

func member(m *braidpb.Member) *pb.Member {
	return &pb.Member{ID: m.GetId(), Name: m.GetName(), PeerURLs: m.GetPeerUrls(), ClientURLs: m.GetClientUrls(), IsLearner: m.GetIsLearner()}
}

// Status serves Maintenance.Status: what this node knows of itself, without asking anybody.
func (m *Maintenance) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	s := m.s
	v := s.b.View()
	last, applied := s.b.RaftIndex()
	total, inUse := s.b.DBSize()
	resp := &pb.StatusResponse{
		Header: s.header(v.Revision), Version: s.cfg.Version, DbSize: total, DbSizeInUse: inUse,
		Leader: uint64(v.Leader), RaftIndex: uint64(last), RaftTerm: uint64(v.Term), RaftAppliedIndex: uint64(applied),
		StorageVersion: "3.7.0",
	}
	if v.Leader == 0 {
		resp.Errors = append(resp.Errors, "etcdserver: no leader")
	}
	for _, x := range v.Members {
		if ids.NodeID(x.GetId()) == s.b.NodeID() {
			resp.IsLearner = x.GetIsLearner()
		}
	}
	return resp, nil
}

// Alarm serves Maintenance.Alarm: no alarm is raised by this version.
func (m *Maintenance) Alarm(_ context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.GetAction() == pb.AlarmRequest_GET || r.GetAction() == pb.AlarmRequest_DEACTIVATE {
		return &pb.AlarmResponse{Header: m.s.header(m.s.b.View().Revision)}, nil
	}
	return m.UnimplementedMaintenanceServer.Alarm(context.Background(), r)
}

// Hash serves Maintenance.Hash.
func (m *Maintenance) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	h, err := m.hash(ctx, 0)
	if err != nil {
		return nil, toClient(err)
	}
	return &pb.HashResponse{Header: h.Header, Hash: h.Hash}, nil
}

// HashKV serves Maintenance.HashKV: a checksum of what is stored at a revision, equal on all members.
func (m *Maintenance) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	h, err := m.hash(ctx, ids.Revision(r.GetRevision()))
	return h, toClient(err)
}

func (m *Maintenance) hash(ctx context.Context, rev ids.Revision) (*pb.HashKVResponse, error) {
	s := m.s
	ctx, cancel := s.bound(ctx)
	defer cancel()
	everything := []span{{}}
	for {
		now, err := s.serializable(ctx, everything)
		if err != nil {
			return nil, err
		}
		at := rev
		if at <= 0 {
			at = now
		}
		compacted := s.b.View().CompactRevision
		if err := checkRevision(at, now, compacted); err != nil {
			return nil, err
		}
		sum, err := mvcc.Hash(s.b.Reader(), nil, nil, compacted, at)
		if err != nil {
			return nil, err
		}
		if s.b.View().CompactRevision != compacted {
			continue
		}
		c := int64(compacted)
		if c == 0 {
			c = -1 // etcd's way to say: never compacted
		}
		return &pb.HashKVResponse{Header: s.header(now), Hash: sum, CompactRevision: c, HashRevision: int64(at)}, nil
	}
}

// Defragment serves Maintenance.Defragment: the engine is compacted, without stopping anything.
func (m *Maintenance) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	if err := m.s.b.Defragment(ctx); err != nil {
		return nil, toClient(err)
	}
	return &pb.DefragmentResponse{Header: m.s.header(m.s.b.View().Revision)}, nil
}
