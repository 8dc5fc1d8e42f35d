package order

import (
	"encoding/binary"
	"fmt"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// itemQueue keeps the items of a range that are not known to be flushed on a majority of its replicas, by
// ascending position. At thousands of cuts per second and seconds between flushes these are many, so they are kept encoded, a few bytes
// each, in chunks. The zero value is empty.
//
// Its bound: the items made between two flushes of the majority; a range without a majority makes no items but decisions and
// compactions.
type itemQueue struct {
	chunks []itemChunk
}

// itemChunk holds records: position (varint, difference to the one before, the first to zero), length (varint), encoded
// items. Records before off are dropped.
//
// Invariant: once a chunk is not wholly saved, none behind it is.
type itemChunk struct {
	buf         []byte
	off         int
	before      ids.Position // position of the record before off, zero if it is the first
	first, last ids.Position // of the records from off on
	saved       int          // records before are persisted
	savedBefore ids.Position // position of the record before saved, zero if it is the first
}

// chunkBytes is about the size of a chunk.
const chunkBytes = 4096

// bounds are the positions of the first and last item; zero if there is none.
func (q *itemQueue) bounds() (first, last ids.Position) {
	if len(q.chunks) == 0 {
		return 0, 0
	}
	return q.chunks[0].first, q.chunks[len(q.chunks)-1].last
}

// push appends items, of a higher position than all before.
func (q *itemQueue) push(it *braidpb.Items) {
	c := q.open(ids.Position(it.GetPosition()))
	at := len(c.buf)
	c.buf = append(c.buf, 0)
	c.buf = appendItems(c.buf, it.GetItems())
	if n := len(c.buf) - at - 1; n < 0x80 {
		c.buf[at] = byte(n)
	} else { // rare: make room for a longer length
		var l [binary.MaxVarintLen64]byte
		k := binary.PutUvarint(l[:], uint64(n))
		c.buf = append(c.buf, l[:k-1]...)
		copy(c.buf[at+k:], c.buf[at+1:at+1+n])
		copy(c.buf[at:], l[:k])
	}
}

// pushEncoded is push for items that are encoded already.
func (q *itemQueue) pushEncoded(p ids.Position, body []byte) {
	c := q.open(p)
	c.buf = binary.AppendUvarint(c.buf, uint64(len(body)))
	c.buf = append(c.buf, body...)
}

// open begins a record.
func (q *itemQueue) open(p ids.Position) *itemChunk {
	if n := len(q.chunks); n == 0 || len(q.chunks[n-1].buf) >= chunkBytes {
		q.chunks = append(q.chunks, itemChunk{first: p})
	}
	c := &q.chunks[len(q.chunks)-1]
	c.buf = binary.AppendUvarint(c.buf, uint64(p-c.last))
	c.last = p
	return c
}

// next reads the record at off, given the position of the one before.
func (c *itemChunk) next(off int, before ids.Position) (p ids.Position, body []byte, end int) {
	d, n := binary.Uvarint(c.buf[off:])
	off += n
	l, n := binary.Uvarint(c.buf[off:])
	off += n
	return before + ids.Position(d), c.buf[off : off+int(l)], off + int(l)
}

// drop drops the items at or below p, and returns the position of the last one dropped, zero if there was none.
func (q *itemQueue) drop(p ids.Position) (dropped ids.Position) {
	n := 0
	for n < len(q.chunks) && q.chunks[n].last <= p {
		dropped = q.chunks[n].last
		n++
	}
	if n > 0 {
		m := copy(q.chunks, q.chunks[n:])
		clear(q.chunks[m:])
		q.chunks = q.chunks[:m]
	}
	if len(q.chunks) == 0 {
		return dropped
	}
	c := &q.chunks[0]
	for c.first <= p {
		pos, _, end := c.next(c.off, c.before)
		dropped, c.off, c.before = pos, end, pos
		c.first, _, _ = c.next(end, pos) // there is one more: last > p
	}
	return dropped
}

// each visits the items above a position in order, encoded.
func (q *itemQueue) each(above ids.Position, visit func(p ids.Position, body []byte) error) error {
	i := len(q.chunks)
	for i > 0 && q.chunks[i-1].last > above {
		i--
	}
	for ; i < len(q.chunks); i++ {
		c := &q.chunks[i]
		off, before := c.off, c.before
		for off < len(c.buf) {
			p, body, end := c.next(off, before)
			off, before = end, p
			if p <= above {
				continue
			}
			if err := visit(p, body); err != nil {
				return err
			}
		}
	}
	return nil
}

// save visits the items that it has not visited before.
func (q *itemQueue) save(visit func(p ids.Position, body []byte) error) error {
	i := len(q.chunks)
	for i > 0 && q.chunks[i-1].saved < len(q.chunks[i-1].buf) {
		i--
	}
	for ; i < len(q.chunks); i++ {
		c := &q.chunks[i]
		off, before := c.off, c.before
		if c.saved > off {
			off, before = c.saved, c.savedBefore
		}
		for off < len(c.buf) {
			p, body, end := c.next(off, before)
			off, before = end, p
			if err := visit(p, body); err != nil {
				return err
			}
		}
		c.saved, c.savedBefore = off, before
	}
	return nil
}

// markSaved says that all items are persisted.
func (q *itemQueue) markSaved() {
	for i := range q.chunks {
		c := &q.chunks[i]
		c.saved, c.savedBefore = len(c.buf), c.last
	}
}

// Encoded items, all numbers varints: each begins with its kind.
//
//	seqs:     1, from, through-from, first revision, number of voids, per void: seq minus the one before (from), reason
//	decision: 2, node, incarnation, counter, 1 if committed else 0, revision, deadline
//	compact:  3, revision
const (
	itemSeqs     = 1
	itemDecision = 2
	itemCompact  = 3
)

// appendItems encodes items.
func appendItems(b []byte, items []*braidpb.Item) []byte {
	for _, it := range items {
		switch k := it.GetKind().(type) {
		case *braidpb.Item_Seqs:
			b = append(b, itemSeqs)
			b = binary.AppendUvarint(b, k.Seqs.GetFrom())
			b = binary.AppendUvarint(b, k.Seqs.GetThrough()-k.Seqs.GetFrom())
			b = binary.AppendUvarint(b, uint64(k.Seqs.GetFirstRevision()))
			b = binary.AppendUvarint(b, uint64(len(k.Seqs.GetVoids())))
			before := k.Seqs.GetFrom()
			for _, v := range k.Seqs.GetVoids() {
				b = binary.AppendUvarint(b, v.GetSeq()-before)
				b = binary.AppendUvarint(b, uint64(v.GetReason()))
				before = v.GetSeq()
			}
		case *braidpb.Item_Decision:
			b = append(b, itemDecision)
			b = binary.AppendUvarint(b, k.Decision.GetTxn().GetNode())
			b = binary.AppendUvarint(b, k.Decision.GetTxn().GetIncarnation())
			b = binary.AppendUvarint(b, k.Decision.GetTxn().GetCounter())
			b = append(b, bit(k.Decision.GetCommit()))
			b = binary.AppendUvarint(b, uint64(k.Decision.GetRevision()))
			b = binary.AppendUvarint(b, k.Decision.GetDeadline())
		case *braidpb.Item_Compact:
			b = append(b, itemCompact)
			b = binary.AppendUvarint(b, uint64(k.Compact.GetRevision()))
		}
	}
	return b
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// decodeItems is the inverse of appendItems. Errors are ErrCorrupt.
func decodeItems(body []byte) (items []*braidpb.Item, err error) {
	d := varints{b: body}
	for len(d.b) > 0 && !d.bad {
		switch kind := d.next(); kind {
		case itemSeqs:
			items = append(items, d.seqs())
		case itemDecision:
			x := &braidpb.DecisionItem{Txn: &braidpb.TxnID{Node: d.next(), Incarnation: d.next(), Counter: d.next()}}
			commit := d.next()
			d.bad = d.bad || commit > 1
			x.Commit, x.Revision, x.Deadline = commit == 1, int64(d.next()), d.next()
			items = append(items, &braidpb.Item{Kind: &braidpb.Item_Decision{Decision: x}})
		case itemCompact:
			items = append(items, &braidpb.Item{Kind: &braidpb.Item_Compact{Compact: &braidpb.CompactItem{Revision: int64(d.next())}}})
		default:
			d.bad = true
		}
	}
	if d.bad {
		return nil, fmt.Errorf("%w: items %x", ErrCorrupt, body)
	}
	return items, nil
}

// varints reads numbers off b until one is malformed.
type varints struct {
	b   []byte
	bad bool
}

func (d *varints) next() uint64 {
	x, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return x
}

func (d *varints) seqs() *braidpb.Item {
	x := &braidpb.SeqsItem{From: d.next()}
	x.Through = x.From + d.next()
	x.FirstRevision = int64(d.next())
	n := d.next()
	before := x.From
	for i := uint64(0); i < n && !d.bad; i++ {
		before += d.next()
		x.Voids = append(x.Voids, &braidpb.Void{Seq: before, Reason: braidpb.VoidReason(d.next())})
	}
	return &braidpb.Item{Kind: &braidpb.Item_Seqs{Seqs: x}}
}
