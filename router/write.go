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

// write is a request that may change something.
type write struct {
	put *pb.PutRequest
	del *pb.DeleteRangeRequest
	txn *pb.TxnRequest

	spans eval.Spans
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

// reads are the spans that must be readable to evaluate the request as a read.
func (w *write) reads() (out []span) {
	for _, l := range [2][]latch.Span{w.spans.Reads, w.spans.Writes} {
		for _, sp := range l {
			end := sp.End
			if sp.Point() {
				end = append(append(make([]byte, 0, len(sp.Start)+1), sp.Start...), 0)
			}
			out = append(out, span{sp.Start, end})
		}
	}
	return out
}

// participants are the ranges that a request touches, in ascending order of their spans.
func participants(v *order.View, spans []span) (out []*braidpb.RangeDescriptor) {
	if len(spans) == 1 {
		return v.Routing.Overlapping(spans[0].start, spans[0].end)
	}
	touched := map[uint64]bool{}
	for _, sp := range spans {
		for _, d := range v.Routing.Overlapping(sp.start, sp.end) {
			touched[d.GetId()] = true
		}
	}
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
	res, err := s.write(ctx, &write{put: r, spans: eval.PutSpans(r)})
	if err != nil {
		return nil, toClient(err)
	}
	s.fill(res.Put.Header)
	return res.Put, nil
}

// DeleteRange serves KV.DeleteRange.
func (s *Server) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := check.DeleteRange(r); err != nil {
		return nil, err
	}
	res, err := s.write(ctx, &write{del: r, spans: eval.DeleteSpans(r)})
	if err != nil {
		return nil, toClient(err)
	}
	s.fill(res.Delete.Header)
	return res.Delete, nil
}

// Txn serves KV.Txn.
func (s *Server) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := check.Txn(r, s.cfg.MaxTxnOps); err != nil {
		return nil, err
	}
	w := &write{txn: r, spans: eval.TxnSpans(r)}
	var res eval.Result
	var err error
	if eval.ReadOnly(r) {
		ctx, cancel := s.bound(ctx)
		defer cancel()
		res, err = s.evaluate(ctx, serializable(r), append(w.reads(), pastReads(r)...), w.evaluate)
	} else {
		res, err = s.write(ctx, w)
	}
	if err != nil {
		return nil, toClient(err)
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

// write carries a request out: at one range's leader, or over several.
func (s *Server) write(ctx context.Context, w *write) (eval.Result, error) {
	if proto.Size(w.message()) > s.cfg.MaxRequestBytes {
		return eval.Result{}, rpctypes.ErrGRPCRequestTooLarge
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	spans := w.reads()
	for {
		v, err := s.ready(ctx)
		if err != nil {
			return eval.Result{}, err
		}
		var res eval.Result
		switch parts := participants(v, spans); {
		case len(parts) == 0:
			err = errReadInstead
		case len(parts) == 1 && !pastOutside(w, parts[0]):
			res, err = s.single(ctx, v, w, parts[0])
		default:
			res, err = s.coordinate(ctx, v, w, parts)
		}
		if errors.Is(err, errReadInstead) {
			all := spans
			if w.txn != nil {
				all = append(append([]span(nil), spans...), pastReads(w.txn)...)
			}
			res, err = s.evaluate(ctx, false, all, w.evaluate)
			if err == nil && len(res.Writes) > 0 {
				continue // meanwhile it would change something
			}
			return res, err
		}
		if !errors.Is(err, errTryAgain) {
			return res, err
		}
		if err := ctx.Err(); err != nil {
			return eval.Result{}, s.wait(ctx, func(func()) {})
		}
	}
}

// errReadInstead says that a request changes nothing, or fails by the state: it is to be evaluated as a read.
var errReadInstead = errors.New("router: to be evaluated as a read")

// pastOutside tells whether a transaction reads the past of keys that its one participant does not have.
func pastOutside(w *write, d *braidpb.RangeDescriptor) bool {
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
func (s *Server) single(ctx context.Context, v *order.View, w *write, d *braidpb.RangeDescriptor) (eval.Result, error) {
	req := &ranges.Request{Put: w.put, Delete: w.del, Txn: w.txn}
	resp, err := s.ask(ctx, v, d, req)
	if err != nil {
		return eval.Result{}, err
	}
	switch resp.Code {
	case ranges.CodeOK:
		return eval.Result{Put: resp.Put, Delete: resp.Delete, Txn: resp.Txn}, nil
	case ranges.CodeReadInstead:
		return eval.Result{}, errReadInstead
	}
	return eval.Result{}, s.settle(ctx, v, resp.Code)
}

// settle turns a code into an error, after having waited for what makes it sensible to try again.
func (s *Server) settle(ctx context.Context, v *order.View, c ranges.Code) error {
	if c == ranges.CodeGeneration || c == ranges.CodeAuthRevision {
		if err := s.nextPosition(ctx, v); err != nil {
			return err
		}
	}
	return outcome(c)
}

// ask has the leader of a range do something and waits for the answer. When the wait ends early, what became of the request is not
// known.
func (s *Server) ask(ctx context.Context, v *order.View, d *braidpb.RangeDescriptor, req *ranges.Request) (*ranges.Response, error) {
	var resp *ranges.Response
	req.Generation, req.AuthRevision, req.TimeoutTicks = ids.Generation(d.GetGeneration()), v.AuthRevision, s.cfg.RequestTicks
	answered := make(chan *ranges.Response, 1)
	err := s.wait(ctx, func(done func()) {
		req.Done = func(r *ranges.Response) {
			answered <- r
			done()
		}
		s.b.Submit(ids.RangeID(d.GetId()), req)
	})
	if err != nil {
		return nil, err
	}
	resp = <-answered
	return resp, nil
}

// Compact serves KV.Compact.
func (s *Server) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if _, err := s.ready(ctx); err != nil {
		return nil, toClient(err)
	}
	var res order.Result
	err := s.wait(ctx, func(done func()) {
		cmd := &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Compact{Compact: &braidpb.Compact{Revision: r.Revision}}}
		s.b.Propose(cmd, s.cfg.RequestTicks, func(got order.Result) {
			res = got
			done()
		})
	})
	if err == nil {
		err = res.Err
	}
	if err == nil && r.Physical {
		err = s.wait(ctx, func(done func()) { s.b.Compacted(ids.Revision(r.Revision), done) })
	}
	if err != nil {
		return nil, toClient(err)
	}
	return &pb.CompactionResponse{Header: s.header(res.Revision)}, nil
}
