package ranges

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	braidpb "github.com/braidkv/braid/proto"
)

// TestScripts runs the dialogues in testdata/scripts. Each begins with a sentence on what it shows; -rewrite records the output
// anew. The verbs (n is a node):
//
//	cluster nodes=3 [tuning=value ...]     begins
//	elect n=1 voters=(2,3)                 one election
//	replicate from=1 to=2 [most=1]         a follower catches up, by so many entries
//	pump n=1 [deliver=0]                   a pass over the group, with so many entries delivered
//	tick n=1 [times=3]
//	crash n=1, flush n=1, background n=1   restart without what was not flushed; make durable; run the jobs
//	dropping n=1 [off]                     proposals are dropped
//	orderleader n=1 is=2                   n thinks that the order group is led by 2
//	poke n=1                               n is told to look at the order view
//	put, delete, cas, lock, prepare, unlock n=1 as=NAME ...: requests; the answer is traced with the name
//	cut [through=5], auth, revoke lease=1, compact rev=5, commit/abort txn=1 deadline=9: positions of the order log
//	order n=1 [times=1]                    n applies a position, or all
//	drop through=3, skip n=1               the order log forgets items; n takes an order snapshot
//	state n=1, show n=1 [rev=5]            prints what the replica, or the engine, holds
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{}
		defer s.close()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(t, d)
		})
	})
}

// script runs one file.
type script struct {
	c   *cluster
	out bytes.Buffer
}

func (s *script) close() {
	if s.c != nil {
		s.c.close()
	}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "cluster" {
		s.begin(t, d)
		return s.flushed()
	}
	m := s.c.nodes[0]
	if d.HasArg("n") {
		m = s.c.node(ids.NodeID(number(t, d, "n", 1)))
	}
	defer s.out.Reset()
	func() {
		defer func() {
			if p := recover(); p != nil {
				fmt.Fprintf(&s.out, "panic: %v\n", p)
			}
		}()
		if !s.cluster(t, d, m) && !s.orderLog(t, d, m) && !s.requests(t, d, m) {
			d.Fatalf(t, "unknown verb %s", d.Cmd)
		}
	}()
	if s.c.err != nil {
		fmt.Fprintf(&s.out, "fault: %v\n", s.c.err)
		s.c.err = nil
	}
	return s.flushed()
}

func (s *script) flushed() string {
	if s.out.Len() == 0 {
		return "ok\n"
	}
	return s.out.String()
}

func (s *script) begin(t *testing.T, d *datadriven.TestData) {
	s.close()
	limits := Limits{KeepEntries: uint64(number(t, d, "keep", 100)), MaxUnorderedBytes: number(t, d, "unordered", 0), MaxTxnBytes: number(t, d, "txn", 0), ChunkBytes: 120}
	timing := Timing{ElectionTicks: 3, RequestTicks: 10, LockTicks: 4, StuckTicks: 3, NotReadyTicks: 3, TransferTicks: 2, FollowTicks: 4}
	s.c = newCluster(number(t, d, "nodes", 3), func(c *Config) { c.Limits, c.Timing = limits, timing })
	s.c.trace = &s.out
}

func number(t *testing.T, d *datadriven.TestData, name string, or int) int {
	d.MaybeScanArgs(t, name, &or)
	return or
}

func text(t *testing.T, d *datadriven.TestData, name, or string) string {
	d.MaybeScanArgs(t, name, &or)
	return or
}

func (s *script) cluster(t *testing.T, d *datadriven.TestData, m *member) bool {
	switch d.Cmd {
	case "elect":
		var voters []int
		for _, a := range d.CmdArgs {
			if a.Key == "voters" {
				for i := range a.Vals {
					var v int
					a.Scan(t, i, &v)
					voters = append(voters, v)
				}
			}
		}
		var vs []ids.NodeID
		for _, v := range voters {
			vs = append(vs, ids.NodeID(v))
		}
		if !s.c.elect(m.id, vs) {
			s.out.WriteString("not elected\n")
		}
	case "replicate":
		s.c.replicate(ids.NodeID(number(t, d, "from", 1)), ids.NodeID(number(t, d, "to", 2)), number(t, d, "most", 1000))
	case "pump":
		m.pump(number(t, d, "deliver", 1000))
	case "tick":
		for range number(t, d, "times", 1) {
			m.rep.Tick()
		}
	case "crash":
		m.crash()
		m.start()
	case "flush":
		m.flush()
	case "background":
		for m.background() {
		}
	case "dropping":
		m.dropping = !d.HasArg("off")
	case "orderleader":
		m.leader = ids.NodeID(number(t, d, "is", 0))
	case "quiet":
		m.quiet = !d.HasArg("over")
	case "poke":
		m.inbox = append(m.inbox, Poke{})
		m.pump(0)
	case "state":
		s.state(m)
	case "show":
		s.show(t, m, ids.Revision(number(t, d, "rev", int(mvcc.Latest))))
	default:
		return false
	}
	return true
}

func (s *script) state(m *member) {
	r := m.rep
	fmt.Fprintf(&s.out, "cursor: entry %d of term %d, seq %d, frontier %d, compacted %d of %d\n",
		r.cursor.index, r.cursor.term, r.cursor.seq, r.cursor.frontier, r.cursor.compacted, r.cursor.target)
	fmt.Fprintf(&s.out, "window: %d entries, %d seqs through %d delivered; queue %d; ready %v, waiting %d, refill %d, idle %v\n",
		r.window.entries.Len(), r.window.slots.Len(), r.window.delivered, r.queue.Len(), r.leader.ready, r.leader.live.n, r.refill, r.Idle())
	for _, x := range r.txns.list {
		fmt.Fprintf(&s.out, "txn %v: prepare %v, passed %v, decided %v, commit %v, stored %v %v\n",
			x.id, x.prep != nil, x.passed, x.decided, x.commit, x.storedPrepared, x.storedDecision)
	}
}

func (s *script) show(t *testing.T, m *member, rev ids.Revision) {
	res, err := mvcc.Range(m.eng.Data, mvcc.RangeOptions{Rev: rev})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range res.KVs {
		fmt.Fprintf(&s.out, "%s = %s, created %d, modified %d, version %d", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
		if kv.Lease != 0 {
			fmt.Fprintf(&s.out, ", lease %d", kv.Lease)
		}
		s.out.WriteByte('\n')
	}
}

func (s *script) orderLog(t *testing.T, d *datadriven.TestData, m *member) bool {
	o := s.c.order
	before := len(o.states)
	switch d.Cmd {
	case "cut":
		o.cut(ids.Seq(number(t, d, "through", 1<<30)))
	case "auth":
		o.changeAuth()
	case "revoke":
		o.revoke(ids.LeaseID(number(t, d, "lease", 1)))
	case "compact":
		o.compact(ids.Revision(number(t, d, "rev", 0)))
	case "commit", "abort":
		o.decide(scriptTxn(t, d), d.Cmd == "commit", ids.Position(number(t, d, "deadline", 100)))
	case "nothing":
		o.next()
	case "order":
		for i := 0; i != number(t, d, "times", -1) && m.applyOrder(); i++ {
		}
		return true
	case "drop":
		o.drop(ids.Position(number(t, d, "through", 0)))
		return true
	case "skip":
		m.skipOrder()
		return true
	default:
		return false
	}
	for p := before; p < len(o.states); p++ {
		fmt.Fprintf(&s.out, "position %d: %s\n", p, describeItems(o.at(p).items))
	}
	return true
}

func describeItems(it *braidpb.Items) string {
	var out []string
	for _, i := range it.GetItems() {
		switch k := i.Kind.(type) {
		case *braidpb.Item_Seqs:
			text := fmt.Sprintf("seqs (%d,%d] from revision %d", k.Seqs.From, k.Seqs.Through, k.Seqs.FirstRevision)
			for _, v := range k.Seqs.Voids {
				text += fmt.Sprintf(", %d void by %v", v.Seq, v.Reason)
			}
			out = append(out, text)
		case *braidpb.Item_Decision:
			out = append(out, fmt.Sprintf("txn %v commit %v at %d", txnID(k.Decision.Txn), k.Decision.Commit, k.Decision.Revision))
		case *braidpb.Item_Compact:
			out = append(out, fmt.Sprintf("compact at %d", k.Compact.Revision))
		}
	}
	if len(out) == 0 {
		return "nothing for the range"
	}
	return strings.Join(out, "; ")
}

func scriptTxn(t *testing.T, d *datadriven.TestData) ids.TxnID {
	return ids.TxnID{Node: 9, Incarnation: 1, Counter: uint64(number(t, d, "txn", 1))}
}

func (s *script) requests(t *testing.T, d *datadriven.TestData, m *member) bool {
	q := &Request{Generation: ids.Generation(number(t, d, "generation", 1)), AuthRevision: ids.AuthRevision(number(t, d, "auth", int(s.c.order.at(m.pos).auth))), TimeoutTicks: number(t, d, "timeout", 0)}
	key, value := []byte(text(t, d, "key", "a")), []byte(text(t, d, "value", "v"))
	put := &pb.PutRequest{Key: key, Value: value, Lease: int64(number(t, d, "lease", 0)), PrevKv: d.HasArg("prev"), IgnoreLease: d.HasArg("ignore-lease")}
	switch d.Cmd {
	case "put":
		q.Put = put
	case "delete":
		q.Delete = &pb.DeleteRangeRequest{Key: key, RangeEnd: []byte(text(t, d, "end", "")), PrevKv: d.HasArg("prev")}
	case "cas":
		cmp := &pb.Compare{Key: key, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{Version: int64(number(t, d, "version", 0))}}
		if d.HasArg("mod") {
			cmp.Target, cmp.TargetUnion = pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: int64(number(t, d, "mod", 0))}
		}
		q.Txn = &pb.TxnRequest{Compare: []*pb.Compare{cmp}, Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}}}
	case "lock":
		q.Lock = &braidpb.LockRequest{
			Txn: txnProto(scriptTxn(t, d)), Reads: []*braidpb.Span{{Start: key}}, Writes: []*braidpb.Span{{Start: []byte(text(t, d, "writes", string(key)))}},
		}
	case "prepare":
		q.Prepare = &braidpb.PrepareRequest{
			Txn: txnProto(scriptTxn(t, d)), Token: uint64(number(t, d, "token", 1)), Term: uint64(number(t, d, "term", int(m.role.Term))),
			Deadline: uint64(number(t, d, "deadline", 100)), Participants: []uint64{7}, Writes: []*braidpb.WriteOp{{Key: key, Value: value}},
		}
	case "unlock":
		q.Unlock = &braidpb.UnlockRequest{Txn: txnProto(scriptTxn(t, d)), Token: uint64(number(t, d, "token", 1))}
	default:
		return false
	}
	name := text(t, d, "as", d.Cmd)
	q.Done = func(r *Response) { s.c.tracef("answer %s: %s", name, describeResponse(r)) }
	m.inbox = append(m.inbox, q)
	if !d.HasArg("later") {
		m.pump(0)
	}
	return true
}

func describeResponse(r *Response) string {
	out := strings.TrimPrefix(r.Code.String(), "RANGE_")
	if r.Code == CodeNotLeader {
		out += fmt.Sprintf(", try n%d", r.Leader)
	}
	if r.Revision != 0 {
		out += fmt.Sprintf(" at revision %d", r.Revision)
	}
	if kv := r.Put.GetPrevKv(); kv != nil {
		out += fmt.Sprintf(", was %s", kv.Value)
	}
	if r.Delete != nil {
		out += fmt.Sprintf(", %d deleted", r.Delete.Deleted)
		for _, kv := range r.Delete.PrevKvs {
			out += fmt.Sprintf(", %s was %s", kv.Key, kv.Value)
		}
	}
	if r.Txn != nil {
		out += fmt.Sprintf(", succeeded %v", r.Txn.Succeeded)
	}
	if r.Lock != nil {
		out += fmt.Sprintf(", token %d of term %d", r.Lock.Token, r.Lock.Term)
		for _, b := range r.Lock.Kvs {
			var kv mvccpb.KeyValue
			if err := proto.Unmarshal(b, &kv); err != nil {
				return err.Error()
			}
			out += fmt.Sprintf(", %s = %s at %d", kv.Key, kv.Value, kv.ModRevision)
		}
	}
	return out
}
