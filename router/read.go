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
	var resp *pb.RangeResponse
	rev, err := s.begin(ctx).list(r, func(l *listing, it *mvcc.Iterator) (err error) {
		resp, err = l.collect(it)
		return err
	})
	if err != nil {
		return nil, readError(err)
	}
	resp.Header = s.header(rev)
	return resp, nil
}

// list finds a revision for a range request, has read read it, and returns the store's revision at the time.
func (c *call) list(r *pb.RangeRequest, read func(*listing, *mvcc.Iterator) error) (ids.Revision, error) {
	it, _, rev, err := c.open(r)
	if err != nil {
		return 0, err
	}
	err = read(&listing{ctx: c.ctx, r: r}, it)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	return rev, err
}

// open finds the revisions of a range request (the one to be read and the store's) and opens an iterator on its span. The iterator is
// opened before compaction is looked at, so that it cannot lose versions; a request that names no revision is not
// told of a compaction but starts again.
func (c *call) open(r *pb.RangeRequest) (it *mvcc.Iterator, at, rev ids.Revision, err error) {
	sp := spanOf(r.Key, r.RangeEnd)
	spans := []span{sp}
	for {
		rev, err = c.point(r.Serializable, spans)
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
		it, err = c.openAt(spans, at)
		if err == nil || !errors.Is(err, errCompacted) || r.Revision > 0 {
			return it, at, rev, err
		}
		if err := c.over(); err != nil {
			return nil, 0, 0, err
		}
	}
}

// errCompacted says that the revision at hand has been compacted.
var errCompacted = errors.New("router: revision has been compacted")

// openAt opens an iterator over a span at a revision, which the local replicas have passed.
func (c *call) openAt(spans []span, at ids.Revision) (*mvcc.Iterator, error) {
	sp := spans[0]
	if len(sp.end) > 0 && bytes.Compare(sp.start, sp.end) >= 0 {
		sp.start = sp.end // nothing, but the revision is looked at
	}
	it, err := mvcc.NewIterator(c.s.b.Reader(), sp.start, sp.end, at)
	if err != nil {
		return nil, err
	}
	compacted, err := c.compacted(spans)
	if err == nil && at < compacted {
		err = errCompacted
	}
	if err != nil {
		return nil, errors.Join(err, it.Close())
	}
	return it, nil
}

// RangeStream serves KV.RangeStream: one revision, chunks in the order of keys; header, count and more come with the last.
func (s *Server) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if err := check.RangeStream(r); err != nil {
		return err
	}
	return readError(s.begin(stream.Context()).stream(r, stream.SendMsg))
}

// streamChunkBytes is about how large a chunk of a streamed list is, and streamFirstBytes the first one, so that it comes
// soon. A chunk has at least one key; memory is bounded by one chunk, and no iterator is open while it is being sent: a
// client that does not read holds up nothing. Between chunks the revision may be compacted, which ends the stream, as in etcd.
const (
	streamChunkBytes = 1 << 20
	streamFirstBytes = 64 << 10
)

func (c *call) stream(r *pb.RangeRequest, send func(m any) error) error {
	it, at, rev, err := c.open(r)
	if err != nil {
		return err
	}
	l := &listing{ctx: c.ctx, r: r, chunk: min(streamFirstBytes, c.s.cfg.MaxRequestBytes), inOrder: true}
	spans := []span{spanOf(r.Key, r.RangeEnd)}
	for {
		out, err := l.encode(it)
		if cerr := it.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
		if l.next == nil {
			out.head.Header = c.s.header(rev)
			return send(&streamedList{out})
		}
		if err := send(&streamedList{out}); err != nil {
			return err
		}
		l.chunk = min(streamChunkBytes, c.s.cfg.MaxRequestBytes)
		spans[0].start = l.next
		if it, err = c.openAt(spans, at); err != nil {
			return err
		}
	}
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
