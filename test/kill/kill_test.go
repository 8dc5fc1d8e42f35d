package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/braidkv/braid/sim/check"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--faults=quake", "quake"}, {"--keys=3 --ranges=4", "--keys"}, {"--nodes=0", "--nodes"}, {"--duration=x", "duration"},
	} {
		if _, err := parse(strings.Fields(tc.args)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.args, err)
		}
	}
	o, err := parse([]string{"--faults", "none"})
	if err != nil || len(o.faults) != 0 || o.seed == 0 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestSplitKeys(t *testing.T) {
	s := splitKeys(24, 16)
	if len(s) != 15 || !slices.IsSorted(s) || len(slices.Compact(slices.Clone(s))) != 15 {
		t.Fatal(s)
	}
}

// TestRequestsAreValid draws many requests and looks for what a store refuses before it looks at its state,
// which would make a run show less than it seems to.
func TestRequestsAreValid(t *testing.T) {
	r := &run{o: options{keys: 24}}
	c := &client{r: r, rand: rand.New(rand.NewPCG(1, 2)), seen: map[string]int64{}}
	kinds := map[string]int{}
	for range 20000 {
		switch q := c.next().(type) {
		case *pb.PutRequest:
			kinds["put"]++
		case *pb.DeleteRangeRequest:
			kinds["delete"]++
		case *pb.RangeRequest:
			kinds["range"]++
		case *pb.TxnRequest:
			kinds["txn"]++
			if k := twice(q.Success, map[string]bool{}); k != "" {
				t.Fatalf("key %s is written twice in %v", k, q)
			}
		}
	}
	for _, k := range []string{"put", "delete", "range", "txn"} {
		if kinds[k] < 500 {
			t.Errorf("only %d of kind %s", kinds[k], k)
		}
	}
}

func twice(ops []*pb.RequestOp, seen map[string]bool) string {
	for _, op := range ops {
		var k string
		switch {
		case op.GetRequestPut() != nil:
			k = string(op.GetRequestPut().Key)
		case op.GetRequestDeleteRange() != nil:
			k = string(op.GetRequestDeleteRange().Key)
		case op.GetRequestTxn() != nil:
			if k := twice(op.GetRequestTxn().Success, seen); k != "" {
				return k
			}
			continue
		default:
			continue
		}
		if seen[k] {
			return k
		}
		seen[k] = true
	}
	return ""
}

func TestVerdict(t *testing.T) {
	if verdict(&check.Report{Writes: 1000, Reads: 1000}) != nil {
		t.Error("a clean report is not clean")
	}
	if verdict(&check.Report{}) == nil {
		t.Error("an empty run shows something")
	}
	if verdict(&check.Report{Writes: 1000, Reads: 1000, Faults: []check.Fault{{Name: check.StaleRead}}}) == nil {
		t.Error("a fault is no fault")
	}
}
