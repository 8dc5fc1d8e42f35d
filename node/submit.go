package node

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
)

// submitter brings requests to the leaders of ranges, on this node or another, and answers back.
//
// A request is handed over at most once at a time, and again only after an answer which says that it is certainly not done
// (not the leader). What is lost on the way to another node, or whose node went down, is ambiguous (O6). Letters of requests
// are not repeated: the transport delivers each at most once.
type submitter struct {
	self        ids.NodeID
	incarnation uint64
	role        func(ids.RangeID) (leader ids.NodeID, known bool)
	local       func(ids.RangeID, *ranges.Request) bool
	send        func(to ids.NodeID, kind uint32, m proto.Message)

	mu      sync.Mutex
	now     uint64 // ticks
	next    uint64
	remote  map[uint64]*submission // by request ID: handed to another node
	waiting []*submission          // no leader known; looked at again every tick
}

// submission is a request on its way.
type submission struct {
	id       uint64
	r        ids.RangeID
	req      *ranges.Request
	deadline uint64 // tick
	to       ids.NodeID
	done     func(*ranges.Response)
}

// defaultRequestTicks is the time-out of a request that names none.
const defaultRequestTicks = 70

func newSubmitter(self ids.NodeID, incarnation uint64) *submitter {
	return &submitter{self: self, incarnation: incarnation, remote: map[uint64]*submission{}}
}

// submit hands a request to the leader of a range. Done is called exactly once, on any goroutine.
func (s *submitter) submit(r ids.RangeID, req *ranges.Request) {
	ticks := req.TimeoutTicks
	if ticks <= 0 {
		ticks = defaultRequestTicks
	}
	sub := &submission{r: r, req: req, done: req.Done}
	s.mu.Lock()
	sub.deadline = s.now + uint64(ticks)
	s.mu.Unlock()
	s.route(sub, 0)
}

// route hands a submission to whoever is thought to lead: the hint, or whom the local replica knows.
func (s *submitter) route(sub *submission, hint ids.NodeID) {
	leader := hint
	if leader == 0 {
		leader, _ = s.role(sub.r)
	}
	switch leader {
	case 0:
		s.park(sub)
	case s.self:
		req := *sub.req
		req.TimeoutTicks = s.left(sub)
		req.Done = func(resp *ranges.Response) { s.answered(sub, resp) }
		if !s.local(sub.r, &req) {
			s.park(sub)
		}
	default:
		s.forward(sub, leader)
	}
}

// left is how many ticks a submission still has, at least one.
func (s *submitter) left(sub *submission) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.deadline <= s.now {
		return 1
	}
	return int(sub.deadline - s.now)
}

// park keeps a submission until the next tick.
func (s *submitter) park(sub *submission) {
	s.mu.Lock()
	s.waiting = append(s.waiting, sub)
	s.mu.Unlock()
}

func (s *submitter) forward(sub *submission, to ids.NodeID) {
	m, err := encodeRequest(sub.req)
	if err != nil {
		sub.done(&ranges.Response{Code: ranges.CodeTooLarge})
		return
	}
	m.Range, m.TimeoutTicks = uint64(sub.r), uint32(s.left(sub))
	s.mu.Lock()
	s.next++
	sub.id, sub.to = s.next, to
	s.remote[sub.id] = sub
	m.Id, m.Incarnation = sub.id, s.incarnation
	s.mu.Unlock()
	s.send(to, kindRangeRequest, m)
}

// answered takes the answer of a replica, here or elsewhere.
func (s *submitter) answered(sub *submission, resp *ranges.Response) {
	if resp.Code != ranges.CodeNotLeader || sub.req.Prepare != nil || sub.req.Unlock != nil {
		// A lock is bound to the leader that gave it, so what refers to one is not routed again.
		sub.done(resp)
		return
	}
	s.mu.Lock()
	late := sub.deadline <= s.now
	s.mu.Unlock()
	switch {
	case late:
		sub.done(&ranges.Response{Code: ranges.CodeTimeout})
	case resp.Leader != 0 && resp.Leader != sub.to && resp.Leader != s.self:
		s.route(sub, resp.Leader)
	default:
		s.park(sub)
	}
}

// response takes a letter with an answer.
func (s *submitter) response(m *braidpb.RangeResponse) error {
	if m.GetIncarnation() != s.incarnation {
		return nil // for an earlier process of this node, whose IDs were the same
	}
	s.mu.Lock()
	sub := s.remote[m.GetId()]
	delete(s.remote, m.GetId())
	s.mu.Unlock()
	if sub == nil {
		return nil // given up, or of an earlier process
	}
	resp, err := decodeResponse(m)
	if err != nil {
		sub.done(&ranges.Response{Code: ranges.CodeAmbiguous})
		return err
	}
	s.answered(sub, resp)
	return nil
}

// peerDown gives up what was handed to a node that cannot be reached any more.
func (s *submitter) peerDown(node ids.NodeID) {
	s.giveUp(func(sub *submission) bool { return sub.to == node })
}

// tick lets time pass: what is overdue is answered, what had no leader is routed again.
func (s *submitter) tick() {
	s.mu.Lock()
	s.now++
	now := s.now
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, sub := range waiting {
		if sub.deadline <= now {
			sub.done(&ranges.Response{Code: ranges.CodeTimeout})
		} else {
			s.route(sub, 0)
		}
	}
	// The other node answers by itself; the extra ticks are for its answer's way.
	s.giveUp(func(sub *submission) bool { return sub.deadline+2 <= now })
}

// giveUp answers remote submissions as ambiguous, in the order in which they were made.
func (s *submitter) giveUp(which func(*submission) bool) {
	var gone []*submission
	s.mu.Lock()
	for id, sub := range s.remote {
		if which(sub) {
			gone = append(gone, sub)
			delete(s.remote, id)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(gone, func(a, b *submission) int { return cmp.Compare(a.id, b.id) })
	for _, sub := range gone {
		sub.done(&ranges.Response{Code: ranges.CodeAmbiguous})
	}
}

// close answers everything that is still open.
func (s *submitter) close() {
	s.giveUp(func(*submission) bool { return true })
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, sub := range waiting {
		sub.done(&ranges.Response{Code: ranges.CodeTimeout})
	}
}

// serve hands a request of another node to the local replica and sends the answer back.
func (s *submitter) serve(from ids.NodeID, m *braidpb.RangeRequest) error {
	req, err := decodeRequest(m)
	if err != nil {
		return fmt.Errorf("request %d of node %v: %w", m.GetId(), from, err)
	}
	id := m.GetId()
	req.Done = func(resp *ranges.Response) {
		out, err := encodeResponse(resp)
		if err != nil {
			out = &braidpb.RangeResponse{Code: ranges.CodeAmbiguous}
		}
		out.Id, out.Incarnation = id, m.GetIncarnation()
		s.send(from, kindRangeResponse, out)
	}
	if !s.local(ids.RangeID(m.GetRange()), req) {
		req.Done(&ranges.Response{Code: ranges.CodeNotLeader})
	}
	return nil
}

func encodeRequest(req *ranges.Request) (*braidpb.RangeRequest, error) {
	m := &braidpb.RangeRequest{Generation: uint64(req.Generation), AuthRevision: uint64(req.AuthRevision)}
	var err error
	switch {
	case req.Put != nil:
		k := &braidpb.RangeRequest_Put{}
		k.Put, err = proto.Marshal(req.Put)
		m.Kind = k
	case req.Delete != nil:
		k := &braidpb.RangeRequest_Delete{}
		k.Delete, err = proto.Marshal(req.Delete)
		m.Kind = k
	case req.Txn != nil:
		k := &braidpb.RangeRequest_Txn{}
		k.Txn, err = proto.Marshal(req.Txn)
		m.Kind = k
	case req.Lock != nil:
		m.Kind = &braidpb.RangeRequest_Lock{Lock: req.Lock}
	case req.Prepare != nil:
		m.Kind = &braidpb.RangeRequest_Prepare{Prepare: req.Prepare}
	case req.Unlock != nil:
		m.Kind = &braidpb.RangeRequest_Unlock{Unlock: req.Unlock}
	}
	return m, err
}

func decodeRequest(m *braidpb.RangeRequest) (*ranges.Request, error) {
	req := &ranges.Request{
		Generation: ids.Generation(m.GetGeneration()), AuthRevision: ids.AuthRevision(m.GetAuthRevision()),
		TimeoutTicks: int(m.GetTimeoutTicks()),
	}
	switch k := m.GetKind().(type) {
	case *braidpb.RangeRequest_Put:
		req.Put = &pb.PutRequest{}
		return req, proto.Unmarshal(k.Put, req.Put)
	case *braidpb.RangeRequest_Delete:
		req.Delete = &pb.DeleteRangeRequest{}
		return req, proto.Unmarshal(k.Delete, req.Delete)
	case *braidpb.RangeRequest_Txn:
		req.Txn = &pb.TxnRequest{}
		return req, proto.Unmarshal(k.Txn, req.Txn)
	case *braidpb.RangeRequest_Lock:
		req.Lock = k.Lock
	case *braidpb.RangeRequest_Prepare:
		req.Prepare = k.Prepare
	case *braidpb.RangeRequest_Unlock:
		req.Unlock = k.Unlock
	default:
		return nil, fmt.Errorf("unknown kind %T", m.GetKind())
	}
	return req, nil
}

func encodeResponse(r *ranges.Response) (*braidpb.RangeResponse, error) {
	m := &braidpb.RangeResponse{Code: r.Code, Leader: uint64(r.Leader), Revision: int64(r.Revision)}
	var err error
	switch {
	case r.Put != nil:
		k := &braidpb.RangeResponse_Put{}
		k.Put, err = proto.Marshal(r.Put)
		m.Kind = k
	case r.Delete != nil:
		k := &braidpb.RangeResponse_Delete{}
		k.Delete, err = proto.Marshal(r.Delete)
		m.Kind = k
	case r.Txn != nil:
		k := &braidpb.RangeResponse_Txn{}
		k.Txn, err = proto.Marshal(r.Txn)
		m.Kind = k
	case r.Lock != nil:
		m.Kind = &braidpb.RangeResponse_Lock{Lock: r.Lock}
	}
	return m, err
}

func decodeResponse(m *braidpb.RangeResponse) (*ranges.Response, error) {
	r := &ranges.Response{Code: m.GetCode(), Leader: ids.NodeID(m.GetLeader()), Revision: ids.Revision(m.GetRevision())}
	switch k := m.GetKind().(type) {
	case *braidpb.RangeResponse_Put:
		r.Put = &pb.PutResponse{}
		return r, proto.Unmarshal(k.Put, r.Put)
	case *braidpb.RangeResponse_Delete:
		r.Delete = &pb.DeleteRangeResponse{}
		return r, proto.Unmarshal(k.Delete, r.Delete)
	case *braidpb.RangeResponse_Txn:
		r.Txn = &pb.TxnResponse{}
		return r, proto.Unmarshal(k.Txn, r.Txn)
	case *braidpb.RangeResponse_Lock:
		r.Lock = k.Lock
	}
	return r, nil
}
