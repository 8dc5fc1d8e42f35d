package router

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
)

// Cluster serves etcd's Cluster service: so far the list of members. Changes are refused, where they must fail anyway with etcd's
// reason.
type Cluster struct {
	pb.UnsafeClusterServer
	s *Server
}

// Cluster is the server's Cluster service.
func (s *Server) Cluster() *Cluster { return &Cluster{s: s} }

// MemberList serves Cluster.MemberList. As in etcd, the headers of this service have no revision.
func (c *Cluster) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	if r.GetLinearizable() {
		if _, err := c.s.begin(ctx).linearizable(nil); err != nil {
			return nil, readError(err)
		}
	}
	v := c.s.b.View()
	resp := &pb.MemberListResponse{Header: c.s.header(0), Members: make([]*pb.Member, len(v.Members))}
	for i, m := range v.Members {
		resp.Members[i] = &pb.Member{
			ID: m.GetId(), Name: m.GetName(), PeerURLs: m.GetPeerUrls(), ClientURLs: m.GetClientUrls(), IsLearner: m.GetIsLearner(),
		}
	}
	return resp, nil
}

// current is the order state as of now.
func (c *Cluster) current(ctx context.Context) (*order.View, error) {
	if _, err := c.s.begin(ctx).linearizable(nil); err != nil {
		return nil, readError(err)
	}
	return c.s.b.View(), nil
}

func memberOf(v *order.View, id uint64) *braidpb.Member {
	i := slices.IndexFunc(v.Members, func(m *braidpb.Member) bool { return m.GetId() == id })
	if i < 0 {
		return nil
	}
	return v.Members[i]
}

// MemberAdd serves Cluster.MemberAdd as far as it must fail.
func (c *Cluster) MemberAdd(ctx context.Context, r *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	if !peerURLs(r.GetPeerURLs()) {
		return nil, rpctypes.ErrGRPCMemberBadURLs
	}
	v, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	if taken(v, r.GetPeerURLs(), 0) {
		return nil, rpctypes.ErrGRPCPeerURLExist
	}
	return nil, notChanged()
}

// MemberRemove serves Cluster.MemberRemove as far as it must fail.
func (c *Cluster) MemberRemove(ctx context.Context, r *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	v, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	if memberOf(v, r.GetID()) == nil {
		return nil, rpctypes.ErrGRPCMemberNotFound
	}
	return nil, notChanged()
}

// MemberUpdate serves Cluster.MemberUpdate as far as it must fail.
func (c *Cluster) MemberUpdate(ctx context.Context, r *pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	v, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case memberOf(v, r.GetID()) == nil:
		return nil, rpctypes.ErrGRPCMemberNotFound
	case taken(v, r.GetPeerURLs(), r.GetID()):
		return nil, rpctypes.ErrGRPCPeerURLExist
	}
	return nil, notChanged()
}

// MemberPromote serves Cluster.MemberPromote as far as it must fail.
func (c *Cluster) MemberPromote(ctx context.Context, r *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	v, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	switch m := memberOf(v, r.GetID()); {
	case m == nil:
		return nil, rpctypes.ErrGRPCMemberNotFound
	case !m.GetIsLearner():
		return nil, rpctypes.ErrGRPCMemberNotLearner
	}
	return nil, notChanged()
}

func notChanged() error { return readError(fmt.Errorf("changing the members %w", errNotOffered)) }

// taken tells whether a member other than one has one of the URLs.
func taken(v *order.View, urls []string, except uint64) bool {
	for _, m := range v.Members {
		if m.GetId() == except {
			continue
		}
		for _, u := range m.GetPeerUrls() {
			if slices.Contains(urls, u) {
				return true
			}
		}
	}
	return false
}

// peerURLs tells whether etcd takes URLs for a peer's: at least one, each with a scheme it knows, host and port, and no path.
func peerURLs(urls []string) bool {
	for _, s := range urls {
		u, err := url.Parse(s)
		if err != nil || u.Path != "" {
			return false
		}
		switch u.Scheme {
		case "http", "https":
			if _, _, err := net.SplitHostPort(u.Host); err != nil {
				return false
			}
		case "unix", "unixs":
		default:
			return false
		}
	}
	return len(urls) > 0
}
