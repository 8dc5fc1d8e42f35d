package check

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// explain finds, for the revisions that no answered write owns, the ambiguous writes that made them: a
// maximum matching, each write used at most once, each only above what was answered before it was sent.
func (c *checker) explain() {
	var open []int64
	for i, o := range c.owner {
		if rev := c.h.Base + 1 + int64(i); o < 0 && len(c.line.at(rev)) > 0 {
			open = append(open, rev)
		}
	}
	if len(open) == 0 {
		return
	}
	ix := c.index(Ambiguous)
	m := &matching{byOp: map[int]int{}, edges: make([][]int, len(open))}
	for n, rev := range open {
		for _, i := range ix.candidates(c.line.at(rev)) {
			if c.order.before(c.h.Ops[i].Invoke, c.h.Base) < rev && c.makes(i, rev) {
				m.edges[n] = append(m.edges[n], i)
			}
		}
	}
	unmatched := m.solve()
	for op, n := range m.byOp {
		c.claimed[op] = open[n]
	}
	c.report.Happened = len(m.byOp)
	if len(unmatched) == 0 {
		return
	}
	failed, answered := c.index(Failed), c.index(OK)
	for _, n := range unmatched {
		c.blame(open[n], failed, answered, ix)
	}
}

// blame names the fault of a revision that nothing explains.
func (c *checker) blame(rev int64, failed, answered, ambiguous index) {
	evs := c.line.at(rev)
	for _, i := range failed.candidates(evs) {
		if c.makes(i, rev) {
			c.fault(Fault{Name: FailedWriteApplied, Op: i, Revision: rev, Text: describe(c.h.Ops[i].Request)})
			return
		}
	}
	for _, ix := range []index{answered, ambiguous} {
		for _, i := range ix.candidates(evs) {
			_, used := c.claimed[i]
			if c.makes(i, rev) && (used || c.h.Ops[i].Outcome == OK) {
				c.fault(Fault{Name: AppliedTwice, Op: i, Revision: rev, Text: describe(c.h.Ops[i].Request)})
				return
			}
		}
	}
	c.fault(Fault{Name: PhantomWrite, Op: -1, Revision: rev, Text: fmt.Sprint(evs)})
}

// makes tells whether a request, run on the state below rev, makes exactly the events of rev.
func (c *checker) makes(i int, rev int64) bool {
	res, err := evaluate(c.line, rev-1, 0, c.h.Ops[i].Request)
	if err != nil || res.refusal != NotJudged {
		return false
	}
	got := c.line.at(rev)
	match, inOrder := compareEvents(res.events, got)
	return match == len(got) && match == len(res.events) && inOrder
}

// index finds writes by what they could have written, so that few have to be replayed.
type index struct {
	byPut    map[[2]string][]int // key and value
	byIgnore map[string][]int    // key, where the value is kept
	deleting []int
}

func (c *checker) index(o Outcome) index {
	ix := index{byPut: map[[2]string][]int{}, byIgnore: map[string][]int{}}
	for i := range c.h.Ops {
		if op := &c.h.Ops[i]; op.Outcome == o && mayWrite(op.Request) {
			ix.add(i, op.Request)
		}
	}
	return ix
}

func (ix *index) add(i int, req any) {
	switch r := req.(type) {
	case *pb.PutRequest:
		if r.IgnoreValue {
			ix.byIgnore[string(r.Key)] = addOnce(ix.byIgnore[string(r.Key)], i)
			return
		}
		k := [2]string{string(r.Key), string(r.Value)}
		ix.byPut[k] = addOnce(ix.byPut[k], i)
	case *pb.DeleteRangeRequest:
		ix.deleting = addOnce(ix.deleting, i)
	case *pb.TxnRequest:
		for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
			for _, op := range ops {
				if w := writeOf(op); w != nil {
					ix.add(i, w)
				}
			}
		}
	}
}

func addOnce(s []int, i int) []int {
	if len(s) > 0 && s[len(s)-1] == i {
		return s
	}
	return append(s, i)
}

// candidates are the writes that could have made the first put among the events, or the first deletion if
// there is none.
func (ix *index) candidates(evs []Event) []int {
	for _, e := range evs {
		if !e.Delete {
			var out []int
			out = append(out, ix.byPut[[2]string{e.Key, e.Value}]...)
			return append(out, ix.byIgnore[e.Key]...)
		}
	}
	return ix.deleting
}

// matching assigns requests to revisions: Kuhn's augmenting paths over few, short lists.
type matching struct {
	edges [][]int     // per open revision: requests that could have made it
	byOp  map[int]int // request to open revision
}

// solve finds a maximum matching and returns the open revisions left over.
func (m *matching) solve() (unmatched []int) {
	for n := range m.edges {
		if !m.augment(n, map[int]bool{}) {
			unmatched = append(unmatched, n)
		}
	}
	return unmatched
}

func (m *matching) augment(n int, seen map[int]bool) bool {
	for _, op := range m.edges[n] {
		if seen[op] {
			continue
		}
		seen[op] = true
		if other, taken := m.byOp[op]; !taken || m.augment(other, seen) {
			m.byOp[op] = n
			return true
		}
	}
	return false
}
