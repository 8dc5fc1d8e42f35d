package key_test

import (
	"fmt"
	"testing"

	"github.com/braidkv/braid/storage/key"
)

// TestGolden holds the stored form. A change here is a new format: it needs a new name of the comparer and a new format version.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"put", key.AppendVersion(nil, []byte("a\x00b"), key.State{Mod: 0x102, Create: 0x100, Version: 300, Sub: 5, Lease: -1}), "6b6100ff620001" + "fffffffffffffefd" + "10" + "02" + "ac02" + "05" + "01" + "0f"},
		{"tombstone", key.AppendVersion(nil, []byte("a"), key.State{Mod: 0x102, Sub: 1}), "6b610001" + "fffffffffffffefd" + "11" + "01" + "0b"},
		{"seek", key.AppendSeek(nil, []byte("a"), 0x102), "6b610001" + "fffffffffffffefd" + "09"},
		{"event", key.AppendEvent(nil, 0x102, 3), "65" + "0000000000000102" + "00000003"},
		{"attachment", key.AppendLease(nil, 7, []byte("a")), "6c" + "8000000000000007" + "610001"},
		{"replica", key.Replica(7, 'c', 1), "72" + "0000000000000007" + "63" + "01"},
		{"order", key.Order('i', 2), "6f" + "69" + "02"},
		{"store", key.Store("x"), "73" + "78"},
	} {
		if got := fmt.Sprintf("%x", c.got); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if key.Comparer.Name != "braid.v1" {
		t.Errorf("comparer is %s", key.Comparer.Name)
	}
}
