package eval_test

import (
	"bytes"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/range/eval"
)

// store is a store of one node in memory: every key with all it ever was. It is a View of its newest state.
type store struct {
	rev, compacted ids.Revision
	keys           map[string][]version // by key, ascending revisions
	leases         map[ids.LeaseID]bool
	unordered      map[string]eval.Value
	err            error // of every read
	scanned        int   // keys visited by Scan
}

// version is what a key was from a revision on; a nil kv is a deletion.
type version struct {
	rev ids.Revision
	kv  *mvccpb.KeyValue
}

func newStore() *store {
	return &store{rev: 1, keys: map[string][]version{}, leases: map[ids.LeaseID]bool{}, unordered: map[string]eval.Value{}}
}

func (s *store) clone() *store {
	c := *s
	c.keys = maps.Clone(s.keys)
	for k, vs := range c.keys {
		c.keys[k] = slices.Clone(vs)
	}
	return &c
}

func (s *store) at(key string, rev ids.Revision) *mvccpb.KeyValue {
	vs := s.keys[key]
	for i := len(vs) - 1; i >= 0; i-- {
		if vs[i].rev <= rev {
			return vs[i].kv
		}
	}
	return nil
}

// span lists what exists in [start, end) at a revision.
func (s *store) span(start, end []byte, rev ids.Revision) (kvs []*mvccpb.KeyValue) {
	for _, k := range slices.Sorted(maps.Keys(s.keys)) {
		if kv := s.at(k, rev); kv != nil && mvcc.Contains(start, end, []byte(k)) {
			kvs = append(kvs, kv)
		}
	}
	return kvs
}

// set makes a key something at a revision: one version for each.
func (s *store) set(key string, rev ids.Revision, kv *mvccpb.KeyValue) {
	vs := s.keys[key]
	if n := len(vs); n > 0 && vs[n-1].rev == rev {
		vs = vs[:n-1]
	}
	s.keys[key] = append(vs, version{rev, kv})
}

// put writes a key at a revision on top of what it is.
func (s *store) put(key, value []byte, lease ids.LeaseID, rev ids.Revision) {
	kv := &mvccpb.KeyValue{Key: key, Value: value, Lease: int64(lease), CreateRevision: int64(rev), ModRevision: int64(rev), Version: 1}
	if before := s.at(string(key), rev); before != nil {
		kv.CreateRevision, kv.Version = before.CreateRevision, before.Version+1
	}
	s.set(string(key), rev, kv)
}

// apply does what a range does with a result: it gives the writes a revision, has them say what was there before, and fills
// it in.
func (s *store) apply(r *eval.Result) {
	if r.Err == nil && len(r.Writes) > 0 {
		s.rev++
		for _, w := range r.Writes {
			if w.PrevKV != nil {
				w.PrevKV(s.at(string(w.Key), s.rev))
			}
			if w.Delete {
				s.set(string(w.Key), s.rev, nil)
			} else {
				s.put(w.Key, w.Value, w.Lease, s.rev)
			}
		}
	}
	r.SetRevision(s.rev)
}

// with puts pairs of key and value, each at its own revision.
func (s *store) with(pairs ...string) *store {
	for i := 0; i < len(pairs); i += 2 {
		s.rev++
		s.put([]byte(pairs[i]), []byte(pairs[i+1]), 0, s.rev)
	}
	return s
}

func (s *store) Get(key []byte, withValue bool) (eval.Value, error) {
	if v, ok := s.unordered[string(key)]; ok {
		return v, s.err
	}
	kv := s.at(string(key), s.rev)
	if kv != nil && !withValue {
		kv = proto.CloneOf(kv)
		kv.Value = []byte("nobody may look at this")
	}
	return eval.Value{KV: kv}, s.err
}

func (s *store) Scan(start, end []byte, visit func(*mvccpb.KeyValue) (bool, error)) error {
	for _, kv := range s.span(start, end, s.rev) {
		s.scanned++
		if more, err := visit(kv); err != nil || !more {
			return err
		}
	}
	return s.err
}

func (s *store) ReadAt(o mvcc.RangeOptions) (res mvcc.RangeResult, err error) {
	for _, kv := range s.span(o.Start, o.End, o.Rev) {
		res.Count++
		mod, create := ids.Revision(kv.ModRevision), ids.Revision(kv.CreateRevision)
		switch {
		case o.CountOnly:
		case o.MinMod != 0 && mod < o.MinMod, o.MaxMod != 0 && mod > o.MaxMod, o.MinCreate != 0 && create < o.MinCreate, o.MaxCreate != 0 && create > o.MaxCreate:
		case o.Limit > 0 && len(res.KVs) == o.Limit:
			res.More = true
		default:
			c := &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version}
			if !o.KeysOnly {
				c.Value, c.Lease = bytes.Clone(kv.Value), kv.Lease
			}
			res.KVs = append(res.KVs, c)
		}
	}
	return res, s.err
}

func (s *store) LeaseExists(id ids.LeaseID) bool { return s.leases[id] }
func (s *store) Revision() ids.Revision          { return s.rev }
func (s *store) Compacted() ids.Revision         { return s.compacted }
