package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/cryptotest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestRangesDoNotShow runs the same requests, one after the other, against a cluster of one range and against clusters of several nodes whose
// ranges cut through the keys: every answer must be the same, revisions, counts and errors included.
func TestRangesDoNotShow(t *testing.T) {
	for seed := *first; seed < *first+uint64(max(1, *seeds/2)); seed++ {
		cryptotest.SetGlobalRandom(t, seed)
		script := drawScript(seed)
		want, err := play(Options{Seed: seed, Nodes: 1}, script)
		if err != nil {
			t.Fatalf("seed %d, one range: %v", seed, err)
		}
		shape := Options{Seed: seed, Nodes: 3, SplitKeys: splits}
		if seed%2 == 1 {
			shape.SplitKeys = []string{"a2", "b1\x00", "c", "c2", "f1"}
		}
		got, err := play(shape, script)
		if err != nil {
			t.Fatalf("seed %d, %d ranges: %v", seed, len(shape.SplitKeys)+1, err)
		}
		for i := range want {
			if got[i] != want[i] {
				for j := range i {
					t.Logf("%d: %v\n  -> %s", j, script[j], want[j])
				}
				t.Fatalf("seed %d, request %d: %v\n with one range: %s\n with %d ranges: %s", seed, i, script[i], want[i], len(shape.SplitKeys)+1, got[i])
			}
		}
	}
}

// play sends the requests one after the other to nodes drawn at random and returns the answers as text, without what names a node or a term.
func play(o Options, script []any) (answers []string, err error) {
	c := NewCluster(o)
	defer func() {
		for _, m := range c.members {
			if m.core != nil {
				m.core.Abandon()
			}
		}
	}()
	c.Start()
	c.World.Go(func(p *Proc) {
		for _, req := range script {
			// A request may meet a cluster that is still electing its leaders; once it works, nothing disturbs it.
			resp, err := sendTo(c.nodeAt(), proto.Clone(req.(proto.Message)))
			answers = append(answers, canonical(resp, err))
		}
	})
	done := func() bool { return c.err != nil || len(answers) == len(script) }
	if err := c.World.RunUntil(600*Second, 20*maxSteps, done); err != nil {
		return nil, err
	}
	if c.err == nil && len(answers) < len(script) {
		return nil, fmt.Errorf("request %d is not answered: %v", len(answers), script[len(answers)])
	}
	return answers, c.err
}

func canonical(resp any, err error) string {
	if err != nil {
		s, _ := status.FromError(err)
		return fmt.Sprintf("%v: %s", s.Code(), s.Message())
	}
	m := resp.(proto.Message)
	bare(m.ProtoReflect())
	return string(proto.MessageName(m)) + " " + oneSpace(prototext.Format(m))
}

// oneSpace undoes what prototext does so that nobody relies on its output.
func oneSpace(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if s[i] == ' ' && i > 0 && s[i-1] == ' ' {
			continue
		}
		out = append(out, s[i])
	}
	return string(out)
}

// bare takes the member and the term out of every header.
func bare(m protoreflect.Message) {
	if h, ok := m.Interface().(*pb.ResponseHeader); ok {
		h.MemberId, h.RaftTerm = 0, 0
		return
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Kind() != protoreflect.MessageKind:
		case fd.IsList():
			for i := range v.List().Len() {
				bare(v.List().Get(i).Message())
			}
		default:
			bare(v.Message())
		}
		return true
	})
}

// script draws requests of all kinds.
type script struct {
	r   *rand.Rand
	rev int64 // about the store's revision
	n   int
}

func drawScript(seed uint64) (out []any) {
	s := &script{r: rand.New(rand.NewPCG(seed, 0x6d657461)), rev: 1}
	for range 60 + s.r.IntN(120) {
		out = append(out, s.request())
	}
	return out
}

func (s *script) key() []byte { return []byte(keys[s.r.IntN(len(keys))]) }

func (s *script) value() []byte {
	s.n++
	return fmt.Appendf(nil, "v%d", s.n)
}

func (s *script) chance(percent int) bool { return s.r.IntN(100) < percent }

// revision is one of the past, most often, or of the future.
func (s *script) revision() int64 { return max(0, s.rev+3-int64(s.r.IntN(12))) }

func (s *script) request() any {
	switch p := s.r.IntN(100); {
	case p < 30:
		s.rev++
		return s.put()
	case p < 40:
		s.rev++
		return s.delete()
	case p < 65:
		return s.get()
	case p < 97:
		s.rev++
		return s.txn(0)
	}
	return &pb.CompactionRequest{Revision: s.rev - int64(s.r.IntN(10))}
}

func (s *script) put() *pb.PutRequest {
	p := &pb.PutRequest{Key: s.key(), Value: s.value(), PrevKv: s.chance(40)}
	if s.chance(15) {
		p.IgnoreValue, p.Value = true, nil
	}
	p.IgnoreLease = s.chance(10)
	return p
}

// span draws a key or a range, now and then an odd one.
func (s *script) span() (key, end []byte) {
	key = s.key()
	switch p := s.r.IntN(20); {
	case p < 7:
		return key, nil
	case p < 9:
		return key, []byte{0}
	case p < 10:
		return []byte{0}, []byte{0}
	case p < 11:
		return nil, nil // refused
	}
	return key, s.key() // empty if it ends before it begins
}

func (s *script) delete() *pb.DeleteRangeRequest {
	d := &pb.DeleteRangeRequest{PrevKv: s.chance(50)}
	d.Key, d.RangeEnd = s.span()
	return d
}

func (s *script) get() *pb.RangeRequest {
	g := &pb.RangeRequest{KeysOnly: s.chance(10), CountOnly: s.chance(10)}
	g.Key, g.RangeEnd = s.span()
	if s.chance(40) {
		g.Limit = int64(s.r.IntN(5))
	}
	if s.chance(25) {
		g.Revision = s.revision()
	}
	if s.chance(30) {
		g.SortOrder, g.SortTarget = pb.RangeRequest_SortOrder(s.r.IntN(3)), pb.RangeRequest_SortTarget(s.r.IntN(5))
	}
	for _, f := range []*int64{&g.MinModRevision, &g.MaxModRevision, &g.MinCreateRevision, &g.MaxCreateRevision} {
		if s.chance(7) {
			*f = s.revision()
		}
	}
	return g
}

func (s *script) compare() *pb.Compare {
	c := &pb.Compare{Key: s.key(), Target: pb.Compare_CompareTarget(s.r.IntN(4)), Result: pb.Compare_CompareResult(s.r.IntN(4))}
	if s.chance(25) {
		c.RangeEnd = s.key()
	}
	switch c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: int64(s.r.IntN(3))}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: s.revision()}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: s.revision()}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: fmt.Appendf(nil, "v%d", s.r.IntN(s.n+1))}
	}
	return c
}

func (s *script) txn(depth int) *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for range s.r.IntN(3) {
		t.Compare = append(t.Compare, s.compare())
	}
	t.Success, t.Failure = s.ops(depth), s.ops(depth)
	if depth == 0 && len(t.Success)+len(t.Failure) == 0 {
		// Without operations it would be a serializable read, as in etcd, whose revision may be an old one.
		t.Success = []*pb.RequestOp{get("a1", "")}
	}
	return t
}

func (s *script) ops(depth int) (out []*pb.RequestOp) {
	for range s.r.IntN(4) {
		op := &pb.RequestOp{}
		switch p := s.r.IntN(10); {
		case p < 4:
			op.Request = &pb.RequestOp_RequestPut{RequestPut: s.put()}
		case p < 6:
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: s.delete()}
		case p < 9 || depth == 2:
			op.Request = &pb.RequestOp_RequestRange{RequestRange: s.get()}
		default:
			op.Request = &pb.RequestOp_RequestTxn{RequestTxn: s.txn(depth + 1)}
		}
		out = append(out, op)
	}
	return out
}
