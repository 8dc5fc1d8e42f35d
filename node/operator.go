package node

import (
	"context"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/storage/key"
)

// operator serves what braid tells its operators beyond etcd's API.
type operator struct {
	braidpb.UnimplementedOperatorServer
	c *Core
}

// Ranges lists the ranges as this node sees them.
func (o *operator) Ranges(_ context.Context, req *braidpb.RangesRequest) (*braidpb.RangesResponse, error) {
	c := o.c
	v := c.order.View()
	resp := &braidpb.RangesResponse{
		ClusterId: v.ClusterID, MemberId: uint64(c.cfg.Self), Position: uint64(v.Position), Revision: int64(v.Revision), OrderLeader: uint64(v.Leader),
	}
	if v.Routing == nil {
		return resp, nil
	}
	for _, d := range v.Routing.Ranges() {
		s, err := o.status(d, v.Revision, req.GetCountKeys())
		if err != nil {
			return nil, err
		}
		resp.Ranges = append(resp.Ranges, s)
	}
	return resp, nil
}

func (o *operator) status(d *braidpb.RangeDescriptor, rev ids.Revision, count bool) (*braidpb.RangeStatus, error) {
	c := o.c
	id := ids.RangeID(d.GetId())
	role, _ := c.store.Role(ids.GroupOf(id))
	s := &braidpb.RangeStatus{
		Id: d.GetId(), Start: d.GetStart(), End: d.GetEnd(), Generation: d.GetGeneration(), Version: d.GetVersion(),
		Leader: uint64(role.Leader), Term: uint64(role.Term),
	}
	for _, r := range d.GetReplicas() {
		s.Replicas = append(s.Replicas, r.GetNode())
	}
	l := c.local(id)
	if l == nil {
		return s, nil
	}
	mark := l.replica.FlushMark()
	s.Seq = uint64(mark.Seq)
	s.Local = &braidpb.LocalReplica{Frontier: uint64(l.replica.Frontier().Newest()), AppliedSeq: uint64(mark.Seq)}
	size, err := c.engines.Data.EstimateDiskUsage(key.AppendBound(nil, d.GetStart(), false), key.AppendBound(nil, d.GetEnd(), true))
	if err != nil {
		return nil, err
	}
	s.Local.SizeBytes = int64(size)
	if count {
		n, err := mvcc.Count(c.engines.Data, d.GetStart(), d.GetEnd(), rev)
		if err != nil {
			return nil, err
		}
		s.Local.Keys, s.Local.KeysCounted = n, true
	}
	return s, nil
}
