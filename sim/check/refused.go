package check

import (
	"fmt"
	"math"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// checkRefused asks whether some state within the request's time justifies a refusal.
func (c *checker) checkRefused(i int) {
	op := &c.h.Ops[i]
	low := c.order.before(op.Invoke, c.h.Base)
	high := min(c.order.after(op.Return)-1, c.h.Final)
	wrong := func(why string) {
		c.fault(Fault{Name: WrongRefusal, Op: i, Text: fmt.Sprintf("%s was refused (%v): %s", describe(op.Request), op.Refusal, why)})
	}
	switch op.Refusal {
	case FutureRevision:
		asked := newest(op.Request)
		if !serializable(op.Request) && asked <= low {
			wrong(fmt.Sprintf("it asked for %d, and revision %d was answered before", asked, low))
		}
	case Compacted:
		asked := oldest(op.Request, nil)
		if r, ok := op.Request.(*pb.CompactionRequest); ok {
			asked = r.Revision - 1 // a compaction at the floor itself is refused, a read is not
		}
		if asked <= 0 {
			break // as etcd's floor of a fresh store
		}
		floor := int64(math.MinInt64)
		for _, f := range c.floors {
			if f.invoke <= op.Return {
				floor = max(floor, f.rev)
			}
		}
		if asked >= floor {
			wrong(fmt.Sprintf("it asked for %d, and no compaction went above it", asked))
		}
	case KeyNotFound:
		for _, key := range ignoring(op.Request) {
			if c.absentWithin(key, low, high) {
				return
			}
		}
		wrong(fmt.Sprintf("its keys exist at all revisions from %d to %d", low, high))
	}
}

// absentWithin tells whether a key is missing at some revision in [low, high].
func (c *checker) absentWithin(key string, low, high int64) bool {
	if c.line.get(key, low) == nil {
		return true
	}
	return slices.ContainsFunc(c.line.byKey[key], func(v version) bool { return v.rev > low && v.rev <= high && v.kv == nil })
}

// newest is the highest revision that a request names, in any branch.
func newest(req any) int64 {
	switch r := req.(type) {
	case *pb.CompactionRequest:
		return r.Revision
	case *pb.RangeRequest:
		return r.Revision
	case *pb.TxnRequest:
		high := int64(0)
		for _, op := range slices.Concat(r.Success, r.Failure) {
			high = max(high, op.GetRequestRange().GetRevision())
			if t := op.GetRequestTxn(); t != nil {
				high = max(high, newest(t))
			}
		}
		return high
	}
	return 0
}

// ignoring lists the keys that a request wants to exist.
func ignoring(req any) []string {
	var keys []string
	switch r := req.(type) {
	case *pb.PutRequest:
		if r.IgnoreValue || r.IgnoreLease {
			keys = append(keys, string(r.Key))
		}
	case *pb.TxnRequest:
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if inner := writeOf(op); inner != nil {
				keys = append(keys, ignoring(inner)...)
			}
		}
	}
	return keys
}

// describe is one short line about a request.
func describe(req any) string {
	switch r := req.(type) {
	case *pb.PutRequest:
		return fmt.Sprintf("put %q=%q", r.Key, clip(string(r.Value), 24))
	case *pb.DeleteRangeRequest:
		return fmt.Sprintf("delete [%q, %q)", r.Key, r.RangeEnd)
	case *pb.RangeRequest:
		s := fmt.Sprintf("range [%q, %q)", r.Key, r.RangeEnd)
		if r.Revision != 0 {
			s += fmt.Sprintf(" at %d", r.Revision)
		}
		if r.Serializable {
			s += " serializable"
		}
		return s
	case *pb.CompactionRequest:
		return fmt.Sprintf("compact at %d", r.Revision)
	case *pb.TxnRequest:
		var parts []string
		for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
			var p []string
			for _, op := range ops {
				if w := writeOf(op); w != nil {
					p = append(p, describe(w))
				} else {
					p = append(p, describe(op.GetRequestRange()))
				}
			}
			parts = append(parts, strings.Join(p, "; "))
		}
		return fmt.Sprintf("txn (%d compares) {%s} else {%s}", len(r.Compare), parts[0], parts[1])
	}
	return fmt.Sprintf("%T", req)
}
