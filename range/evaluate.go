package ranges

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/range/latch"
)

// outcome is what evaluation makes of a request.
type outcome uint8

const (
	outcomeWrite    outcome = iota // it changes something
	outcomeNothing                 // it changes nothing, or fails by state: to be read instead
	outcomeWait                    // it depends on what is not ordered yet
	outcomeTooLarge                // it changes too much at once
)

// spansOf is what a request latches. A request that reads whole spans is not evaluated on unordered writes.
func spansOf(q *Request) latch.Request {
	var s eval.Spans
	switch {
	case q.Put != nil:
		s = eval.PutSpans(q.Put)
	case q.Delete != nil:
		s = eval.DeleteSpans(q.Delete)
	case q.Txn != nil:
		s = eval.TxnSpans(q.Txn)
	case q.Lock != nil:
		return lockRequest(q.Lock)
	}
	req := latch.Request{Reads: s.Reads, Writes: s.Writes, Kind: latch.Pipelined}
	if s.Ranges {
		req.Kind = latch.Single
	}
	return req
}

// evaluate runs a request on the newest applied state and, for single keys, on the unordered writes above it. It holds
// its latches.
func (r *Replica) evaluate(p *pending) (outcome, error) {
	q := p.req
	v := &view{r: r, p: p}
	switch {
	case q.Put != nil:
		p.result = eval.Put(v, q.Put)
	case q.Delete != nil:
		p.result = eval.DeleteRange(v, q.Delete)
	default:
		p.result = eval.Txn(v, q.Txn)
	}
	res := &p.result
	p.after = 0
	switch {
	case v.err != nil:
		return 0, v.err
	case v.foreign || res.NeedOrdered:
		p.result = eval.Result{}
		return outcomeWait, nil
	case res.Err != nil || len(res.Writes) == 0:
		p.result = eval.Result{}
		if v.touched {
			p.after = r.nextSeq() - 1
		}
		return outcomeNothing, nil
	}
	size := 0
	for i := range res.Writes {
		size += len(res.Writes[i].Key) + len(res.Writes[i].Value) + 16
	}
	if size > r.cfg.Limits.MaxTxnBytes {
		p.result = eval.Result{}
		return outcomeTooLarge, nil
	}
	return outcomeWrite, nil
}

// view is what a leader evaluates a request on.
type view struct {
	r       *Replica
	p       *pending
	touched bool // an unordered write was read
	foreign bool // one was stamped unlike the request, so that it may be void though the request is not
	err     error
}

// Get is part of eval.View.
func (v *view) Get(key []byte, withValue bool) (eval.Value, error) {
	kv, err := v.applied(key, withValue)
	if err != nil {
		v.err = err
		return eval.Value{}, err
	}
	out := eval.Value{KV: kv}
	if c := v.r.leader.overlay.get(key); c != nil {
		v.touched = true
		u := c.newest
		v.foreign = v.foreign || u.gen != v.p.req.Generation || u.auth != v.p.req.AuthRevision || c.mixed()
		overlaid(&out, c)
	}
	return out, nil
}

// applied is the newest applied state of a key. What the writer remembers, or will need when the request's write is applied, is
// its own to say: between batches it knows just that.
func (v *view) applied(key []byte, withValue bool) (*mvccpb.KeyValue, error) {
	if withValue {
		return mvcc.Get(v.r.host.Data(), key, mvcc.Latest)
	}
	s, err := v.r.writer.State(key)
	if err != nil || !s.Exists() {
		return nil, err
	}
	return &mvccpb.KeyValue{
		Key: key, CreateRevision: int64(s.Create), ModRevision: int64(s.Mod), Version: s.Version, Lease: int64(s.Lease),
	}, nil
}

// overlaid puts the unordered writes to a key on top of its applied state. Its revisions are those of the future, so they are
// unknown; all else is known.
func overlaid(out *eval.Value, c *chain) {
	u := c.newest
	if u.delete {
		*out = eval.Value{}
		return
	}
	versions, created := c.versions()
	kv := &mvccpb.KeyValue{Key: u.key, Value: u.value, Lease: int64(u.lease), Version: versions}
	if created = created || out.KV == nil; !created {
		kv.Version += out.KV.Version
		kv.CreateRevision = out.KV.CreateRevision
	}
	*out = eval.Value{KV: kv, ModUnknown: true, CreateUnknown: created}
}

// Scan is part of eval.View. Nothing is unordered in the span: the request has its read latch, and is not Pipelined.
func (v *view) Scan(start, end []byte, visit func(*mvccpb.KeyValue) (bool, error)) error {
	it, err := mvcc.NewIterator(v.r.host.Data(), start, end, mvcc.Latest)
	if err != nil {
		v.err = err
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		kv, kerr := it.KeyValue(false)
		if kerr != nil {
			err = kerr
			break
		}
		if more, verr := visit(kv); verr != nil || !more {
			err = verr
			break
		}
	}
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	v.err = err
	return err
}

// ReadAt is part of eval.View.
func (v *view) ReadAt(o mvcc.RangeOptions) (mvcc.RangeResult, error) {
	res, err := mvcc.Range(v.r.host.Data(), o)
	if err != nil {
		v.err = err
	}
	return res, err
}

// LeaseExists is part of eval.View.
func (v *view) LeaseExists(id ids.LeaseID) bool { return v.r.host.LeaseExists(id) }

// Revision is part of eval.View: whatever is not applied here comes above it.
func (v *view) Revision() ids.Revision {
	o := v.r.host.OrderView()
	if o.Revision > v.r.appliedRev && v.r.front.Passed(o.Position) && !v.r.stalled() {
		v.r.appliedRev = o.Revision
	}
	return v.r.appliedRev
}

// Compacted is part of eval.View.
func (v *view) Compacted() ids.Revision { return v.r.host.OrderView().CompactRevision }
