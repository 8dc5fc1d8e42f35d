package raftlog

import (
	"bytes"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
)

func TestKeysAscend(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, h := ids.GroupID(rapid.Uint64().Draw(t, "g")), ids.GroupID(rapid.Uint64().Draw(t, "h"))
		i, j := rapid.Uint64().Draw(t, "i"), rapid.Uint64().Draw(t, "j")
		a, b := appendEntryKey(nil, g, i), appendEntryKey(nil, h, j)
		want := 0
		switch {
		case g < h || g == h && i < j:
			want = -1
		case g != h || i != j:
			want = 1
		}
		if bytes.Compare(a, b) != want {
			t.Fatalf("%x and %x", a, b)
		}
		if got, err := decodeEntryKey(a); err != nil || got != i {
			t.Fatal(got, err)
		}
		k := make([]byte, entryKeyLen)
		if putEntryKey(k, g, i); !bytes.Equal(k, a) {
			t.Fatalf("%x and %x", k, a)
		}
	})
}

func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Uint64Range(1, 1<<62), 0, 4)
		cs := &raftpb.ConfState{
			Voters: list.Draw(t, "voters"), Learners: list.Draw(t, "learners"),
			VotersOutgoing: list.Draw(t, "outgoing"), LearnersNext: list.Draw(t, "next"),
			AutoLeave: new(rapid.Bool().Draw(t, "auto")),
		}
		index := rapid.Uint64().Draw(t, "index")
		got, back, err := decodeConf(appendConf(nil, index, cs))
		if err != nil || got != index || back.String() != cs.String() {
			t.Fatal(got, back, err)
		}
		term := rapid.Uint64().Draw(t, "term")
		v := make([]byte, entryHeaderLen(term)+3)
		n := putEntryHeader(v, raftpb.EntryConfChange, term)
		copy(v[n:], "abc")
		typ, gotTerm, data, err := decodeEntryHeader(v)
		if err != nil || typ != raftpb.EntryConfChange || gotTerm != term || string(data) != "abc" {
			t.Fatal(typ, gotTerm, data, err)
		}
	})
}

func TestTermRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := termRuns{{0, 0}}
		var terms []uint64 // of entry i+1
		dropped := uint64(0)
		term := uint64(1)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				i := rapid.Uint64Range(dropped+1, uint64(len(terms))+1).Draw(t, "index")
				if i <= uint64(len(terms)) {
					term++
				}
				terms = append(terms[:i-1], term)
				runs = runs.put(i, term)
			},
			"election": func(*rapid.T) { term++ },
			"drop": func(t *rapid.T) {
				dropped = rapid.Uint64Range(dropped, uint64(len(terms))).Draw(t, "through")
				runs = runs.dropBefore(dropped)
			},
			"": func(t *rapid.T) {
				for i := max(dropped, 1); i <= uint64(len(terms)); i++ {
					if got := runs.at(i); got != terms[i-1] {
						t.Fatalf("term of %d is %d, want %d, runs %v", i, got, terms[i-1], runs)
					}
				}
			},
		})
	})
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte{valueVersion, 1, 2, 3})
	f.Add(appendConf(nil, 9, &raftpb.ConfState{Voters: []uint64{1, 2}}))
	f.Fuzz(func(t *testing.T, v []byte) {
		if index, cs, err := decodeConf(v); err == nil {
			again, back, err := decodeConf(appendConf(nil, index, cs))
			if err != nil || again != index || back.String() != cs.String() {
				t.Fatalf("%v became %v, %v", cs, back, err)
			}
		}
		if xs, err := numbers(v, 3); err == nil && len(xs) != 3 {
			t.Fatal(xs)
		}
		if _, _, data, err := decodeEntryHeader(v); err == nil && len(data) > len(v)-2 {
			t.Fatal(data)
		}
		_, _ = decodeEntryKey(v)
	})
}
