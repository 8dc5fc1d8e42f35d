package node

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
)

// desk is a submitter with what it sends and hands over.
type desk struct {
	*submitter
	leader ids.NodeID // as the local replica knows it
	here   []*ranges.Request
	sent   []sentLetter
}

type sentLetter struct {
	to   ids.NodeID
	kind uint32
	m    proto.Message
}

func newDesk(incarnation uint64) *desk {
	d := &desk{submitter: newSubmitter(1, incarnation)}
	d.role = func(ids.RangeID) (ids.NodeID, bool) { return d.leader, d.leader != 0 }
	d.local = func(_ ids.RangeID, r *ranges.Request) bool {
		d.here = append(d.here, r)
		return true
	}
	d.send = func(to ids.NodeID, kind uint32, m proto.Message) { d.sent = append(d.sent, sentLetter{to, kind, m}) }
	return d
}

// put submits a put and returns where its answers arrive.
func (d *desk) put(ticks int) *[]ranges.Code {
	var got []ranges.Code
	d.submit(7, &ranges.Request{
		TimeoutTicks: ticks, Put: &pb.PutRequest{Key: []byte("k")},
		Done: func(r *ranges.Response) { got = append(got, r.Code) },
	})
	return &got
}

func (d *desk) lastRequest(t *testing.T) *braidpb.RangeRequest {
	t.Helper()
	if len(d.sent) == 0 || d.sent[len(d.sent)-1].kind != kindRangeRequest {
		t.Fatalf("no request was sent: %v", d.sent)
	}
	return d.sent[len(d.sent)-1].m.(*braidpb.RangeRequest)
}

func wantCodes(t *testing.T, what string, got *[]ranges.Code, want ...ranges.Code) {
	t.Helper()
	if len(*got) != len(want) {
		t.Fatalf("%s: answers %v, want %v", what, *got, want)
	}
	for i := range want {
		if (*got)[i] != want[i] {
			t.Fatalf("%s: answers %v, want %v", what, *got, want)
		}
	}
}

// TestSubmitWaitsForALeader shows that a request without a leader waits, is handed over once there is one, and times out otherwise.
func TestSubmitWaitsForALeader(t *testing.T) {
	d := newDesk(1)
	got := d.put(5)
	d.tick()
	wantCodes(t, "no leader yet", got)
	d.leader = 1
	d.tick()
	if len(d.here) != 1 || d.here[0].TimeoutTicks != 3 {
		t.Fatalf("handed over: %+v, want one with 3 ticks left", d.here)
	}
	d.here[0].Done(&ranges.Response{Code: ranges.CodeOK})
	wantCodes(t, "answered", got, ranges.CodeOK)

	d = newDesk(1)
	got = d.put(2)
	for range 3 {
		d.tick()
	}
	wantCodes(t, "no leader at all", got, ranges.CodeTimeout)
}

// TestSubmitFollowsTheLeader shows that "not the leader" is the only answer after which a request is handed over again.
func TestSubmitFollowsTheLeader(t *testing.T) {
	d := newDesk(9)
	d.leader = 2
	got := d.put(50)
	m := d.lastRequest(t)
	if d.sent[0].to != 2 || m.GetRange() != 7 || m.GetIncarnation() != 9 {
		t.Fatalf("sent %+v to %v", m, d.sent[0].to)
	}
	answer := func(m *braidpb.RangeRequest, code ranges.Code, leader ids.NodeID) {
		if err := d.response(&braidpb.RangeResponse{Id: m.GetId(), Incarnation: 9, Code: code, Leader: uint64(leader)}); err != nil {
			t.Fatal(err)
		}
	}
	answer(m, ranges.CodeNotLeader, 3)
	again := d.lastRequest(t)
	if d.sent[1].to != 3 || again.GetId() == m.GetId() {
		t.Fatalf("sent %+v to %v, want a new request to 3", again, d.sent[1].to)
	}
	answer(again, ranges.CodeAmbiguous, 0)
	wantCodes(t, "ambiguous", got, ranges.CodeAmbiguous)
	answer(again, ranges.CodeOK, 0) // a late second answer means nothing
	wantCodes(t, "answered twice", got, ranges.CodeAmbiguous)
	if len(d.sent) != 2 {
		t.Fatalf("an ambiguous request was sent again: %v", d.sent)
	}
}

// TestSubmitForgetsEarlierProcesses shows that an answer to a request of an earlier process of this node is not taken for one of this, whose
// IDs are the same.
func TestSubmitForgetsEarlierProcesses(t *testing.T) {
	d := newDesk(2)
	d.leader = 2
	got := d.put(50)
	m := d.lastRequest(t)
	if err := d.response(&braidpb.RangeResponse{Id: m.GetId(), Incarnation: 1, Code: ranges.CodeOK, Revision: 5}); err != nil {
		t.Fatal(err)
	}
	wantCodes(t, "answer to an earlier process", got)
}

// TestSubmitLosesANode shows that what was handed to a node that went down, or that does not answer, is ambiguous (O6).
func TestSubmitLosesANode(t *testing.T) {
	d := newDesk(1)
	d.leader = 2
	down := d.put(50)
	d.peerDown(3)
	wantCodes(t, "another node is down", down)
	d.peerDown(2)
	wantCodes(t, "its node is down", down, ranges.CodeAmbiguous)

	silent := d.put(3)
	for range 4 {
		d.tick()
	}
	wantCodes(t, "its node may still answer", silent)
	d.tick()
	wantCodes(t, "its node is silent", silent, ranges.CodeAmbiguous)
}

// TestSubmitDoesNotRerouteWhatNamesALock shows that requests bound to one leader's lock are not handed to another.
func TestSubmitDoesNotRerouteWhatNamesALock(t *testing.T) {
	d := newDesk(1)
	d.leader = 2
	var got []ranges.Code
	d.submit(7, &ranges.Request{Prepare: &braidpb.PrepareRequest{}, Done: func(r *ranges.Response) { got = append(got, r.Code) }})
	if err := d.response(&braidpb.RangeResponse{Id: d.lastRequest(t).GetId(), Incarnation: 1, Code: ranges.CodeNotLeader, Leader: 3}); err != nil {
		t.Fatal(err)
	}
	wantCodes(t, "prepare", &got, ranges.CodeNotLeader)
}

// TestServeAnswersTheSender shows a request of another node going to the local replica and its answer going back, every kind through
// the codec.
func TestServeAnswersTheSender(t *testing.T) {
	kinds := []*ranges.Request{
		{Put: &pb.PutRequest{Key: []byte("k"), PrevKv: true}},
		{Delete: &pb.DeleteRangeRequest{Key: []byte("k")}},
		{Txn: &pb.TxnRequest{}},
		{Lock: &braidpb.LockRequest{}}, {Prepare: &braidpb.PrepareRequest{}}, {Unlock: &braidpb.UnlockRequest{}},
	}
	for _, req := range kinds {
		d := newDesk(1)
		m, err := encodeRequest(req)
		if err != nil {
			t.Fatal(err)
		}
		m.Id, m.Incarnation, m.Range = 4, 8, 7
		if err := d.serve(5, m); err != nil {
			t.Fatal(err)
		}
		h := d.here[0]
		if (h.Put != nil) != (req.Put != nil) || (h.Delete != nil) != (req.Delete != nil) || (h.Txn != nil) != (req.Txn != nil) ||
			(h.Lock != nil) != (req.Lock != nil) || (h.Prepare != nil) != (req.Prepare != nil) || (h.Unlock != nil) != (req.Unlock != nil) {
			t.Fatalf("%+v arrived as %+v", req, h)
		}
		h.Done(&ranges.Response{Code: ranges.CodeOK, Revision: 3, Put: &pb.PutResponse{}})
		out := d.sent[0].m.(*braidpb.RangeResponse)
		if d.sent[0].to != 5 || out.GetId() != 4 || out.GetIncarnation() != 8 || out.GetRevision() != 3 {
			t.Fatalf("answered %+v to %v", out, d.sent[0].to)
		}
	}
	if err := newDesk(1).serve(5, &braidpb.RangeRequest{}); err == nil {
		t.Fatal("a request without a kind was taken")
	}
}
