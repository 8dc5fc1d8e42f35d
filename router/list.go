package router

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoiface"

	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/range/eval"
)

// listing answers a range request from an iterator over its span: limit, filters, order and count are etcd's (3.7, package txn).
type listing struct {
	ctx context.Context
	r   *pb.RangeRequest
	// chunk, if set, is about how many bytes an answer may have; next is where the next one begins then, nil after the last. The
	// keys come in their order, whatever the request says.
	// chunkKeys, if set, bounds the keys of an answer likewise.
	chunk     int
	chunkKeys int
	inOrder   bool
	next      []byte

	taken int64 // keys in answers so far
	count int64 // keys seen so far
	more  bool
}

// checkEvery is after how many keys a listing looks whether its client is still there.
const checkEvery = 1024

// simple tells whether the answer are the first keys of the span that pass the filters, in the order of keys.
func (l *listing) simple() bool { return l.inOrder || eval.DefaultOrder(l.r) && !l.sortsFirst() }

// sortsFirst tells whether etcd sorts by the request's target what it has cut off in the order of keys: it does when the request names a
// target but no order.
func (l *listing) sortsFirst() bool {
	return l.r.SortTarget != pb.RangeRequest_KEY && l.r.SortOrder == pb.RangeRequest_NONE
}

// valuesWanted tells whether values must be read. etcd answers lists of keys without values from its index, without the
// leases, unless it has to sort by value.
func (l *listing) valuesWanted() bool {
	return !l.r.KeysOnly || l.r.SortTarget == pb.RangeRequest_VALUE
}

// walk visits the keys of the span in their order, limit at most (zero: all), and counts the rest. visit says whether to go on
// after a key.
func (l *listing) walk(it *mvcc.Iterator, limit int64, visit func(key []byte, s mvcc.KeyState, value []byte) bool) error {
	filters, values := eval.HasFilters(l.r), l.valuesWanted()
	for ok := it.First(); ok; ok = it.Next() {
		if l.count++; l.count%checkEvery == 0 {
			if err := l.ctx.Err(); err != nil {
				return err
			}
		}
		full := limit > 0 && l.taken >= limit
		if l.r.CountOnly || l.more || full && !filters {
			l.more = l.more || full
			continue
		}
		s, err := it.State()
		if err != nil {
			return err
		}
		if filters && !l.passes(s) {
			continue
		}
		if full {
			l.more = true
			continue
		}
		var value []byte
		if values {
			if value, err = it.Value(); err != nil {
				return err
			}
		} else {
			s.Lease = 0
		}
		l.taken++
		if !visit(it.Key(), s, value) {
			if it.Next() {
				l.next = bytes.Clone(it.Key())
			}
			return nil
		}
	}
	return nil
}

// passes tells whether the filters let a key through.
func (l *listing) passes(s mvcc.KeyState) bool {
	r, mod, create := l.r, int64(s.Mod), int64(s.Create)
	return (r.MinModRevision == 0 || mod >= r.MinModRevision) && (r.MaxModRevision == 0 || mod <= r.MaxModRevision) &&
		(r.MinCreateRevision == 0 || create >= r.MinCreateRevision) && (r.MaxCreateRevision == 0 || create <= r.MaxCreateRevision)
}

// collect makes the answer, header aside.
func (l *listing) collect(it *mvcc.Iterator) (*pb.RangeResponse, error) {
	var kvs []*mvccpb.KeyValue
	limit, simple := l.r.Limit, l.simple()
	switch {
	case simple:
	case l.sortsFirst() && !eval.HasFilters(l.r) && limit > 0:
		limit++ // one more than asked for, then sort, then cut
	default:
		limit = 0 // all of it is needed to find out which come first
	}
	err := l.walk(it, limit, func(key []byte, s mvcc.KeyState, value []byte) bool {
		kvs = append(kvs, keyValue(key, s, value))
		return true
	})
	if err != nil {
		return nil, err
	}
	resp := &pb.RangeResponse{Kvs: kvs, Count: l.count, More: l.more}
	if !simple {
		resp.Kvs = eval.Select(l.r, kvs)
		if resp.More = l.r.Limit > 0 && int64(len(resp.Kvs)) > l.r.Limit; resp.More {
			resp.Kvs = resp.Kvs[:l.r.Limit:l.r.Limit]
		}
		if l.r.KeysOnly {
			for _, kv := range resp.Kvs {
				kv.Value = nil
			}
		}
	}
	return resp, nil
}

// keyValue copies a key in etcd's form.
func keyValue(key []byte, s mvcc.KeyState, value []byte) *mvccpb.KeyValue {
	buf := make([]byte, len(key)+len(value))
	n := copy(buf, key)
	kv := &mvccpb.KeyValue{
		Key: buf[:n:n], CreateRevision: int64(s.Create), ModRevision: int64(s.Mod), Version: s.Version, Lease: int64(s.Lease),
	}
	if len(value) > 0 {
		copy(buf[n:], value)
		kv.Value = buf[n:]
	}
	return kv
}

// encode makes the answer, header aside, or the next chunk of it, on the wire's form. Only for simple listings.
func (l *listing) encode(it *mvcc.Iterator) (*encodedList, error) {
	out := &encodedList{}
	l.next = nil
	keysOnly, keys := l.r.KeysOnly, 0
	err := l.walk(it, l.r.Limit, func(key []byte, s mvcc.KeyState, value []byte) bool {
		if keysOnly {
			value = nil
		}
		out.add(key, s, value)
		keys++
		return (l.chunk == 0 || out.size < l.chunk) && (l.chunkKeys == 0 || keys < l.chunkKeys)
	})
	if err != nil {
		return nil, err
	}
	if l.next == nil {
		out.head.Count, out.head.More = l.count, l.more
	}
	return out, nil
}

// encodedList is a RangeResponse whose keys are encoded already: a list goes from the engine's blocks to the wire without an
// object for each key. To gRPC's codec it is a message like any other, but it can be encoded only once.
type encodedList struct {
	head  pb.RangeResponse // but for the keys
	parts [][]byte         // whole fields; the last one is being filled
	size  int              // of the parts
	spent bool             // the parts were given back
}

// Sizes of parts: the first one, which most answers fit into, and the others, which are used again.
const (
	firstPart  = 8 << 10
	pooledPart = 256 << 10
)

// spareParts are parts of pooledPart bytes. A list of many megabytes takes and gives back many, which would be zeroed,
// paged in and collected otherwise.
var spareParts = sync.Pool{New: func() any { return new([pooledPart]byte) }}

// errSpent says that an answer was to be encoded a second time.
var errSpent = errors.New("router: an answer was encoded already")

// Field numbers of RangeResponse and RangeStreamResponse.
const (
	fieldKvs           = 2
	fieldRangeResponse = 1
)

// add appends a key.
func (e *encodedList) add(key []byte, s mvcc.KeyState, value []byte) {
	body := sizeOfKV(key, s, value)
	need := 1 + protowire.SizeVarint(uint64(body)) + body
	n := len(e.parts)
	if n == 0 || cap(e.parts[n-1])-len(e.parts[n-1]) < need {
		e.parts = append(e.parts, newPart(n == 0, need))
		n++
	}
	b := e.parts[n-1]
	b = protowire.AppendTag(b, fieldKvs, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(body))
	e.parts[n-1] = appendKV(b, key, s, value)
	e.size += need
}

// newPart makes room for at least need bytes.
func newPart(first bool, need int) []byte {
	switch {
	case first && need <= firstPart:
		return make([]byte, 0, firstPart)
	case need > pooledPart:
		return make([]byte, 0, need)
	}
	return spareParts.Get().(*[pooledPart]byte)[:0]
}

// Fields of mvccpb.KeyValue: key 1, create_revision 2, mod_revision 3, version 4, value 5, lease 6; each tag is one
// byte.
func sizeOfKV(key []byte, s mvcc.KeyState, value []byte) int {
	n := 1 + protowire.SizeBytes(len(key))
	for _, x := range [...]int64{int64(s.Create), int64(s.Mod), s.Version, int64(s.Lease)} {
		if x != 0 {
			n += 1 + protowire.SizeVarint(uint64(x))
		}
	}
	if len(value) > 0 {
		n += 1 + protowire.SizeBytes(len(value))
	}
	return n
}

func appendKV(b, key []byte, s mvcc.KeyState, value []byte) []byte {
	b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), key)
	for i, x := range [...]int64{int64(s.Create), int64(s.Mod), s.Version} {
		if x != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(2+i), protowire.VarintType), uint64(x))
		}
	}
	if len(value) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), value)
	}
	if s.Lease != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 6, protowire.VarintType), uint64(s.Lease))
	}
	return b
}

// encodedSize is the size of the whole message.
func (e *encodedList) encodedSize() int { return proto.Size(&e.head) + e.size }

// appendTo appends the whole message and gives the parts back.
func (e *encodedList) appendTo(b []byte) ([]byte, error) {
	if e.spent {
		return b, errSpent
	}
	b = slices.Grow(b, e.encodedSize())
	b, err := proto.MarshalOptions{}.MarshalAppend(b, &e.head)
	for _, p := range e.parts {
		b = append(b, p...)
		if cap(p) == pooledPart {
			spareParts.Put((*[pooledPart]byte)(p[:pooledPart]))
		}
	}
	e.parts, e.spent = nil, true
	return b, err
}

// ProtoReflect makes it a message. All that works of it is encoding.
func (e *encodedList) ProtoReflect() protoreflect.Message {
	return encoded{e.head.ProtoReflect(), e.encodedSize, e.appendTo}
}

// streamedList is a RangeStreamResponse with an encodedList.
type streamedList struct{ *encodedList }

func (m *streamedList) encodedSize() int {
	n := m.encodedList.encodedSize()
	return 1 + protowire.SizeBytes(n)
}

func (m *streamedList) appendTo(b []byte) ([]byte, error) {
	b = protowire.AppendTag(b, fieldRangeResponse, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(m.encodedList.encodedSize()))
	return m.encodedList.appendTo(b)
}

// ProtoReflect makes it a message. All that works of it is encoding.
func (m *streamedList) ProtoReflect() protoreflect.Message {
	return encoded{(&pb.RangeStreamResponse{}).ProtoReflect(), m.encodedSize, m.appendTo}
}

// encoded is a message that brings its own encoding.
type encoded struct {
	protoreflect.Message
	size     func() int
	appendTo func(b []byte) ([]byte, error)
}

// ProtoMethods overrides the generated encoding.
func (e encoded) ProtoMethods() *protoiface.Methods {
	return &protoiface.Methods{
		Flags: protoiface.SupportMarshalDeterministic,
		Size: func(protoiface.SizeInput) protoiface.SizeOutput {
			return protoiface.SizeOutput{Size: e.size()}
		},
		Marshal: func(in protoiface.MarshalInput) (protoiface.MarshalOutput, error) {
			b, err := e.appendTo(in.Buf)
			return protoiface.MarshalOutput{Buf: b}, err
		},
	}
}
