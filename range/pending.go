package ranges

import (
	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/range/latch"
)

// pending is a request on its way.
type pending struct {
	req      *Request
	state    pendingState
	answered bool
	deadline int // tick
	arrived  int // tick
	latch    latch.ID
	kind     latch.Kind
	after    ids.Seq // in later: goes on when this is applied
	result   eval.Result

	// one and many are the writes in the overlay, once the request has a seq.
	one  [1]unordered
	many []unordered

	prev, next *pending // in pendings
}

// pendingState is where a request stands.
type pendingState uint8

const (
	stateNew pendingState = iota
	stateNotReady
	stateLatching // waits for latches
	stateOrdered  // holds latches, waits in later to be evaluated again
	stateRead     // holds none, waits in later to be answered "read instead"
	stateRetry
	stateProposed // has a seq, or its Prepare is proposed: can no longer be called off
)

// pendings is a list of requests that are not answered.
type pendings struct {
	first, last *pending
	n           int
}

func (l *pendings) add(p *pending) {
	p.prev, l.last = l.last, p
	if p.prev != nil {
		p.prev.next = p
	} else {
		l.first = p
	}
	l.n++
}

func (l *pendings) remove(p *pending) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	p.prev, p.next = nil, nil
	l.n--
}
