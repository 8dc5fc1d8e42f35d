package order

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

func drawItem(t *rapid.T) *braidpb.Item {
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		x := &braidpb.SeqsItem{From: rapid.Uint64Range(0, 1<<40).Draw(t, "from"), FirstRevision: rapid.Int64Range(1, 1<<40).Draw(t, "rev")}
		x.Through = x.From + rapid.Uint64Range(1, 300).Draw(t, "n")
		q := x.From
		for range rapid.IntRange(0, 40).Draw(t, "voids") {
			q += rapid.Uint64Range(1, 5).Draw(t, "gap")
			x.Voids = append(x.Voids, &braidpb.Void{Seq: q, Reason: braidpb.VoidReason(rapid.IntRange(1, 3).Draw(t, "why"))})
		}
		return &braidpb.Item{Kind: &braidpb.Item_Seqs{Seqs: x}}
	case 1:
		return &braidpb.Item{Kind: &braidpb.Item_Decision{Decision: &braidpb.DecisionItem{
			Txn:    &braidpb.TxnID{Node: rapid.Uint64().Draw(t, "node"), Incarnation: rapid.Uint64().Draw(t, "inc"), Counter: rapid.Uint64().Draw(t, "ctr")},
			Commit: rapid.Bool().Draw(t, "commit"), Revision: rapid.Int64Range(0, 1<<50).Draw(t, "rev"), Deadline: rapid.Uint64().Draw(t, "deadline"),
		}}}
	}
	return &braidpb.Item{Kind: &braidpb.Item_Compact{Compact: &braidpb.CompactItem{Revision: rapid.Int64Range(1, 1<<50).Draw(t, "rev")}}}
}

func equalItems(a, b []*braidpb.Item) bool {
	return slices.EqualFunc(a, b, func(x, y *braidpb.Item) bool { return proto.Equal(x, y) })
}

func TestItemsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := rapid.SliceOfN(rapid.Custom(drawItem), 0, 5).Draw(t, "items")
		got, err := decodeItems(appendItems(nil, items))
		if err != nil || !equalItems(got, items) {
			t.Fatalf("%v decoded as %v, %v", items, got, err)
		}
	})
}

func FuzzDecodeItems(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{itemSeqs, 1, 2, 3, 1, 1, 1})
	f.Add([]byte{itemDecision, 1, 2, 3, 1, 4, 5})
	f.Add([]byte{itemCompact, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		items, err := decodeItems(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again, err := decodeItems(appendItems(nil, items))
		if err != nil || !equalItems(items, again) {
			t.Fatalf("%v encoded and decoded: %v, %v", items, again, err)
		}
	})
}

// TestItemQueue compares the queue with a list.
func TestItemQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q itemQueue
		var model []*braidpb.Items
		saved := 0 // of the model's items, counted from the first ever
		gone := 0
		at := ids.Position(0)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 1, 1, 300}).Draw(t, "n") {
					at += ids.Position(rapid.IntRange(1, 200).Draw(t, "step"))
					it := &braidpb.Items{Position: uint64(at), Items: []*braidpb.Item{drawItem(t)}}
					q.push(it)
					model = append(model, it)
				}
			},
			"drop": func(t *rapid.T) {
				p := ids.Position(rapid.IntRange(0, int(at)+2).Draw(t, "p"))
				want := ids.Position(0)
				for len(model) > 0 && ids.Position(model[0].GetPosition()) <= p {
					want = ids.Position(model[0].GetPosition())
					model = model[1:]
					gone++
				}
				if got := q.drop(p); got != want {
					t.Fatalf("drop(%d) = %d, want %d", p, got, want)
				}
			},
			"save": func(t *rapid.T) {
				i := max(0, saved-gone)
				check(t, &model, i, func(visit func(ids.Position, []byte) error) error { return q.save(visit) })
				saved = gone + len(model)
			},
			"each": func(t *rapid.T) {
				above := ids.Position(rapid.IntRange(0, int(at)+1).Draw(t, "above"))
				i := 0
				for i < len(model) && ids.Position(model[i].GetPosition()) <= above {
					i++
				}
				check(t, &model, i, func(visit func(ids.Position, []byte) error) error { return q.each(above, visit) })
			},
			"": func(t *rapid.T) {
				first, last := q.bounds()
				if len(model) == 0 {
					if first != 0 || last != 0 {
						t.Fatalf("bounds [%d, %d] of an empty queue", first, last)
					}
					return
				}
				if uint64(first) != model[0].GetPosition() || uint64(last) != model[len(model)-1].GetPosition() {
					t.Fatalf("bounds [%d, %d]", first, last)
				}
			},
		})
	})
}

// check wants a visit of the model's items from i on.
func check(t *rapid.T, model *[]*braidpb.Items, i int, visit func(func(ids.Position, []byte) error) error) {
	t.Helper()
	err := visit(func(p ids.Position, body []byte) error {
		if i >= len(*model) {
			t.Fatalf("item at %d is too much", p)
		}
		want := (*model)[i]
		got, err := decodeItems(body)
		if err != nil || uint64(p) != want.GetPosition() || !equalItems(got, want.GetItems()) {
			t.Fatalf("item at %d is %v, %v; want %v", p, got, err, want)
		}
		i++
		return nil
	})
	if err != nil || i != len(*model) {
		t.Fatalf("visited %d of %d items: %v", i, len(*model), err)
	}
}
