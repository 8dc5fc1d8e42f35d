package ranges

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// An entry of the range log holds one payload, in this format (docs/formats):
//
//	writes:  format u8 = 1, kind u8 = 'w', term, generation, auth revision, first seq u64, count u32 (all big endian),
//	         then for each seq: number of ops uvarint, ops
//	op:      flags u8 (1 delete, 2 lease), sub uvarint, key, [value unless delete], [lease varint]
//	prepare: format u8 = 1, kind u8 = 'p', term u64, generation u64, PrepareRequest, LockRequest (the locked spans), as protobuf
//
// where a byte string is its length as uvarint and the bytes. The writes are the hot path: they are encoded straight into
// the buffer that is proposed, and applied from the bytes that Raft delivers.
const (
	payloadFormat = 1
	kindWrites    = 'w'
	kindPrepare   = 'p'

	writesHeader  = 2 + 4*8 + 4
	prepareHeader = 2 + 2*8

	flagDelete = 1
	flagLease  = 2
)

// errPayload says that a payload cannot be decoded.
var errPayload = errors.New("malformed payload")

// op is one write as it is stored; its slices point into the payload.
type op struct {
	key, value []byte
	lease      ids.LeaseID
	sub        uint32
	delete     bool
}

// stamp is what all writes of a payload have in common.
type stamp struct {
	term ids.Term
	gen  ids.Generation
	auth ids.AuthRevision
}

// appendWritesHeader begins a payload of writes. The count is put in by setCount.
func appendWritesHeader(dst []byte, s stamp, first ids.Seq) []byte {
	dst = append(dst, payloadFormat, kindWrites)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.term))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.gen))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.auth))
	dst = binary.BigEndian.AppendUint64(dst, uint64(first))
	return binary.BigEndian.AppendUint32(dst, 0)
}

func setCount(payload []byte, n int) {
	binary.BigEndian.PutUint32(payload[writesHeader-4:], uint32(n))
}

func appendOp(dst []byte, o op) []byte {
	var flags byte
	if o.delete {
		flags |= flagDelete
	}
	if o.lease != 0 {
		flags |= flagLease
	}
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(o.sub))
	dst = appendBytes(dst, o.key)
	if !o.delete {
		dst = appendBytes(dst, o.value)
	}
	if o.lease != 0 {
		dst = binary.AppendVarint(dst, int64(o.lease))
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// writes is a decoded header; body holds the transactions.
type writes struct {
	stamp
	first ids.Seq
	count int
	body  []byte
}

// payloadKind tells what a payload holds.
func payloadKind(b []byte) (byte, error) {
	if len(b) < 2 {
		return 0, fmt.Errorf("%w: %d bytes", errPayload, len(b))
	}
	if b[0] != payloadFormat {
		return 0, fmt.Errorf("%w: format %d is not known", errPayload, b[0])
	}
	if b[1] != kindWrites && b[1] != kindPrepare {
		return 0, fmt.Errorf("%w: kind %q", errPayload, b[1])
	}
	return b[1], nil
}

func decodeWrites(b []byte) (writes, error) {
	if len(b) < writesHeader {
		return writes{}, fmt.Errorf("%w: header cut off", errPayload)
	}
	u := func(i int) uint64 { return binary.BigEndian.Uint64(b[2+8*i:]) }
	w := writes{
		stamp: stamp{term: ids.Term(u(0)), gen: ids.Generation(u(1)), auth: ids.AuthRevision(u(2))},
		first: ids.Seq(u(3)),
		count: int(binary.BigEndian.Uint32(b[writesHeader-4:])),
		body:  b[writesHeader:],
	}
	if w.count == 0 || w.count > len(w.body) || w.first == 0 || w.first+ids.Seq(w.count) < w.first {
		return writes{}, fmt.Errorf("%w: %d seqs from %d in %d bytes", errPayload, w.count, w.first, len(w.body))
	}
	return w, nil
}

// last is the seq of the payload's last transaction.
func (w *writes) last() ids.Seq { return w.first + ids.Seq(w.count) - 1 }

// opReader reads transactions and their ops from a payload's body.
type opReader struct {
	b    []byte
	left int // ops of the current transaction
	err  error
}

// begin begins a transaction.
func (r *opReader) begin() bool {
	n := r.uvarint()
	if r.err == nil && (n == 0 || n > uint64(len(r.b))) {
		r.fail("a transaction of %d writes", n)
	}
	r.left = int(n)
	return r.err == nil
}

// next reads the transaction's next op into o.
func (r *opReader) next(o *op) bool {
	if r.left == 0 || r.err != nil {
		return false
	}
	r.left--
	if len(r.b) == 0 {
		r.fail("op cut off")
		return false
	}
	flags := r.b[0]
	r.b = r.b[1:]
	if flags&^(flagDelete|flagLease) != 0 || flags == flagDelete|flagLease {
		r.fail("op flags %x", flags)
		return false
	}
	sub := r.uvarint()
	if sub > 1<<32-1 {
		r.fail("sub-revision %d", sub)
	}
	*o = op{sub: uint32(sub), delete: flags&flagDelete != 0}
	o.key = r.bytes()
	if !o.delete {
		o.value = r.bytes()
	}
	if flags&flagLease != 0 {
		l, n := binary.Varint(r.b)
		if n <= 0 || l == 0 {
			r.fail("lease")
			return false
		}
		o.lease, r.b = ids.LeaseID(l), r.b[n:]
	}
	if len(o.key) == 0 {
		r.fail("empty key")
	}
	return r.err == nil
}

func (r *opReader) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *opReader) bytes() []byte {
	n := r.uvarint()
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.b)) {
		r.fail("%d bytes wanted, %d left", n, len(r.b))
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *opReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errPayload, fmt.Sprintf(format, args...))
	}
}

// prepare is a decoded Prepare: a transaction's part in this range.
type prepare struct {
	txn          ids.TxnID
	term         ids.Term
	gen          ids.Generation
	deadline     ids.Position
	participants []ids.RangeID
	writes       []*braidpb.WriteOp
	locked       *braidpb.LockRequest
	raw          []byte
}

func encodePrepare(s stamp, p *braidpb.PrepareRequest, locked *braidpb.LockRequest) ([]byte, error) {
	b := append(make([]byte, 0, prepareHeader+proto.Size(p)+proto.Size(locked)+8), payloadFormat, kindPrepare)
	b = binary.BigEndian.AppendUint64(b, uint64(s.term))
	b = binary.BigEndian.AppendUint64(b, uint64(s.gen))
	for _, m := range []proto.Message{p, locked} {
		b = binary.AppendUvarint(b, uint64(proto.Size(m)))
		var err error
		if b, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(b, m); err != nil {
			return nil, fmt.Errorf("encoding a prepare: %w", err)
		}
	}
	return b, nil
}

func decodePrepare(b []byte) (*prepare, error) {
	if len(b) < prepareHeader {
		return nil, fmt.Errorf("%w: header cut off", errPayload)
	}
	p := &prepare{
		term: ids.Term(binary.BigEndian.Uint64(b[2:])),
		gen:  ids.Generation(binary.BigEndian.Uint64(b[10:])),
		raw:  b,
	}
	r := opReader{b: b[prepareHeader:]}
	m, locked := &braidpb.PrepareRequest{}, &braidpb.LockRequest{}
	for _, m := range []proto.Message{m, locked} {
		x := r.bytes()
		if r.err != nil {
			return nil, r.err
		}
		if err := proto.Unmarshal(x, m); err != nil {
			return nil, fmt.Errorf("%w: %v", errPayload, err)
		}
	}
	if len(r.b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes behind the end", errPayload, len(r.b))
	}
	p.txn, p.deadline, p.writes, p.locked = txnID(m.Txn), ids.Position(m.Deadline), m.Writes, locked
	for _, id := range m.Participants {
		p.participants = append(p.participants, ids.RangeID(id))
	}
	if p.txn.IsZero() {
		return nil, fmt.Errorf("%w: a prepare of no transaction", errPayload)
	}
	for _, w := range p.writes {
		if len(w.Key) == 0 || w.Sub > 1<<32-1 {
			return nil, fmt.Errorf("%w: a prepared write of key %q, sub-revision %d", errPayload, w.Key, w.Sub)
		}
	}
	return p, nil
}

func txnID(t *braidpb.TxnID) ids.TxnID {
	return ids.TxnID{Node: ids.NodeID(t.GetNode()), Incarnation: t.GetIncarnation(), Counter: t.GetCounter()}
}

func txnProto(t ids.TxnID) *braidpb.TxnID {
	return &braidpb.TxnID{Node: uint64(t.Node), Incarnation: t.Incarnation, Counter: t.Counter}
}
