package check

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// ErrUndecided: the search for an order took too long.
var ErrUndecided = errors.New("no verdict within the time limit")

// ErrNoOrder: no order of the requests explains their answers.
var ErrNoOrder = errors.New("the history is not linearizable")

// Recover finds a final history for requests of which none is known, by searching with porcupine for an order in
// which all answers are right. The events it returns can be put into h for Check, which then also judges
// the serializable reads. It returns ErrNoOrder or ErrUndecided otherwise. h.Events and h.Final are not
// looked at. The time it takes can grow without bound in the number of ambiguous requests, hence the
// limit, which is wall time; a history with revisions in its answers is quick.
func Recover(h History, limit time.Duration) ([]Event, int64, error) {
	var ops []porcupine.Operation
	for i := range h.Ops {
		op := &h.Ops[i]
		o := porcupine.Operation{ClientId: max(op.Client, 0), Input: op, Call: op.Invoke, Return: op.Return}
		_, compaction := op.Request.(*pb.CompactionRequest)
		switch {
		case op.Outcome == Failed && op.Refusal == NotJudged, op.Outcome != Ambiguous && serializable(op.Request):
			continue
		case op.Outcome == OK && !paired(op.Request, op.Response):
			return nil, 0, fmt.Errorf("%T is answered by %T", op.Request, op.Response)
		case op.Outcome == Ambiguous && (mayWrite(op.Request) || compaction):
			o.Return = math.MaxInt64
		case op.Outcome == Ambiguous:
			continue
		}
		ops = append(ops, o)
	}
	start := newPoint(&h)
	model := porcupine.Model{
		Init:  func() any { return start },
		Step:  func(state, input, _ any) (bool, any) { return state.(*point).step(input.(*Op)) },
		Equal: func(a, b any) bool { return a.(*point).same(b.(*point)) },
	}
	verdict, info := porcupine.CheckOperationsVerbose(model, ops, limit)
	switch verdict {
	case porcupine.Illegal:
		return nil, 0, ErrNoOrder
	case porcupine.Unknown:
		return nil, 0, ErrUndecided
	}
	end := start
	var events []Event
	for _, partition := range info.PartialLinearizationsOperations() {
		if len(partition) == 0 {
			continue
		}
		for _, o := range upToLastAnswer(partition[0]) {
			_, next := end.step(o.Input.(*Op))
			end = next.(*point)
		}
	}
	for p := end; p != start; p = p.below {
		events = append(events, p.events...)
	}
	slices.SortStableFunc(events, func(a, b Event) int { return int(a.Revision - b.Revision) })
	return events, end.rev, nil
}

// upToLastAnswer cuts off the ambiguous requests at the end of an order: that they happened is only
// the search's way to say that nobody saw them. A refusal is an answer: it, too, saw the state.
func upToLastAnswer(order []porcupine.Operation) []porcupine.Operation {
	for n := len(order); n > 0; n-- {
		if order[n-1].Input.(*Op).Outcome != Ambiguous {
			return order[:n]
		}
	}
	return nil
}

// point is a state of the search: the store at one moment, with its past. It does not change.
type point struct {
	rev   int64
	floor int64 // last compaction
	kvs   map[string]*mvccpb.KeyValue
	keys  []string // ascending: every key that ever existed
	// events made this point out of below, which has the next lower revision (or, after a compaction, the same).
	events []Event
	below  *point
	digest [sha256.Size]byte // of the whole past, so that equal points have equal pasts
}

func newPoint(h *History) *point {
	p := &point{rev: h.Base, floor: h.Compacted, kvs: map[string]*mvccpb.KeyValue{}}
	for _, kv := range h.Initial {
		p.kvs[string(kv.Key)] = kv
	}
	p.keys = slices.Sorted(maps.Keys(p.kvs))
	return p
}

func (p *point) get(key string, rev int64) *mvccpb.KeyValue {
	for p.rev > rev && p.below != nil {
		p = p.below
	}
	return p.kvs[key]
}

func (p *point) sorted() []string { return p.keys }

func (p *point) same(o *point) bool { return p.digest == o.digest && p.rev == o.rev }

// step runs a request on the state. An answered one must fit its answer, a refused one must be refused.
func (p *point) step(op *Op) (bool, any) {
	res, err := evaluate(p, p.rev, p.floor, op.Request)
	if err != nil {
		return false, p
	}
	if op.Outcome == Failed {
		return res.refusal != NotJudged, p
	}
	if op.Outcome == Ambiguous {
		if res.refusal != NotJudged {
			return true, p
		}
		return true, p.advance(op, res)
	}
	rev, ok := header(op.Response)
	if !ok || res.refusal != NotJudged {
		return false, p
	}
	want := p.rev
	if len(res.events) > 0 {
		want++
	}
	if rev != want || difference(op.Request, res, op.Response) != "" {
		return false, p
	}
	return true, p.advance(op, res)
}

// advance is the state after a request.
func (p *point) advance(op *Op, res result) *point {
	if r, ok := op.Request.(*pb.CompactionRequest); ok {
		n := *p
		n.floor, n.events, n.below = r.Revision, nil, p
		n.digest = sha256.Sum256(binary.BigEndian.AppendUint64(append([]byte("compact"), p.digest[:]...), uint64(r.Revision)))
		return &n
	}
	if len(res.events) == 0 {
		return p
	}
	n := &point{rev: p.rev + 1, floor: p.floor, kvs: maps.Clone(p.kvs), keys: p.keys, events: res.events, below: p}
	d := sha256.New()
	d.Write(p.digest[:])
	for _, e := range res.events {
		fmt.Fprintf(d, "%q %v %q %d,", e.Key, e.Delete, e.Value, e.Lease)
		if e.Delete {
			delete(n.kvs, e.Key)
			continue
		}
		n.kvs[e.Key] = written(p.kvs[e.Key], e, n.rev)
		if i, seen := slices.BinarySearch(n.keys, e.Key); !seen {
			n.keys = slices.Insert(slices.Clone(n.keys), i, e.Key)
		}
	}
	d.Sum(n.digest[:0])
	return n
}
