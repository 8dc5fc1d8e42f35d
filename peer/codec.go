package peer

import (
	"errors"
	"fmt"

	braidpb "github.com/braidkv/braid/proto"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// codec encodes what the two ends of a stream exchange: *outgoing, *incoming, and any protobuf message. Its output is that of
// protobuf for braidpb.PeerMessage, so any gRPC client of the service can talk to it.
type codec struct{}

var _ encoding.CodecV2 = codec{}

// outgoing is an envelope on its way out. The letters must not change until it is sent.
type outgoing struct{ letters []*braidpb.Letter }

// incoming is a PeerMessage on its way in: a Hello or the letters of an envelope.
type incoming struct {
	hello   *braidpb.Hello
	letters []braidpb.Letter
	bytes   int
}

// Field numbers of PeerMessage, Envelope and Letter.
const (
	fieldHello    = 1
	fieldEnvelope = 2
	fieldLetter   = 1
	fieldKind     = 1
	fieldGroup    = 2
	fieldBody     = 3
)

// copyBelow is the size of a body from which on it is sent from where it lies instead of being copied into the
// envelope's buffer. For a small one the copy is cheaper than one more buffer in gRPC's books.
const copyBelow = 4 << 10

// Name makes the content type that of ordinary protobuf.
func (codec) Name() string { return "proto" }

// Marshal encodes a message.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *outgoing:
		return marshalEnvelope(m.letters), nil
	case proto.Message:
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("peer: encoding %T: %w", v, err)
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return nil, fmt.Errorf("peer: cannot encode %T", v)
}

// Unmarshal decodes a message from memory of its own: gRPC's buffers go back to their pool.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *incoming:
		return m.unmarshal(data.Materialize())
	case proto.Message:
		return proto.Unmarshal(data.Materialize(), m)
	}
	return fmt.Errorf("peer: cannot decode into %T", v)
}

func letterSize(l *braidpb.Letter) int {
	n := 0
	if l.Kind != 0 {
		n += 1 + protowire.SizeVarint(uint64(l.Kind))
	}
	if l.Group != 0 {
		n += 1 + protowire.SizeVarint(l.Group)
	}
	if len(l.Body) > 0 {
		n += 1 + protowire.SizeBytes(len(l.Body))
	}
	return n
}

// marshalEnvelope writes PeerMessage{envelope: {letters}}. Small bodies are copied into one buffer with the frame
// around them; a large body is a buffer of its own.
func marshalEnvelope(letters []*braidpb.Letter) mem.BufferSlice {
	size, large, parts := 0, 0, 1
	for _, l := range letters {
		size += 1 + protowire.SizeBytes(letterSize(l))
		if len(l.Body) >= copyBelow {
			large += len(l.Body)
			parts += 2
		}
	}
	total := 1 + protowire.SizeBytes(size) - large
	pool := mem.DefaultBufferPool()
	var pooled *[]byte
	var buf []byte
	if mem.IsBelowBufferPoolingThreshold(total) {
		buf = make([]byte, 0, total)
	} else {
		pooled = pool.Get(total)
		buf = (*pooled)[:0]
	}
	buf = append(buf, fieldEnvelope<<3|byte(protowire.BytesType))
	buf = protowire.AppendVarint(buf, uint64(size))
	var cuts []int // where a large body goes into buf
	for _, l := range letters {
		buf = append(buf, fieldLetter<<3|byte(protowire.BytesType))
		buf = protowire.AppendVarint(buf, uint64(letterSize(l)))
		if l.Kind != 0 {
			buf = append(buf, fieldKind<<3|byte(protowire.VarintType))
			buf = protowire.AppendVarint(buf, uint64(l.Kind))
		}
		if l.Group != 0 {
			buf = append(buf, fieldGroup<<3|byte(protowire.VarintType))
			buf = protowire.AppendVarint(buf, l.Group)
		}
		if n := len(l.Body); n > 0 {
			buf = append(buf, fieldBody<<3|byte(protowire.BytesType))
			buf = protowire.AppendVarint(buf, uint64(n))
			if n >= copyBelow {
				cuts = append(cuts, len(buf))
			} else {
				buf = append(buf, l.Body...)
			}
		}
	}
	whole := mem.Buffer(mem.SliceBuffer(buf))
	if pooled != nil {
		*pooled = buf
		whole = mem.NewBuffer(pooled, pool)
	}
	if len(cuts) == 0 {
		return mem.BufferSlice{whole}
	}
	return interleave(whole, cuts, letters, parts)
}

// interleave puts the large bodies at their places between the pieces of the frame.
func interleave(frame mem.Buffer, cuts []int, letters []*braidpb.Letter, parts int) mem.BufferSlice {
	out := make(mem.BufferSlice, 0, parts)
	from := 0
	for _, l := range letters {
		if len(l.Body) < copyBelow {
			continue
		}
		out = append(out, frame.Slice(from, cuts[0]), mem.SliceBuffer(l.Body))
		from, cuts = cuts[0], cuts[1:]
	}
	if from < frame.Len() {
		out = append(out, frame.Slice(from, frame.Len()))
	}
	frame.Free() // each slice holds a reference of its own
	return out
}

var errNoKind = errors.New("peer: the message is neither a hello nor an envelope")

// unmarshal reads a PeerMessage. The letters' bodies are parts of data.
func (m *incoming) unmarshal(data []byte) error {
	m.hello, m.letters, m.bytes = nil, nil, len(data)
	known := false
	for rest := data; len(rest) > 0; {
		num, body, after, err := field(rest)
		if err != nil {
			return err
		}
		rest = after
		switch {
		case body.typ != protowire.BytesType:
		case num == fieldHello:
			known, m.letters, m.hello = true, nil, new(braidpb.Hello)
			if err := proto.Unmarshal(body.bytes, m.hello); err != nil {
				return fmt.Errorf("peer: decoding a hello: %w", err)
			}
		case num == fieldEnvelope:
			known, m.hello = true, nil
			if err := m.unmarshalEnvelope(body.bytes); err != nil {
				return err
			}
		}
	}
	if !known {
		return errNoKind
	}
	return nil
}

func (m *incoming) unmarshalEnvelope(data []byte) error {
	count := 0
	for rest := data; len(rest) > 0; count++ {
		_, _, after, err := field(rest)
		if err != nil {
			return err
		}
		rest = after
	}
	if m.letters == nil {
		m.letters = make([]braidpb.Letter, 0, count)
	}
	for rest := data; len(rest) > 0; {
		num, body, after, err := field(rest)
		if err != nil {
			return err
		}
		rest = after
		if num != fieldLetter || body.typ != protowire.BytesType {
			continue
		}
		m.letters = append(m.letters, braidpb.Letter{})
		if err := unmarshalLetter(body.bytes, &m.letters[len(m.letters)-1]); err != nil {
			return err
		}
	}
	return nil
}

func unmarshalLetter(data []byte, l *braidpb.Letter) error {
	for len(data) > 0 {
		num, body, after, err := field(data)
		if err != nil {
			return err
		}
		data = after
		switch {
		case num == fieldKind && body.typ == protowire.VarintType:
			l.Kind = uint32(body.varint)
		case num == fieldGroup && body.typ == protowire.VarintType:
			l.Group = body.varint
		case num == fieldBody && body.typ == protowire.BytesType:
			l.Body = body.bytes
		}
	}
	return nil
}

// value is a field's value: varint or bytes, by type. Other types are skipped over.
type value struct {
	typ    protowire.Type
	varint uint64
	bytes  []byte
}

// field takes one field off the front of data.
func field(data []byte) (num protowire.Number, v value, rest []byte, err error) {
	num, typ, n := protowire.ConsumeTag(data)
	if n < 0 {
		return 0, v, nil, fmt.Errorf("peer: decoding a message: %w", protowire.ParseError(n))
	}
	data = data[n:]
	v.typ = typ
	switch typ {
	case protowire.VarintType:
		v.varint, n = protowire.ConsumeVarint(data)
	case protowire.BytesType:
		v.bytes, n = protowire.ConsumeBytes(data)
	default:
		n = protowire.ConsumeFieldValue(num, typ, data)
	}
	if n < 0 {
		return 0, v, nil, fmt.Errorf("peer: decoding a message: %w", protowire.ParseError(n))
	}
	return num, v, data[n:], nil
}
