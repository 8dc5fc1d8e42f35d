package peer

import (
	"bytes"
	"testing"

	braidpb "github.com/braidkv/braid/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func drawLetters(t *rapid.T) []*braidpb.Letter {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *braidpb.Letter {
		size := rapid.SampledFrom([]int{0, 0, 1, 20, 127, 128, 1000, copyBelow - 1, copyBelow, 20_000}).Draw(t, "size")
		l := &braidpb.Letter{
			Kind: rapid.Uint32().Draw(t, "kind"), Group: rapid.Uint64().Draw(t, "group"),
		}
		if size > 0 {
			l.Body = bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, size)
		}
		return l
	}), 0, 20).Draw(t, "letters")
}

// TestCodecIsProtobuf: what the codec writes is what protobuf reads, and the other way round.
func TestCodecIsProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := drawLetters(t)
		want := &braidpb.PeerMessage{Kind: &braidpb.PeerMessage_Envelope{Envelope: &braidpb.Envelope{Letters: letters}}}

		data, err := codec{}.Marshal(&outgoing{letters})
		if err != nil {
			t.Fatal(err)
		}
		var got braidpb.PeerMessage
		if err := proto.Unmarshal(data.Materialize(), &got); err != nil || !proto.Equal(&got, want) {
			t.Fatalf("protobuf reads %v (error %v), want %v", &got, err, want)
		}
		n := data.Len()
		data.Free()

		encoded, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if n != len(encoded) {
			t.Fatalf("%d bytes, protobuf needs %d", n, len(encoded))
		}
		var in incoming
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &in); err != nil {
			t.Fatal(err)
		}
		if in.hello != nil || in.bytes != len(encoded) || len(in.letters) != len(letters) {
			t.Fatalf("read %d letters of %d, hello %v", len(in.letters), len(letters), in.hello)
		}
		for i, l := range letters {
			if !proto.Equal(l, &in.letters[i]) {
				t.Fatalf("letter %d: read %v, want %v", i, &in.letters[i], l)
			}
		}
	})
}

func TestCodecHello(t *testing.T) {
	cfg := Config{Self: 1, ClusterID: 2, Incarnation: 3}
	data, err := codec{}.Marshal(helloMessage(&cfg, 9))
	if err != nil {
		t.Fatal(err)
	}
	var in incoming
	if err := (codec{}).Unmarshal(data, &in); err != nil {
		t.Fatal(err)
	}
	want := &braidpb.Hello{Protocol: protocolVersion, ClusterId: 2, From: 1, To: 9, Incarnation: 3}
	if !proto.Equal(in.hello, want) {
		t.Errorf("read %v, want %v", in.hello, want)
	}
	if _, err := (codec{}).Marshal(7); err == nil {
		t.Error("encoded a number")
	}
	if err := (codec{}).Unmarshal(nil, 7); err == nil {
		t.Error("decoded into a number")
	}
}

// FuzzDecode: the decoder takes any bytes, and agrees with protobuf on what it accepts.
func FuzzDecode(f *testing.F) {
	for _, m := range []*braidpb.PeerMessage{
		helloMessage(&Config{Self: 1, ClusterID: 2, Incarnation: 3}, 9),
		{Kind: &braidpb.PeerMessage_Envelope{Envelope: &braidpb.Envelope{}}},
		{Kind: &braidpb.PeerMessage_Envelope{Envelope: &braidpb.Envelope{Letters: []*braidpb.Letter{
			{Kind: 1, Group: 2, Body: []byte("body")}, {}, {Body: make([]byte, 200)}}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x12, 0x80})
	f.Add([]byte{0x0a, 0x01, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		var in incoming
		err := in.unmarshal(data)
		var want braidpb.PeerMessage
		if wantErr := proto.Unmarshal(data, &want); wantErr != nil {
			return // ours does not look into fields it does not know
		}
		if err != nil {
			if want.Kind != nil {
				t.Fatalf("%v, but protobuf reads %v", err, &want)
			}
			return
		}
		if want.GetEnvelope() == nil {
			return
		}
		letters := want.GetEnvelope().Letters
		if len(letters) != len(in.letters) {
			t.Fatalf("%d letters, protobuf reads %d", len(in.letters), len(letters))
		}
		for i, l := range letters {
			got := &in.letters[i]
			if l.Kind != got.Kind || l.Group != got.Group || !bytes.Equal(l.Body, got.Body) {
				t.Fatalf("letter %d: %v, protobuf reads %v", i, got, l)
			}
		}
	})
}
