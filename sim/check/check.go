package check

import (
	"fmt"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// checker is one run of Check.
type checker struct {
	h      *History
	report *Report
	line   *timeline
	order  *bounds            // over all nodes
	nodes  map[string]*bounds // per process
	// owner is the answered write of each revision; index is revision - Base - 1, -1 for none.
	owner []int
	// claimed maps an ambiguous write to the revision it explains.
	claimed map[int]int64
	floors  []floor
}

// floor is a compaction: no read sent after it returned may see below it, none that returned before it was sent may be
// refused because of it.
type floor struct {
	rev, invoke, ret int64
}

// Check judges a history. The report is clean if the history is possible for a linearizable store with dense
// revisions whose final content is the given one. History.Events may be in any order and are not kept.
func Check(h History) *Report {
	h.Ops = slices.Clone(h.Ops) // malformed ones are marked in the copy
	c := &checker{h: &h, report: &Report{}, nodes: map[string]*bounds{}, claimed: map[int]int64{}}
	if h.Final < h.Base {
		c.fault(Fault{Name: LostRevision, Op: -1, Revision: h.Base, Text: fmt.Sprintf("the final history ends at %d, below the base", h.Final)})
		return c.report
	}
	c.report.Revisions = h.Final - h.Base
	c.line = newTimeline(&h, c.fault)
	c.owner = make([]int, len(c.line.events))
	for i := range c.owner {
		c.owner[i] = -1
	}
	c.collect()
	c.assign()
	c.explain()
	c.bound()
	for i := range h.Ops {
		switch h.Ops[i].Outcome {
		case OK:
			c.checkAnswered(i)
		case Failed:
			c.checkRefused(i)
		}
	}
	return c.report
}

func (c *checker) fault(f Fault) {
	most := c.h.MaxFaults
	if most == 0 {
		most = 20
	}
	if len(c.report.Faults) >= most {
		c.report.More++
		return
	}
	c.report.Faults = append(c.report.Faults, f)
}

// collect counts the requests, sorts out malformed ones and gathers what real time needs.
func (c *checker) collect() {
	if c.h.Compacted > 0 {
		c.floors = append(c.floors, floor{rev: c.h.Compacted, invoke: math.MinInt64, ret: math.MinInt64})
	}
	for i := range c.h.Ops {
		op := &c.h.Ops[i]
		if op.Outcome == OK {
			if _, ok := header(op.Response); !ok || !paired(op.Request, op.Response) {
				c.fault(Fault{Name: BadHistory, Op: i, Text: fmt.Sprintf("%T is answered by %T, or without header", op.Request, op.Response)})
				op.Outcome = Ambiguous
			}
		}
		if op.Outcome != Ambiguous && op.Return < op.Invoke {
			c.fault(Fault{Name: BadHistory, Op: i, Text: "returned before it was sent"})
		}
		switch {
		case op.Outcome == Failed:
			c.report.Refused++
		case op.Outcome == Ambiguous && mayWrite(op.Request):
			c.report.Ambiguous++
		case op.Outcome == OK && wrote(op.Response):
			c.report.Writes++
		case op.Outcome == OK:
			c.report.Reads++
		}
		if r, ok := op.Request.(*pb.CompactionRequest); ok && op.Outcome != Failed {
			f := floor{rev: r.Revision, invoke: op.Invoke, ret: op.Return}
			if op.Outcome == Ambiguous {
				f.ret = math.MaxInt64
			}
			c.floors = append(c.floors, f)
		}
	}
}

// assign gives each revision to the answered write that names it.
func (c *checker) assign() {
	var answered []stamp
	perNode := map[string][]stamp{}
	for i := range c.h.Ops {
		op := &c.h.Ops[i]
		if op.Outcome != OK {
			continue
		}
		rev, _ := header(op.Response)
		if rev > c.h.Final {
			c.fault(Fault{Name: LostRevision, Op: i, Revision: rev, Text: fmt.Sprintf("answered, but the final history ends at %d", c.h.Final)})
			continue
		}
		answered = append(answered, stamp{op.Return, rev})
		if op.Node != "" {
			perNode[op.Node] = append(perNode[op.Node], stamp{op.Return, rev})
		}
		if !wrote(op.Response) {
			continue
		}
		if rev <= c.h.Base {
			c.fault(Fault{Name: RealTimeOrder, Op: i, Revision: rev, Text: fmt.Sprintf("a write, but the store was at %d before the first request", c.h.Base)})
			continue
		}
		slot := &c.owner[rev-c.h.Base-1]
		if *slot >= 0 {
			c.fault(Fault{Name: DuplicateRevision, Op: i, Revision: rev, Text: fmt.Sprintf("request %d was answered with it too", *slot)})
			continue
		}
		*slot = i
	}
	c.order = newBounds(answered, nil)
	for n, s := range perNode {
		c.nodes[n] = newBounds(s, nil)
	}
}

// bound adds the answered writes' own revisions to the bounds. What explain claimed for ambiguous writes is left
// out: it is one possible assignment, and what is judged must hold in all of them.
func (c *checker) bound() {
	var sent []stamp
	for i, o := range c.owner {
		if o >= 0 {
			sent = append(sent, stamp{c.h.Ops[o].Invoke, c.h.Base + 1 + int64(i)})
		}
	}
	c.order = newBounds(c.order.returns, sent)
}

func (c *checker) checkAnswered(i int) {
	op := &c.h.Ops[i]
	rev, _ := header(op.Response)
	if rev > c.h.Final {
		return // reported
	}
	low := c.order.before(op.Invoke, c.h.Base)
	if wrote(op.Response) {
		if rev <= c.h.Base || c.owner[rev-c.h.Base-1] != i {
			return // reported
		}
		if rev <= low {
			c.fault(Fault{Name: RealTimeOrder, Op: i, Revision: rev, Text: fmt.Sprintf("%s, but revision %d was answered before it was sent", describe(op.Request), low)})
		}
		c.checkWrite(i, rev)
		return
	}
	if serializable(op.Request) {
		if n := c.nodes[op.Node]; op.Node != "" {
			if seen := n.before(op.Invoke, 0); rev < seen {
				c.fault(Fault{Name: NodeWentBack, Op: i, Revision: rev, Text: fmt.Sprintf("%s: node %s answered with revision %d before", describe(op.Request), op.Node, seen)})
			}
		}
	} else if rev < low {
		c.fault(Fault{Name: StaleRead, Op: i, Revision: rev, Text: fmt.Sprintf("%s, but revision %d was answered before it was sent", describe(op.Request), low)})
	}
	c.checkRead(i, rev)
}

// checkRead replays a request without effect on the state of the revision it names.
func (c *checker) checkRead(i int, rev int64) {
	op := &c.h.Ops[i]
	if rev < c.h.Base {
		if serializable(op.Request) {
			return // older than what the history knows: nothing to compare with
		}
		return // reported as stale
	}
	asked := oldest(op.Request, op.Response)
	if asked > 0 && !serializable(op.Request) {
		for _, f := range c.floors {
			if f.ret < op.Invoke && asked < f.rev {
				c.fault(Fault{Name: ReadBelowCompaction, Op: i, Revision: asked, Text: fmt.Sprintf("%s was answered after the compaction at %d", describe(op.Request), f.rev)})
				return
			}
		}
	}
	if asked > 0 && asked < c.h.Base {
		return // older than what the history knows
	}
	if r, ok := op.Request.(*pb.CompactionRequest); ok {
		if r.Revision > rev {
			c.fault(Fault{Name: WrongAnswer, Op: i, Revision: rev, Text: fmt.Sprintf("a compaction at %d, which is in the future, was accepted", r.Revision)})
		}
		return
	}
	res, err := evaluate(c.line, rev, 0, op.Request)
	if err != nil {
		c.fault(Fault{Name: BadHistory, Op: i, Text: err.Error()})
		return
	}
	name := WrongRead
	if mayWrite(op.Request) {
		name = WrongAnswer
	}
	switch {
	case res.refusal != NotJudged:
		c.fault(Fault{Name: name, Op: i, Revision: rev, Text: fmt.Sprintf("%s was answered, want a refusal (%v)", describe(op.Request), res.refusal)})
	case len(res.events) > 0:
		c.fault(Fault{Name: name, Op: i, Revision: rev, Text: fmt.Sprintf("%s claims to have had no effect, but in this state it has", describe(op.Request))})
	default:
		if d := difference(op.Request, res, op.Response); d != "" {
			c.fault(Fault{Name: name, Op: i, Revision: rev, Text: fmt.Sprintf("%s: %s", describe(op.Request), d)})
		}
	}
}

// checkWrite replays a write on the state below its revision.
func (c *checker) checkWrite(i int, rev int64) {
	op := &c.h.Ops[i]
	res, err := evaluate(c.line, rev-1, 0, op.Request)
	if err != nil {
		c.fault(Fault{Name: BadHistory, Op: i, Text: err.Error()})
		return
	}
	got := c.line.at(rev)
	if len(got) == 0 {
		return // a gap, reported
	}
	match, inOrder := compareEvents(res.events, got)
	bad := func(n Name) {
		c.fault(Fault{Name: n, Op: i, Revision: rev, Text: fmt.Sprintf("%s makes %v, but the store has %v", describe(op.Request), res.events, got)})
	}
	switch {
	case match == len(res.events) && match == len(got):
		if !inOrder {
			bad(WrongSub)
		}
	case match == 0 && !sharesKey(op.Request, got):
		bad(LostWrite)
	case match == len(got):
		bad(TornWrite)
	default:
		bad(WrongEffect)
	}
	if res.refusal != NotJudged {
		c.fault(Fault{Name: WrongAnswer, Op: i, Revision: rev, Text: fmt.Sprintf("%s was answered, want a refusal (%v)", describe(op.Request), res.refusal)})
		return
	}
	if d := difference(op.Request, res, op.Response); d != "" {
		c.fault(Fault{Name: WrongAnswer, Op: i, Revision: rev, Text: fmt.Sprintf("%s: %s", describe(op.Request), d)})
	}
}

// compareEvents counts the events that both lists have; inOrder tells whether they are in one order, as far as known.
func compareEvents(want, got []Event) (match int, inOrder bool) {
	byKey := make(map[string]int, len(want))
	for n, e := range want {
		byKey[e.Key] = n
	}
	inOrder = true
	for n, g := range got {
		at, ok := byKey[g.Key]
		if !ok {
			continue
		}
		w := want[at]
		if w.Delete != g.Delete || w.Value != g.Value || w.Lease != g.Lease {
			continue
		}
		match++
		if g.Sub >= 0 && at != n {
			inOrder = false
		}
	}
	return match, inOrder
}

// sharesKey tells whether one of the events is of a key that the request could write.
func sharesKey(req any, evs []Event) bool {
	for _, e := range evs {
		if touches(req, e.Key) {
			return true
		}
	}
	return false
}

func touches(req any, key string) bool {
	switch r := req.(type) {
	case *pb.PutRequest:
		return string(r.Key) == key
	case *pb.DeleteRangeRequest:
		return span{string(r.Key), string(r.RangeEnd)}.has(key)
	case *pb.TxnRequest:
		for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
			for _, op := range ops {
				if inner := writeOf(op); inner != nil && touches(inner, key) {
					return true
				}
			}
		}
	}
	return false
}

// writeOf is the write, or the nested transaction, inside an operation; nil if it is neither.
func writeOf(op *pb.RequestOp) any {
	switch o := op.Request.(type) {
	case *pb.RequestOp_RequestPut:
		return o.RequestPut
	case *pb.RequestOp_RequestDeleteRange:
		return o.RequestDeleteRange
	case *pb.RequestOp_RequestTxn:
		return o.RequestTxn
	}
	return nil
}
