package router

import (
	"bytes"
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/router/check"
)

// Range serves KV.Range.
func (s *Server) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := check.Range(r); err != nil {
		return nil, err
	}
	c := s.begin(ctx)
	var resp *pb.RangeResponse
	_, rev, err := c.read(r, func(at ids.Revision) (err error) {
		if len(r.RangeEnd) == 0 {
			resp, err = c.get(r, at)
			return err
		}
		l := &listing{ctx: ctx, r: r}
		return c.iterate(spanOf(r.Key, r.RangeEnd), at, func(it *mvcc.Iterator) (err error) {
			resp, err = l.collect(it)
			return err
		})
	})
	if err != nil {
		return nil, readError(err)
	}
	resp.Header = s.header(rev)
	return resp, nil
}

// errCompacted says that the revision at hand has been compacted.
var errCompacted = errors.New("router: revision has been compacted")

// read finds the revisions of a range request, the one to be read and the store's, and has do read the former. Whatever do read with counts
// only if its revision was not compacted by then: compaction is looked at afterwards, so that nothing can be pulled away under it.
// A request that names no revision is not told of a compaction, but do is called again.
func (c *call) read(r *pb.RangeRequest, do func(at ids.Revision) error) (at, rev ids.Revision, err error) {
	spans := []span{spanOf(r.Key, r.RangeEnd)}
	for {
		if rev, err = c.point(r.Serializable, spans); err != nil {
			return 0, 0, err
		}
		at = rev
		if r.Revision > 0 {
			at = ids.Revision(r.Revision)
		}
		if at > rev {
			return 0, 0, rpctypes.ErrGRPCFutureRev
		}
		compacted := c.s.b.View().CompactRevision
		if at >= compacted {
			if err = do(at); err != nil {
				return 0, 0, err
			}
			if compacted, err = c.compacted(spans); err != nil {
				return 0, 0, err
			}
		}
		switch {
		case at >= compacted:
			return at, rev, nil
		case r.Revision > 0:
			return 0, 0, errCompacted
		}
		if err = c.over(); err != nil {
			return 0, 0, err
		}
	}
}

// iterate calls visit with an iterator over a span at a revision.
func (c *call) iterate(sp span, at ids.Revision, visit func(*mvcc.Iterator) error) error {
	if len(sp.end) > 0 && bytes.Compare(sp.start, sp.end) >= 0 {
		sp.start = sp.end // nothing
	}
	it, err := mvcc.NewIterator(c.s.b.Reader(), sp.start, sp.end, at)
	if err != nil {
		return err
	}
	err = visit(it)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	return err
}

// get answers a request for one key, header aside.
func (c *call) get(r *pb.RangeRequest, at ids.Revision) (*pb.RangeResponse, error) {
	resp := &pb.RangeResponse{}
	l := &listing{r: r}
	if r.CountOnly || !l.valuesWanted() {
		s, err := mvcc.GetState(c.s.b.Reader(), r.Key, at)
		if err != nil || !s.Exists() {
			return resp, err
		}
		if resp.Count = 1; !r.CountOnly && l.passes(s) {
			s.Lease = 0
			resp.Kvs = []*mvccpb.KeyValue{keyValue(r.Key, s, nil)}
		}
		return resp, nil
	}
	kv, err := mvcc.Get(c.s.b.Reader(), r.Key, at)
	if err != nil || kv == nil {
		return resp, err
	}
	if resp.Count = 1; l.passes(mvcc.KeyState{Create: ids.Revision(kv.CreateRevision), Mod: ids.Revision(kv.ModRevision)}) {
		if r.KeysOnly {
			kv.Value = nil
		}
		resp.Kvs = []*mvccpb.KeyValue{kv}
	}
	return resp, nil
}

// RangeStream serves KV.RangeStream: one revision, chunks in the order of keys; header, count and more come with the last.
func (s *Server) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if err := check.RangeStream(r); err != nil {
		return err
	}
	if r.SortTarget != pb.RangeRequest_KEY {
		// A target without an order means ascending, of all keys: nothing can be sent before all are there.
		resp, err := s.Range(stream.Context(), r)
		if err != nil {
			return err
		}
		return stream.SendMsg(&pb.RangeStreamResponse{RangeResponse: resp})
	}
	return readError(s.begin(stream.Context()).stream(r, stream.SendMsg))
}

// streamChunkBytes is about how large a chunk of a streamed list is, streamFirstBytes and streamFirstKeys (as in etcd) the first one, so that it comes
// soon. A chunk has at least one key; memory is bounded by one chunk, and no iterator is open while it is being sent: a
// client that does not read holds up nothing. Between chunks the revision may be compacted, which ends the stream, as in etcd.
const (
	streamChunkBytes = 1 << 20
	streamFirstBytes = 64 << 10
	streamFirstKeys  = 10
)

func (c *call) stream(r *pb.RangeRequest, send func(m any) error) error {
	sp := spanOf(r.Key, r.RangeEnd)
	var l *listing
	var out *encodedList
	chunk := func(at ids.Revision) error {
		return c.iterate(sp, at, func(it *mvcc.Iterator) (err error) {
			out, err = l.encode(it)
			return err
		})
	}
	at, rev, err := c.read(r, func(at ids.Revision) error {
		l = &listing{ctx: c.ctx, r: r, chunk: min(streamFirstBytes, c.s.cfg.MaxRequestBytes), chunkKeys: streamFirstKeys, inOrder: true}
		return chunk(at)
	})
	for {
		switch {
		case err != nil:
			return err
		case l.next == nil:
			out.head.Header = c.s.header(rev)
			return send(&streamedList{out})
		}
		if err := send(&streamedList{out}); err != nil {
			return err
		}
		l.chunk, l.chunkKeys, sp.start = min(streamChunkBytes, c.s.cfg.MaxRequestBytes), 0, l.next
		if err = chunk(at); err == nil {
			err = c.notCompacted(sp, at)
		}
	}
}

// notCompacted tells whether what was read of a span at a revision, before the call, is all of it.
func (c *call) notCompacted(sp span, at ids.Revision) error {
	compacted, err := c.compacted([]span{sp})
	if err == nil && at < compacted {
		err = errCompacted
	}
	return err
}

// view is the state at a revision, for evaluating what changes nothing.
type view struct {
	r         mvcc.Reader
	rev       ids.Revision
	compacted ids.Revision
}

func (v *view) Get(key []byte, _ bool) (eval.Value, error) {
	kv, err := mvcc.Get(v.r, key, v.rev)
	return eval.Value{KV: kv}, err
}

func (v *view) Scan(start, end []byte, visit func(*mvccpb.KeyValue) (bool, error)) error {
	it, err := mvcc.NewIterator(v.r, start, end, v.rev)
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		kv, kerr := it.KeyValue(false)
		if kerr != nil {
			err = kerr
			break
		}
		more, verr := visit(kv)
		if verr != nil || !more {
			err = verr
			break
		}
	}
	return errors.Join(err, it.Close())
}

func (v *view) ReadAt(o mvcc.RangeOptions) (mvcc.RangeResult, error) { return mvcc.Range(v.r, o) }

// LeaseExists knows of no lease: this version grants none.
func (v *view) LeaseExists(ids.LeaseID) bool { return false }

func (v *view) Revision() ids.Revision  { return v.rev }
func (v *view) Compacted() ids.Revision { return v.compacted }

// evaluate evaluates a request as a read, at a revision obtained now.
func (c *call) evaluate(serializable bool, spans []span, run func(eval.View) eval.Result) (eval.Result, error) {
	for {
		rev, err := c.point(serializable, spans)
		if err != nil {
			return eval.Result{}, err
		}
		v := &view{r: c.s.b.Reader(), rev: rev, compacted: c.s.b.View().CompactRevision}
		res := run(v)
		// All iterators were opened before this. Versions at rev, or at a revision that the request names, may have been missing if
		// there was a compaction since.
		compacted, err := c.compacted(spans)
		if err != nil {
			return eval.Result{}, err
		}
		if compacted == v.compacted && rev >= compacted {
			if res.Err == nil {
				res.SetRevision(rev)
			}
			return res, res.Err
		}
		if err := c.over(); err != nil {
			return eval.Result{}, err
		}
	}
}
