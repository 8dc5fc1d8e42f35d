package router

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/range/latch"
	"github.com/braidkv/braid/router/check"
)

// write is a request that may change something: one of put, del and txn.
type write struct {
	put *pb.PutRequest
	del *pb.DeleteRangeRequest
	txn *pb.TxnRequest

	all eval.Spans // see spans
}

func (w *write) message() proto.Message {
	switch {
	case w.put != nil:
		return w.put
	case w.del != nil:
		return w.del
	}
	return w.txn
}

func (w *write) evaluate(v eval.View) eval.Result {
	switch {
	case w.put != nil:
		return eval.Put(v, w.put)
	case w.del != nil:
		return eval.DeleteRange(v, w.del)
	}
	return eval.Txn(v, w.txn)
}

// spans are what the request latches, made when they are first asked for: most requests name one key and need none.
func (w *write) spans() *eval.Spans {
	if w.all.Reads == nil && w.all.Writes == nil {
		switch {
		case w.put != nil:
			w.all = eval.PutSpans(w.put)
		case w.del != nil:
			w.all = eval.DeleteSpans(w.del)
		default:
			w.all = eval.TxnSpans(w.txn)
		}
	}
	return &w.all
}

// touched are the spans that must be readable to evaluate the request as a read, the past included.
func (w *write) touched() []span {
	all := w.spans()
	out := keySpans(keySpans(nil, all.Reads), all.Writes)
	if w.txn != nil {
		out = append(out, pastReads(w.txn)...)
	}
	return out
}

// keySpans appends latched spans as spans of keys.
func keySpans(out []span, ls []latch.Span) []span {
	for _, l := range ls {
		if l.Point() {
			out = append(out, spanOf(l.Start, nil))
		} else {
			out = append(out, span{l.Start, l.End})
		}
	}
	return out
}

// route finds the ranges that the request touches, the past aside: by ascending start, none twice. There is none if all its spans are
// empty.
func (w *write) route(v *order.View) []*braidpb.RangeDescriptor {
	switch {
	case w.put != nil:
		return v.Routing.Overlapping(w.put.Key, spanOf(w.put.Key, nil).end)
	case w.del != nil:
		sp := spanOf(w.del.Key, w.del.RangeEnd)
		return v.Routing.Overlapping(sp.start, sp.end)
	}
	var touched map[uint64]bool
	var one *braidpb.RangeDescriptor // while there is just one
	add := func(d *braidpb.RangeDescriptor) {
		switch {
		case one == nil && touched == nil:
			one = d
		case touched == nil && one != d:
			touched = map[uint64]bool{one.GetId(): true, d.GetId(): true}
		case touched != nil:
			touched[d.GetId()] = true
		}
	}
	all := w.spans()
	for _, ls := range [2][]latch.Span{all.Reads, all.Writes} {
		for _, l := range ls {
			if l.Point() {
				add(v.Routing.Lookup(l.Start))
				continue
			}
			for _, d := range v.Routing.Overlapping(l.Start, l.End) {
				add(d)
			}
		}
	}
	if touched == nil && one != nil {
		return v.Routing.Overlapping(one.GetStart(), spanOf(one.GetStart(), nil).end)
	}
	var out []*braidpb.RangeDescriptor
	for _, d := range v.Routing.Ranges() {
		if touched[d.GetId()] {
			out = append(out, d)
		}
	}
	return out
}

// Put serves KV.Put.
func (s *Server) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := check.Put(r); err != nil {
		return nil, err
	}
	res, err := s.begin(ctx).write(&write{put: r})
	if err != nil {
		return nil, writeError(err)
	}
	s.fill(res.Put.Header)
	return res.Put, nil
}

// DeleteRange serves KV.DeleteRange.
func (s *Server) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := check.DeleteRange(r); err != nil {
		return nil, err
	}
	res, err := s.begin(ctx).write(&write{del: r})
	if err != nil {
		return nil, writeError(err)
	}
	s.fill(res.Delete.Header)
	return res.Delete, nil
}

// Txn serves KV.Txn.
func (s *Server) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := check.Txn(r, s.cfg.MaxTxnOps); err != nil {
		return nil, err
	}
	w := &write{txn: r}
	c := s.begin(ctx)
	if eval.ReadOnly(r) {
		res, err := c.evaluate(serializable(r), w.touched(), w.evaluate)
		if err != nil {
			return nil, readError(err)
		}
		s.fill(res.Txn.Header)
		return res.Txn, nil
	}
	res, err := c.write(w)
	if err != nil {
		return nil, writeError(err)
	}
	s.fill(res.Txn.Header)
	return res.Txn, nil
}

// serializable tells whether a read-only transaction asks for nothing but serializable reads, as in etcd.
func serializable(r *pb.TxnRequest) bool {
	for _, ops := range [2][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if o := op.GetRequestRange(); o == nil || !o.Serializable {
				return false
			}
		}
	}
	return true
}

// pastReads are the spans of range operations that name a revision; they are not latched.
func pastReads(r *pb.TxnRequest) (out []span) {
	for _, ops := range [2][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if o := op.GetRequestRange(); o != nil && o.Revision > 0 {
				out = append(out, spanOf(o.Key, o.RangeEnd))
			}
			if o := op.GetRequestTxn(); o != nil {
				out = append(out, pastReads(o)...)
			}
		}
	}
	return out
}

// raftOverhead is what etcd's own request is larger than the client's, when it is held against --max-request-bytes.
const raftOverhead = 18

// write carries a request out: at one range's leader, or over several. It is tried again only after an answer that says it is
// certainly not done (O6), and from the second time on not without a pause.
func (c *call) write(w *write) (eval.Result, error) {
	if proto.Size(w.message())+raftOverhead > c.s.cfg.MaxRequestBytes {
		return eval.Result{}, rpctypes.ErrGRPCRequestTooLarge
	}
	for tries := 0; ; tries++ {
		if tries > 1 {
			if err := c.pause(1); err != nil {
				return eval.Result{}, err
			}
		}
		v, err := c.ready()
		if err != nil {
			return eval.Result{}, err
		}
		var res eval.Result
		switch parts := w.route(v); {
		case len(parts) == 0:
			err = errReadInstead
		case len(parts) == 1 && !readsPastOutside(w, parts[0]):
			res, err = c.single(v, w, parts[0])
		default:
			res, err = c.coordinate(v, w, parts)
		}
		if errors.Is(err, errReadInstead) {
			res, err = c.evaluate(false, w.touched(), w.evaluate)
			if err == nil && len(res.Writes) == 0 {
				return res, nil
			}
			if err == nil {
				err = errTryAgain // meanwhile it would change something
			}
		}
		if !errors.Is(err, errTryAgain) {
			return res, err
		}
		if err := c.over(); err != nil {
			return eval.Result{}, err
		}
	}
}

// readsPastOutside tells whether a transaction reads the past of keys that its one participant does not have.
func readsPastOutside(w *write, d *braidpb.RangeDescriptor) bool {
	if w.txn == nil {
		return false
	}
	for _, sp := range pastReads(w.txn) {
		if string(sp.start) < string(d.GetStart()) || len(d.GetEnd()) > 0 && (len(sp.end) == 0 || string(sp.end) > string(d.GetEnd())) {
			return true
		}
	}
	return false
}

// single hands a request to the leader of its one range.
func (c *call) single(v *order.View, w *write, d *braidpb.RangeDescriptor) (eval.Result, error) {
	resp, err := c.ask(v, d, &ranges.Request{Put: w.put, Delete: w.del, Txn: w.txn})
	if err != nil {
		return eval.Result{}, err
	}
	if resp.Code == ranges.CodeOK {
		return eval.Result{Put: resp.Put, Delete: resp.Delete, Txn: resp.Txn}, nil
	}
	return eval.Result{}, c.settle(v, resp.Code)
}

// ask has the leader of a range do something and waits for the answer. If the wait ends early, what became of the request is not
// known.
func (c *call) ask(v *order.View, d *braidpb.RangeDescriptor, req *ranges.Request) (*ranges.Response, error) {
	var resp *ranges.Response
	c.address(v, d, req)
	err := c.wait(func(done func()) {
		req.Done = func(r *ranges.Response) {
			resp = r
			done()
		}
		c.s.b.Submit(ids.RangeID(d.GetId()), req)
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// address fills in under what a request was routed and authorised, and how long it may take.
func (c *call) address(v *order.View, d *braidpb.RangeDescriptor, req *ranges.Request) {
	req.Generation, req.AuthRevision, req.TimeoutTicks = ids.Generation(d.GetGeneration()), v.AuthRevision, c.ticksLeft()
}

// settle turns a code into an error, after having waited for what makes it sensible to try again: where the range's leader knows
// of another generation or auth revision than the view, this node will know soon; where it knows less, it needs a moment.
func (c *call) settle(v *order.View, code ranges.Code) error {
	if (code == ranges.CodeGeneration || code == ranges.CodeAuthRevision) && c.s.b.View().Position == v.Position {
		if err := c.nextPosition(v, c.s.clock.now.Load()+1); err != nil && !errors.Is(err, errTimedOut) {
			return err
		}
	}
	return outcome(code)
}

// Compact serves KV.Compact. A physical compaction is answered when it has been carried out on this node, however long it takes.
func (s *Server) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	c := s.begin(ctx)
	if _, err := c.ready(); err != nil {
		return nil, writeError(err)
	}
	res, err := c.propose(&braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Compact{Compact: &braidpb.Compact{Revision: r.Revision}}})
	if r.Revision == 0 && errors.Is(err, order.ErrCompacted) && s.b.View().CompactRevision == 0 {
		// As in etcd: before the first compaction, one at 0 is no error. It removes nothing.
		return &pb.CompactionResponse{Header: s.header(s.b.View().Revision)}, nil
	}
	if err != nil {
		return nil, writeError(err)
	}
	if r.Physical {
		c.deadline = forever
		if err := c.wait(func(done func()) { s.b.Compacted(ids.Revision(r.Revision), done) }); err != nil {
			return nil, writeError(err)
		}
	}
	return &pb.CompactionResponse{Header: s.header(max(res.Revision, s.b.View().Revision))}, nil
}

// propose has a command put into the order log and waits for what comes of it. If the wait ends early, that is not known.
func (c *call) propose(cmd *braidpb.OrderCommand) (order.Result, error) {
	var res order.Result
	err := c.wait(func(done func()) {
		c.s.b.Propose(cmd, c.ticksLeft(), func(got order.Result) {
			res = got
			done()
		})
	})
	if err != nil {
		return order.Result{}, err
	}
	return res, res.Err
}
