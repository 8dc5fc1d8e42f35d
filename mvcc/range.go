package mvcc

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
)

// RangeOptions say what Range reads. Zero bounds and limit do not restrict.
type RangeOptions struct {
	Start, End []byte
	Rev        ids.Revision
	Limit      int // keys returned at most, after the filters
	// KeysOnly leaves out values and, as etcd 3.7 does, leases. (etcd does not if it has to sort by value; then it
	// reads the values and drops them in the end. So must the caller.)
	KeysOnly             bool
	CountOnly            bool // nothing but the count
	NoCount              bool // the caller does not need a count beyond what is returned
	MinMod, MaxMod       ids.Revision
	MinCreate, MaxCreate ids.Revision
}

func (o *RangeOptions) filtered() bool {
	return o.MinMod != 0 || o.MaxMod != 0 || o.MinCreate != 0 || o.MaxCreate != 0
}

func (o *RangeOptions) takes(s KeyState) bool {
	return (o.MinMod == 0 || s.Mod >= o.MinMod) && (o.MaxMod == 0 || s.Mod <= o.MaxMod) &&
		(o.MinCreate == 0 || s.Create >= o.MinCreate) && (o.MaxCreate == 0 || s.Create <= o.MaxCreate)
}

// RangeResult is what Range found.
type RangeResult struct {
	KVs   []*mvccpb.KeyValue // ascending keys
	Count int64              // keys in the span, whatever limit and filters
	More  bool               // the limit cut something off
}

// Range reads a span at a revision, in key order. As in etcd, the count is that of the whole span, limit and filters
// notwithstanding, and more is about keys that the filters let through. Counting reads no values.
func Range(r Reader, o RangeOptions) (RangeResult, error) {
	it, err := NewIterator(r, o.Start, o.End, o.Rev)
	if err != nil {
		return RangeResult{}, err
	}
	res, err := o.Collect(it)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return RangeResult{}, err
	}
	return res, nil
}

// Collect is Range over an iterator that was opened before, on the options' span and revision. It leaves the iterator open.
func (o *RangeOptions) Collect(it *Iterator) (res RangeResult, err error) {
	filtered := o.filtered()
	ok := it.First()
	for ; ok && !o.CountOnly && !res.More; ok = it.Next() {
		full := o.Limit > 0 && len(res.KVs) == o.Limit
		if full && !filtered {
			res.More = true
			break
		}
		res.Count++
		s, err := it.State()
		if err != nil {
			return res, err
		}
		if filtered && !o.takes(s) {
			continue
		}
		if full {
			res.More = true
			continue
		}
		kv, err := it.keyValue(s, o.KeysOnly)
		if err != nil {
			return res, err
		}
		res.KVs = append(res.KVs, kv)
	}
	if o.NoCount && !o.CountOnly {
		return res, nil
	}
	for ; ok; ok = it.Next() {
		res.Count++
	}
	return res, nil
}

// Count counts the keys of a span at a revision. It reads no values.
func Count(r Reader, start, end []byte, rev ids.Revision) (int64, error) {
	res, err := Range(r, RangeOptions{Start: start, End: end, Rev: rev, CountOnly: true})
	return res.Count, err
}
