package ranges

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/range/eval"
)

// model is a store that does one write after the other: what the range must look like from outside.
type model struct {
	kvs     map[string]*mvccpb.KeyValue
	rev     ids.Revision
	history []map[string]*mvccpb.KeyValue // by revision
}

func newModel() *model {
	return &model{kvs: map[string]*mvccpb.KeyValue{}, rev: 1, history: make([]map[string]*mvccpb.KeyValue, 2)}
}

func (m *model) apply(rev ids.Revision, ops []op) {
	for _, o := range ops {
		if o.delete {
			delete(m.kvs, string(o.key))
			continue
		}
		kv := &mvccpb.KeyValue{
			Key: bytes.Clone(o.key), Value: bytes.Clone(o.value), Lease: int64(o.lease), ModRevision: int64(rev), CreateRevision: int64(rev), Version: 1,
		}
		if old := m.kvs[string(o.key)]; old != nil {
			kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		}
		m.kvs[string(o.key)] = kv
	}
	m.rev = rev
	m.history = append(m.history, maps.Clone(m.kvs))
}

// model as eval.View.

func (m *model) Get(key []byte, _ bool) (eval.Value, error) {
	return eval.Value{KV: m.kvs[string(key)]}, nil
}

func (m *model) Scan(start, end []byte, visit func(*mvccpb.KeyValue) (bool, error)) error {
	for _, k := range slices.Sorted(maps.Keys(m.kvs)) {
		if mvcc.Contains(start, end, []byte(k)) {
			if more, err := visit(m.kvs[k]); !more || err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *model) ReadAt(mvcc.RangeOptions) (mvcc.RangeResult, error) {
	panic("no reads of the past are tested")
}
func (m *model) LeaseExists(id ids.LeaseID) bool { return id < 100 }
func (m *model) Revision() ids.Revision          { return m.rev }
func (m *model) Compacted() ids.Revision         { return 0 }

// answer is what a request is answered at the model's state, if it gets the next revision.
func (m *model) answer(q *Request) (proto.Message, []op) {
	var res eval.Result
	switch {
	case q.Put != nil:
		res = eval.Put(m, q.Put)
	case q.Delete != nil:
		res = eval.DeleteRange(m, q.Delete)
	default:
		res = eval.Txn(m, q.Txn)
	}
	var ops []op
	for _, w := range res.Writes {
		if w.PrevKV != nil {
			w.PrevKV(m.kvs[string(w.Key)])
		}
		ops = append(ops, op{key: w.Key, value: w.Value, lease: w.Lease, sub: w.Sub, delete: w.Delete})
	}
	res.SetRevision(m.rev + 1)
	switch {
	case res.Put != nil:
		return res.Put, ops
	case res.Delete != nil:
		return res.Delete, ops
	case res.Txn != nil:
		return res.Txn, ops
	}
	return &pb.PutResponse{}, nil
}

// history is every write that the logs contain, by revision from 2 on, worked out from nothing but the logs.
func (c *cluster) history(log []logItem) (revs [][]op, err error) {
	seqs := map[ids.Seq][]op{}
	prepares := map[ids.TxnID][]op{}
	for _, it := range log {
		if len(it.data) == 0 {
			continue
		}
		kind, err := payloadKind(it.data)
		if err != nil {
			return nil, err
		}
		if kind == kindPrepare {
			p, err := decodePrepare(it.data)
			if err != nil {
				return nil, err
			}
			var ops []op
			for _, w := range p.writes {
				ops = append(ops, op{key: w.Key, value: w.Value, lease: ids.LeaseID(w.Lease), sub: uint32(w.Sub), delete: w.Delete})
			}
			if _, ok := prepares[p.txn]; !ok {
				prepares[p.txn] = ops
			}
			continue
		}
		w, err := decodeWrites(it.data)
		if err != nil {
			return nil, err
		}
		rd := opReader{b: w.body}
		for s := w.first; s <= w.last(); s++ {
			var o op
			var ops []op
			for rd.begin(); rd.next(&o); {
				ops = append(ops, o)
			}
			if _, ok := seqs[s]; ok {
				return nil, fmt.Errorf("seq %d is in the log twice", s)
			}
			seqs[s] = ops
		}
	}
	for _, st := range c.order.states {
		for _, it := range st.items.GetItems() {
			if d := it.GetDecision(); d.GetCommit() {
				revs = append(revs, prepares[txnID(d.Txn)])
			}
			if s := it.GetSeqs(); s != nil {
				voids := s.Voids
				for q := s.From + 1; q <= s.Through; q++ {
					if len(voids) > 0 && voids[0].Seq == q {
						voids = voids[1:]
						continue
					}
					if seqs[ids.Seq(q)] == nil {
						return nil, fmt.Errorf("seq %d is ordered and not in the log", q)
					}
					revs = append(revs, seqs[ids.Seq(q)])
				}
			}
		}
	}
	return revs, nil
}

// compare compares a node's engine with the model, at every revision that is not compacted.
func (m *model) compare(n *member, compacted ids.Revision) error {
	for rev := max(compacted, 2); rev <= m.rev; rev++ {
		res, err := mvcc.Range(n.eng.Data, mvcc.RangeOptions{Rev: rev})
		if err != nil {
			return err
		}
		want := m.history[rev]
		if len(res.KVs) != len(want) {
			return fmt.Errorf("node %d has %d keys at %d, want %d", n.id, len(res.KVs), rev, len(want))
		}
		for _, kv := range res.KVs {
			if !proto.Equal(kv, want[string(kv.Key)]) {
				return fmt.Errorf("node %d, revision %d: %v, want %v", n.id, rev, kv, want[string(kv.Key)])
			}
		}
	}
	return nil
}
