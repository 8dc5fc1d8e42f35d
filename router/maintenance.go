package router

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
)

// storageVersion is what Status says of the storage format: the one of etcd's whose data braid can hold.
const storageVersion = "3.7.0"

// Maintenance serves etcd's Maintenance service: so far Status, Hash, HashKV, Defragment and the list of alarms, of which there are none.
type Maintenance struct {
	pb.UnsafeMaintenanceServer
	s *Server
}

// Maintenance is the server's Maintenance service.
func (s *Server) Maintenance() *Maintenance { return &Maintenance{s: s} }

// Status serves Maintenance.Status: what this node knows of itself, without asking anybody.
func (m *Maintenance) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	s := m.s
	v := s.b.View()
	committed, applied := s.b.RaftIndex()
	total, inUse := s.b.DBSize()
	resp := &pb.StatusResponse{
		Header: s.header(v.Revision), Version: s.cfg.Version, StorageVersion: storageVersion,
		DbSize: total, DbSizeInUse: min(inUse, total), DbSizeQuota: s.cfg.QuotaBytes,
		Leader: uint64(v.Leader), RaftTerm: uint64(v.Term), RaftIndex: uint64(committed), RaftAppliedIndex: uint64(applied),
		IsLearner: s.isLearner(v), DowngradeInfo: &pb.DowngradeInfo{},
	}
	if v.Leader == 0 {
		resp.Errors = append(resp.Errors, rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader))
	}
	return resp, nil
}

// isLearner tells whether this node is a learner.
func (s *Server) isLearner(v *order.View) bool {
	for _, x := range v.Members {
		if ids.NodeID(x.GetId()) == s.b.NodeID() {
			return x.GetIsLearner()
		}
	}
	return false
}

// Alarm serves Maintenance.Alarm: none is raised, so there is none to list or to disarm.
func (m *Maintenance) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.GetAction() == pb.AlarmRequest_ACTIVATE {
		return nil, readError(fmt.Errorf("raising alarms %w", errNotOffered))
	}
	rev, err := m.s.begin(ctx).linearizable(nil)
	if err != nil {
		return nil, readError(err)
	}
	return &pb.AlarmResponse{Header: m.s.header(rev)}, nil
}

// Hash serves Maintenance.Hash: HashKV at the newest revision.
func (m *Maintenance) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	h, err := m.s.begin(ctx).hash(0)
	if err != nil {
		return nil, readError(err)
	}
	return &pb.HashResponse{Header: h.Header, Hash: h.Hash}, nil
}

// HashKV serves Maintenance.HashKV: a checksum of what is stored at a revision. Members that have compacted at the same revision have
// the same one.
func (m *Maintenance) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	h, err := m.s.begin(ctx).hash(ids.Revision(r.GetRevision()))
	return h, readError(err)
}

// hash makes a checksum at a revision; zero is the newest this node has.
func (c *call) hash(want ids.Revision) (*pb.HashKVResponse, error) {
	s, everything := c.s, []span{{}}
	for {
		rev, err := c.serializable(everything)
		if err != nil {
			return nil, err
		}
		at := rev
		if want > 0 {
			at = want
		}
		before := s.b.View().CompactRevision
		switch {
		case at > rev:
			return nil, rpctypes.ErrGRPCFutureRev
		case want > 0 && at < before:
			return nil, rpctypes.ErrGRPCCompacted
		}
		sum, err := mvcc.Hash(s.b.Reader(), nil, nil, before, at)
		if err != nil {
			return nil, err
		}
		after, err := c.compacted(everything)
		if err != nil {
			return nil, err
		}
		if before == after && at >= after {
			shown := int64(after)
			if after == 0 {
				shown = -1 // etcd's way to say: never compacted
			}
			return &pb.HashKVResponse{Header: s.header(rev), Hash: sum, CompactRevision: shown, HashRevision: int64(at)}, nil
		}
		if err := c.over(); err != nil {
			return nil, err
		}
	}
}

// Defragment serves Maintenance.Defragment: the engine is compacted, without stopping anything. As in etcd, the answer has no header.
func (m *Maintenance) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	if err := m.s.b.Defragment(ctx); err != nil {
		return nil, readError(err)
	}
	return &pb.DefragmentResponse{}, nil
}

// MoveLeader serves Maintenance.MoveLeader as far as it must fail.
func (m *Maintenance) MoveLeader(_ context.Context, r *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	v := m.s.b.View()
	if v.Leader != m.s.b.NodeID() {
		return nil, rpctypes.ErrGRPCNotLeader
	}
	if x := memberOf(v, r.GetTargetID()); x == nil || x.GetIsLearner() {
		return nil, rpctypes.ErrGRPCBadLeaderTransferee
	}
	return nil, readError(fmt.Errorf("moving the leader %w", errNotOffered))
}

// Snapshot says that there are no snapshots for clients yet.
func (m *Maintenance) Snapshot(*pb.SnapshotRequest, pb.Maintenance_SnapshotServer) error {
	return readError(fmt.Errorf("a snapshot of the store %w", errNotOffered))
}

// Downgrade says that there is no other version to go to yet.
func (m *Maintenance) Downgrade(context.Context, *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	return nil, readError(fmt.Errorf("a downgrade %w", errNotOffered))
}
