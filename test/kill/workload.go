package main

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const (
	keyPrefix = "/kill/"
	keyEnd    = "/kill0"
)

func keyName(i int) string { return fmt.Sprintf("%sk%03d", keyPrefix, i) }

// splitKeys cuts the keys into ranges of nearly equal numbers of keys.
func splitKeys(keys, ranges int) []string {
	var out []string
	for i := 1; i < ranges; i++ {
		out = append(out, keyName(i*keys/ranges))
	}
	return out
}

func (c *client) key() string { return keyName(c.rand.IntN(c.r.o.keys)) }

// span draws the ends of a span of a few neighbouring keys, most often of several ranges.
func (c *client) span() (from, to string) {
	i := c.rand.IntN(c.r.o.keys)
	return keyName(i), keyName(i + 1 + c.rand.IntN(4))
}

// value is different for every put of a run: that makes ambiguous writes easy to tell apart.
func (c *client) value() string {
	c.n++
	return fmt.Sprintf("%d.%d", c.id, c.n)
}

func putOp(k, v string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(k), Value: []byte(v), PrevKv: true}}}
}

func rangeOp(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(k), RangeEnd: []byte(end)}}}
}

func deleteOp(k, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(end), PrevKv: true}}}
}

func modIs(k string, rev int64) *pb.Compare {
	return &pb.Compare{Key: []byte(k), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
}

func versionAbove(k string, v int64) *pb.Compare {
	return &pb.Compare{Key: []byte(k), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_Version{Version: v}}
}

// next draws a request.
func (c *client) next() any {
	r := c.rand
	switch p := r.IntN(100); {
	case p < 20:
		return &pb.PutRequest{Key: []byte(c.key()), Value: []byte(c.value()), PrevKv: r.IntN(3) == 0}
	case p < 34: // compare-and-swap as kube-apiserver does it
		k := c.key()
		return &pb.TxnRequest{Compare: []*pb.Compare{modIs(k, c.seen[k])}, Success: []*pb.RequestOp{putOp(k, c.value())}, Failure: []*pb.RequestOp{rangeOp(k, "")}}
	case p < 38:
		k := c.key()
		return &pb.TxnRequest{Compare: []*pb.Compare{versionAbove(k, r.Int64N(3))}, Success: []*pb.RequestOp{putOp(k, c.value())}, Failure: []*pb.RequestOp{putOp(k, c.value())}}
	case p < 50:
		return c.severalKeys()
	case p < 54:
		return &pb.DeleteRangeRequest{Key: []byte(c.key()), PrevKv: r.IntN(2) == 0}
	case p < 57:
		from, to := c.span()
		return &pb.DeleteRangeRequest{Key: []byte(from), RangeEnd: []byte(to), PrevKv: r.IntN(2) == 0}
	case p < 59:
		return &pb.PutRequest{Key: []byte(c.key()), IgnoreValue: true}
	default:
		return c.nextRead(p)
	}
}

// severalKeys draws a transaction over keys that are likely to be in several ranges.
func (c *client) severalKeys() any {
	r := c.rand
	keys := r.Perm(c.r.o.keys)[:min(c.r.o.keys, 2+r.IntN(3))]
	t := &pb.TxnRequest{}
	for n, i := range keys {
		switch {
		case n > 0 && r.IntN(4) == 0:
			t.Success = append(t.Success, deleteOp(keyName(i), ""))
		case n > 0 && r.IntN(4) == 0:
			t.Success = append(t.Success, rangeOp(keyName(i), ""))
		default:
			t.Success = append(t.Success, putOp(keyName(i), c.value()))
		}
	}
	if r.IntN(2) == 0 {
		a := keyName(keys[0])
		t.Compare = append(t.Compare, modIs(a, c.seen[a]))
		if r.IntN(2) == 0 {
			from, to := c.span()
			t.Compare = append(t.Compare, &pb.Compare{Key: []byte(from), RangeEnd: []byte(to), Target: pb.Compare_CREATE, Result: pb.Compare_LESS,
				TargetUnion: &pb.Compare_CreateRevision{CreateRevision: 1 + c.r.newest.Load()}})
		}
		for _, i := range keys {
			t.Failure = append(t.Failure, rangeOp(keyName(i), ""))
		}
	}
	if r.IntN(4) == 0 { // the same, one level down
		return &pb.TxnRequest{
			Compare: []*pb.Compare{versionAbove(keyName(keys[0]), 0)},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}, rangeOp(keyPrefix, keyEnd)},
			Failure: []*pb.RequestOp{putOp(keyName(keys[0]), c.value())},
		}
	}
	return t
}

// nextRead draws a request that only reads; p is in [59, 100).
func (c *client) nextRead(p int) any {
	r := c.rand
	from, to := c.span()
	switch {
	case p < 66:
		return &pb.RangeRequest{Key: []byte(keyPrefix), RangeEnd: []byte(keyEnd), Limit: r.Int64N(6)}
	case p < 69:
		return &pb.RangeRequest{
			Key: []byte(keyPrefix), RangeEnd: []byte(keyEnd), Limit: r.Int64N(6), KeysOnly: r.IntN(2) == 0, CountOnly: r.IntN(3) == 0,
			SortTarget: pb.RangeRequest_SortTarget(r.IntN(5)), SortOrder: pb.RangeRequest_SortOrder(r.IntN(3)),
			MinModRevision: max(0, c.r.newest.Load()-r.Int64N(100)),
		}
	case p < 76:
		return &pb.RangeRequest{Key: []byte(c.key()), Serializable: true}
	case p < 79:
		return &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(to), Serializable: true}
	case p < 84: // the past, and sometimes the future
		rev := c.r.newest.Load() + 2 - r.Int64N(60)
		return &pb.RangeRequest{Key: []byte(keyPrefix), RangeEnd: []byte(keyEnd), Revision: max(1, rev), Serializable: r.IntN(3) == 0}
	case p < 88:
		return &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(from, to), rangeOp(c.key(), "")}}
	default:
		return &pb.RangeRequest{Key: []byte(c.key())}
	}
}
