package mvcc

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/braidkv/braid/storage/key"
)

// TestEventGolden holds the stored form of an event.
func TestEventGolden(t *testing.T) {
	prev := KeyState{Mod: 0x101, Create: 0x100, Version: 2, Sub: 1, Lease: 3}
	for _, c := range []struct {
		e    Event
		want string
	}{
		{Event{Rev: 0x102, Key: []byte("a")}, "01" + "00" + "00" + "61"},
		{Event{Rev: 0x102, Key: []byte("a"), Deletion: true, Prev: prev}, "01" + "01" + "8102" + "01" + "02" + "01" + "06" + "61"},
	} {
		v := appendEvent(nil, c.e)
		if got := fmt.Sprintf("%x", v); got != c.want {
			t.Errorf("%+v: %s, want %s", c.e, got, c.want)
		}
		got, err := decodeEvent(key.AppendEvent(nil, c.e.Rev, c.e.Sub), v)
		if d := cmp.Diff(c.e, got); d != "" || err != nil {
			t.Errorf("came back with %v: %s", err, d)
		}
	}
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add(appendEvent(nil, Event{Key: []byte("a")}))
	f.Add(appendEvent(nil, Event{Key: []byte("a"), Deletion: true, Prev: KeyState{Mod: 300, Create: 5, Version: 700, Lease: -1}}))
	k := key.AppendEvent(nil, 7, 1)
	f.Fuzz(func(t *testing.T, v []byte) {
		e, err := decodeEvent(k, v)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		again, err := decodeEvent(k, appendEvent(nil, e))
		if d := cmp.Diff(e, again); d != "" || err != nil {
			t.Errorf("came back with %v: %s", err, d)
		}
	})
}
