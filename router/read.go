package router

import (
	"bytes"
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

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
	ctx, cancel := s.bound(ctx)
	defer cancel()
	it, at, rev, err := s.open(ctx, r)
	if err != nil {
		return nil, toClient(err)
	}
	resp, err := answer(r, it, at)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, toClient(err)
	}
	resp.Header = s.header(rev)
	return resp, nil
}

// open finds the revisions of a range request (the one to be read and the store's) and opens an iterator on its span. The iterator is
// opened before compaction is looked at, so that it cannot lose versions; a request that names no revision is not
// told of a compaction but starts again.
func (s *Server) open(ctx context.Context, r *pb.RangeRequest) (it *mvcc.Iterator, at, rev ids.Revision, err error) {
	sp := spanOf(r.Key, r.RangeEnd)
	for {
		rev, err = s.point(ctx, r.Serializable, []span{sp})
		if err != nil {
			return nil, 0, 0, err
		}
		at = rev
		if r.Revision > 0 {
			at = ids.Revision(r.Revision)
		}
		if at > rev {
			return nil, 0, 0, rpctypes.ErrGRPCFutureRev
		}
		start, end := sp.start, sp.end
		if len(end) > 0 && bytes.Compare(start, end) >= 0 {
			end = append(bytes.Clone(start), 0)
			start = end // nothing
		}
		if it, err = mvcc.NewIterator(s.b.Reader(), start, end, at); err != nil {
			return nil, 0, 0, err
		}
		if at >= s.b.View().CompactRevision {
			return it, at, rev, nil
		}
		if err := it.Close(); err != nil {
			return nil, 0, 0, err
		}
		if r.Revision > 0 {
			return nil, 0, 0, rpctypes.ErrGRPCCompacted
		}
	}
}

// answer makes the answer to a range request, header aside.
func answer(r *pb.RangeRequest, it *mvcc.Iterator, at ids.Revision) (*pb.RangeResponse, error) {
	o := mvcc.RangeOptions{Rev: at, CountOnly: r.CountOnly}
	if r.CountOnly {
		res, err := o.Collect(it)
		return &pb.RangeResponse{Count: res.Count}, err
	}
	o.KeysOnly = r.KeysOnly && r.SortTarget != pb.RangeRequest_VALUE
	if !eval.DefaultOrder(r) {
		// All of it is needed to find out which come first.
		o.NoCount = true
		res, err := o.Collect(it)
		if err != nil {
			return nil, err
		}
		return eval.Arrange(r, res.KVs), nil
	}
	o.Limit = int(min(max(r.Limit, 0), 1<<31))
	o.MinMod, o.MaxMod = ids.Revision(r.MinModRevision), ids.Revision(r.MaxModRevision)
	o.MinCreate, o.MaxCreate = ids.Revision(r.MinCreateRevision), ids.Revision(r.MaxCreateRevision)
	res, err := o.Collect(it)
	return &pb.RangeResponse{Kvs: res.KVs, Count: res.Count, More: res.More}, err
}

// RangeStream serves KV.RangeStream: one revision, chunks in the order of keys; header, count and more come with the last.
func (s *Server) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if err := check.RangeStream(r); err != nil {
		return err
	}
	ctx, cancel := s.bound(stream.Context())
	it, at, rev, err := s.open(ctx, r)
	cancel()
	if err != nil {
		return toClient(err)
	}
	err = s.stream(r, it, at, rev, func(resp *pb.RangeResponse) error {
		return stream.Send(&pb.RangeStreamResponse{RangeResponse: resp})
	})
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	return toClient(err)
}

// stream sends chunks of about MaxRequestBytes; memory is bounded by one of them.
func (s *Server) stream(r *pb.RangeRequest, it *mvcc.Iterator, at, rev ids.Revision, send func(*pb.RangeResponse) error) error {
	if r.CountOnly {
		resp, err := answer(r, it, at)
		if err != nil {
			return err
		}
		resp.Header = s.header(rev)
		return send(resp)
	}
	out, size, n := &pb.RangeResponse{}, 0, int64(0)
	ok := it.First()
	for ; ok && (r.Limit <= 0 || n < r.Limit); ok = it.Next() {
		kv, err := it.KeyValue(r.KeysOnly)
		if err != nil {
			return err
		}
		if size > 0 && size+proto.Size(kv) > s.cfg.MaxRequestBytes {
			if err := send(out); err != nil {
				return err
			}
			out, size = &pb.RangeResponse{}, 0
		}
		out.Kvs = append(out.Kvs, kv)
		size += proto.Size(kv)
		n++
	}
	out.More, out.Count = ok, n
	for ; ok; ok = it.Next() {
		out.Count++
	}
	out.Header = s.header(rev)
	return send(out)
}

// view is the state at a revision, for evaluating what changes nothing.
type view struct {
	r         mvcc.Reader
	rev       ids.Revision
	compacted ids.Revision
}

func (v *view) Get(key []byte) (eval.Value, error) {
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
func (s *Server) evaluate(ctx context.Context, serializable bool, spans []span, run func(eval.View) eval.Result) (eval.Result, error) {
	for {
		rev, err := s.point(ctx, serializable, spans)
		if err != nil {
			return eval.Result{}, err
		}
		v := &view{r: s.b.Reader(), rev: rev, compacted: s.b.View().CompactRevision}
		if rev < v.compacted {
			continue
		}
		res := run(v)
		// Versions at rev may have been removed while they were read. What was read of a revision that the request named is
		// checked against the same compaction.
		if c := s.b.View().CompactRevision; c != v.compacted {
			continue
		}
		if res.Err != nil {
			return res, res.Err
		}
		res.SetRevision(rev)
		return res, nil
	}
}
