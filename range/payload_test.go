package ranges

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// readAll decodes a payload of writes.
func readAll(b []byte) (w writes, txns [][]op, err error) {
	if w, err = decodeWrites(b); err != nil {
		return w, nil, err
	}
	rd := opReader{b: w.body}
	for range w.count {
		if !rd.begin() {
			return w, nil, rd.err
		}
		var ops []op
		var o op
		for rd.next(&o) {
			ops = append(ops, o)
		}
		txns = append(txns, ops)
	}
	if rd.err == nil && len(rd.b) > 0 {
		rd.fail("rest")
	}
	return w, txns, rd.err
}

func encodeAll(s stamp, first ids.Seq, txns [][]op) []byte {
	b := appendWritesHeader(nil, s, first)
	for _, ops := range txns {
		b = binary.AppendUvarint(b, uint64(len(ops)))
		for _, o := range ops {
			b = appendOp(b, o)
		}
	}
	setCount(b, len(txns))
	return b
}

func equalOps(a, b op) bool {
	return bytes.Equal(a.key, b.key) && bytes.Equal(a.value, b.value) && a.lease == b.lease && a.sub == b.sub && a.delete == b.delete
}

// TestPayload encodes and decodes random writes.
func TestPayload(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := stamp{ids.Term(rapid.Uint64().Draw(t, "term")), ids.Generation(rapid.Uint64().Draw(t, "gen")), ids.AuthRevision(rapid.Uint64().Draw(t, "auth"))}
		first := ids.Seq(rapid.Uint64Range(1, 1<<60).Draw(t, "first"))
		txns := make([][]op, rapid.IntRange(1, 5).Draw(t, "txns"))
		for i := range txns {
			for range rapid.IntRange(1, 4).Draw(t, "ops") {
				o := op{key: rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "key"), sub: rapid.Uint32().Draw(t, "sub"), delete: rapid.Bool().Draw(t, "delete")}
				if !o.delete {
					o.value = rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value")
					o.lease = ids.LeaseID(rapid.Int64().Draw(t, "lease"))
				}
				txns[i] = append(txns[i], o)
			}
		}
		b := encodeAll(s, first, txns)
		if k, err := payloadKind(b); err != nil || k != kindWrites {
			t.Fatalf("kind %q, %v", k, err)
		}
		w, got, err := readAll(b)
		if err != nil || w.stamp != s || w.first != first || len(got) != len(txns) {
			t.Fatalf("%+v, %d transactions, %v", w, len(got), err)
		}
		for i := range txns {
			if len(got[i]) != len(txns[i]) {
				t.Fatalf("transaction %d: %v, want %v", i, got[i], txns[i])
			}
			for j := range txns[i] {
				if !equalOps(got[i][j], txns[i][j]) {
					t.Fatalf("op %d.%d: %+v, want %+v", i, j, got[i][j], txns[i][j])
				}
			}
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, _, err := readAll(b[:cut]); !errors.Is(err, errPayload) {
			t.Fatalf("cut to %d of %d bytes: %v", cut, len(b), err)
		}
	})
}

func TestPreparePayload(t *testing.T) {
	m := &braidpb.PrepareRequest{
		Txn: &braidpb.TxnID{Node: 3, Incarnation: 4, Counter: 5}, Token: 1, Term: 2, Deadline: 77, Participants: []uint64{1, 7},
		Writes: []*braidpb.WriteOp{{Key: []byte("a"), Value: []byte("1"), Sub: 3}, {Key: []byte("b"), Delete: true, Sub: 4}},
	}
	locked := &braidpb.LockRequest{Reads: []*braidpb.Span{{Start: []byte("a")}}, Writes: []*braidpb.Span{{Start: []byte("b"), ToEnd: true}}}
	b, err := encodePrepare(stamp{term: 9, gen: 2}, m, locked)
	if err != nil {
		t.Fatal(err)
	}
	p, err := decodePrepare(b)
	if err != nil {
		t.Fatal(err)
	}
	if p.txn != (ids.TxnID{Node: 3, Incarnation: 4, Counter: 5}) || p.term != 9 || p.gen != 2 || p.deadline != 77 || len(p.participants) != 2 ||
		len(p.writes) != 2 || !proto.Equal(p.locked, locked) || !bytes.Equal(p.raw, b) {
		t.Fatalf("%+v", p)
	}
	for cut := range b {
		if p, err := decodePrepare(b[:cut]); !errors.Is(err, errPayload) {
			t.Fatalf("cut to %d of %d bytes: %+v, %v", cut, len(b), p, err)
		}
	}
	if _, err := decodePrepare(append(b, 0)); !errors.Is(err, errPayload) {
		t.Fatalf("a byte too many: %v", err)
	}
	if _, err := payloadKind([]byte{2, kindPrepare}); !errors.Is(err, errPayload) {
		t.Fatalf("a format of the future: %v", err)
	}
}

// FuzzPayload feeds the decoders with anything: they neither panic nor read what they would not have written.
func FuzzPayload(f *testing.F) {
	f.Add(encodeAll(stamp{1, 1, 1}, 1, [][]op{{{key: []byte("k"), value: []byte("v"), lease: 3}}, {{key: []byte("k"), delete: true, sub: 1}}}))
	p, err := encodePrepare(stamp{term: 1}, &braidpb.PrepareRequest{Txn: &braidpb.TxnID{Node: 1}}, &braidpb.LockRequest{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, err := payloadKind(b)
		if err != nil {
			return
		}
		if kind == kindPrepare {
			_, _ = decodePrepare(b)
			return
		}
		w, txns, err := readAll(b)
		if err != nil {
			return
		}
		again, back, err := readAll(encodeAll(w.stamp, w.first, txns))
		if err != nil || again.stamp != w.stamp || again.first != w.first || len(back) != len(txns) {
			t.Fatalf("%+v decodes, and encoded again gives %+v, %v", w, again, err)
		}
	})
}

// FuzzRecord feeds the decoder of durable records with anything.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{recordFormat})
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = decodeRecord(b, &braidpb.Cursor{})
		_ = decodeRecord(b, &braidpb.ConfRecord{})
		_ = decodeRecord(b, &braidpb.Prepared{})
		_ = decodeRecord(b, &braidpb.OrderDecision{})
	})
}
