package raftgroup

import (
	"errors"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/raftlog"
)

// sameMessage compares what Raft reads: its getters do not tell a missing field from zero.
func sameMessage(a, b *raftpb.Message) bool {
	canon := func(m *raftpb.Message) *raftpb.Message {
		w := &wireMessage{
			typ: m.GetType(), to: m.GetTo(), from: m.GetFrom(), term: m.GetTerm(), logTerm: m.GetLogTerm(), index: m.GetIndex(),
			commit: m.GetCommit(), rejectHint: m.GetRejectHint(), reject: m.GetReject(),
		}
		out := w.link()
		if len(m.GetContext()) > 0 {
			out.Context = m.GetContext()
		}
		for i, e := range m.GetEntries() {
			data := e.GetData()
			if len(data) == 0 {
				data = nil
			}
			_ = i
			out.Entries = append(out.Entries, raftlog.NewEntryBlock(1).Set(0, e.GetType(), e.GetTerm(), e.GetIndex(), data))
		}
		if s := m.GetSnapshot(); s != nil {
			out.Snapshot = proto.Clone(s).(*raftpb.Snapshot)
			if len(out.Snapshot.Data) == 0 {
				out.Snapshot.Data = nil
			}
		}
		return out
	}
	return proto.Equal(canon(a), canon(b))
}

func drawMessage(t *rapid.T) *raftpb.Message {
	number := rapid.Uint64Range(1, 1<<62)
	var types []raftpb.MessageType
	for i, ok := range acceptable {
		if ok {
			types = append(types, raftpb.MessageType(i))
		}
	}
	w := &wireMessage{
		typ: rapid.SampledFrom(types).Draw(t, "type"), to: number.Draw(t, "to"), from: number.Draw(t, "from"),
		term: rapid.Uint64Range(10, 20).Draw(t, "term"), logTerm: rapid.Uint64Range(0, 5).Draw(t, "logTerm"),
		index: rapid.Uint64Range(0, 1<<40).Draw(t, "index"), commit: rapid.Uint64().Draw(t, "commit"),
		rejectHint: rapid.Uint64().Draw(t, "hint"), reject: rapid.Bool().Draw(t, "reject"),
	}
	m := w.link()
	data := rapid.SliceOfN(rapid.Byte(), 0, 40)
	switch w.typ {
	case raftpb.MsgHeartbeatResp:
		m.Context = rapid.SampledFrom([][]byte{nil, make([]byte, 8)}).Draw(t, "context")
	case raftpb.MsgReadIndex, raftpb.MsgReadIndexResp:
		m.Entries = []*raftpb.Entry{{Data: data.Draw(t, "data")}}
	case raftpb.MsgApp:
		n := rapid.IntRange(0, 5).Draw(t, "entries")
		block := raftlog.NewEntryBlock(n)
		for i := range n {
			typ := raftpb.EntryType(rapid.IntRange(0, 2).Draw(t, "entry type"))
			m.Entries = append(m.Entries, block.Set(i, typ, uint64(5+i), w.index+uint64(i)+1, data.Draw(t, "data")))
		}
	case raftpb.MsgSnap:
		list := rapid.SliceOfN(number, 0, 3)
		none := func(xs []uint64) []uint64 {
			if len(xs) == 0 {
				return nil
			}
			return xs
		}
		m.Snapshot = &raftpb.Snapshot{Data: data.Draw(t, "data"), Metadata: &raftpb.SnapshotMetadata{
			Index: new(number.Draw(t, "snapshot index")), Term: new(number.Draw(t, "snapshot term")),
			ConfState: &raftpb.ConfState{
				Voters: none(list.Draw(t, "voters")), Learners: none(list.Draw(t, "learners")),
				VotersOutgoing: none(list.Draw(t, "outgoing")), LearnersNext: none(list.Draw(t, "next")),
				AutoLeave: new(rapid.Bool().Draw(t, "auto")),
			},
		}}
	}
	return m
}

func TestMessageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
		b := encodeMessage(m)
		got, err := decodeMessage(b[1:])
		if err != nil || b[0] != kindMessage {
			t.Fatal(err)
		}
		if !sameMessage(m, got) {
			t.Fatalf("%v became %v", m, got)
		}
		// Every shorter letter is refused.
		for n := 1; n < len(b); n++ {
			if _, err := decodeMessage(b[1:n]); !errors.Is(err, ErrBadMessage) {
				t.Fatalf("%d of %d bytes: %v", n, len(b), err)
			}
		}
	})
}

func TestBeatsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := []byte{kindBeats}
		var want []beat
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			number := rapid.Uint64Range(1, 1<<62)
			x := beat{
				group: ids.GroupID(rapid.Uint64().Draw(t, "group")), kind: rapid.SampledFrom([]byte{beatAsk, beatAnswer, beatNote}).Draw(t, "kind"),
				to: number.Draw(t, "to"), from: number.Draw(t, "from"), term: number.Draw(t, "term"), commit: number.Draw(t, "commit"),
			}
			want = append(want, x)
			b = appendBeat(b, x)
		}
		var got []beat
		if err := decodeBeats(b[1:], func(g ids.GroupID, m *raftpb.Message, note bool) {
			kind := byte(beatAsk)
			if note {
				kind = beatNote
			} else if m.GetType() == raftpb.MsgHeartbeatResp {
				kind = beatAnswer
			}
			got = append(got, beat{
				group: g, kind: kind,
				to: m.GetTo(), from: m.GetFrom(), term: m.GetTerm(), commit: m.GetCommit(),
			})
		}); err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("%v became %v", want, got)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%v became %v", want, got)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(encodeMessage((&wireMessage{typ: raftpb.MsgApp, to: 1, from: 2, term: 3}).link()))
	f.Add(appendBeat([]byte{kindBeats}, beat{group: 1, to: 1, from: 2, term: 3}))
	f.Add(encodeQuiesce(quiesce{to: 1, from: 2, term: 3, index: 4, logTerm: 3, incarnation: 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		switch b[0] {
		case kindMessage:
			m, err := decodeMessage(b[1:])
			if err != nil {
				return
			}
			again, err := decodeMessage(encodeMessage(m)[1:])
			if err != nil || !sameMessage(m, again) {
				t.Fatalf("%v became %v, %v", m, again, err)
			}
		case kindBeats:
			_ = decodeBeats(b[1:], func(ids.GroupID, *raftpb.Message, bool) {})
		case kindQuiesce:
			if q, err := decodeQuiesce(b[1:]); err == nil {
				again, err := decodeQuiesce(encodeQuiesce(*q)[1:])
				if err != nil || *again != *q {
					t.Fatalf("%v became %v, %v", q, again, err)
				}
			}
		}
	})
}
