package key_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/key"
)

// awkward are user keys that are hard on an escaping encoding.
var awkward = [][]byte{
	{}, {0}, {0, 0}, {0, 1}, {0, 0xff}, {1}, {0, 0xff, 0}, {0, 1, 0}, []byte("a"), []byte("a\x00"), []byte("a\x00\x00"), []byte("a\x00\x01"),
	[]byte("a\x00\x01\xff\xff\xff\xff\xff\xff\xff\xfe\x10\x00\x01\x00\x00\x0d"), []byte("a\x00\xff"), []byte("a\x01"), []byte("a\xff"), []byte("aa"), []byte("b"),
	{0xff}, {0xff, 0}, {0xff, 0xff, 0xff}, bytes.Repeat([]byte{0}, 40), bytes.Repeat([]byte{9}, 12), []byte("/registry/pods/default/x"),
}

func users() *rapid.Generator[[]byte] {
	small := rapid.SampledFrom([]byte{0, 1, 2, 9, 'a', 'b', 0xfe, 0xff})
	return rapid.OneOf(rapid.SampledFrom(awkward), rapid.SliceOfN(small, 0, 12), rapid.SliceOf(rapid.Byte()))
}

func states() *rapid.Generator[key.State] {
	return rapid.Custom(func(t *rapid.T) key.State {
		s := key.State{Mod: ids.Revision(rapid.Int64Range(1, math.MaxInt64).Draw(t, "mod")), Sub: rapid.Uint32().Draw(t, "sub")}
		if rapid.Bool().Draw(t, "exists") {
			s.Create = ids.Revision(rapid.Int64Range(1, int64(s.Mod)).Draw(t, "create"))
			s.Version = rapid.Int64Range(1, math.MaxInt64).Draw(t, "version")
			s.Lease = ids.LeaseID(rapid.Int64().Draw(t, "lease"))
		}
		return s
	})
}

// TestOrder: encoded keys sort as user keys do, then from the newest revision to the oldest; a place to seek to lies before the versions of its
// revision and behind those above.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := users().Draw(t, "a"), users().Draw(t, "b")
		s, u := states().Draw(t, "s"), states().Draw(t, "u")
		want := bytes.Compare(a, b)
		ka, kb := key.AppendVersion(nil, a, s), key.AppendVersion(nil, b, u)
		if want == 0 {
			if want = -cmpRev(s.Mod, u.Mod); want == 0 {
				return
			}
		}
		if got := key.Comparer.Compare(ka, kb); got != want {
			t.Fatalf("%x against %x: %d, want %d", ka, kb, got, want)
		}
		if c := bytes.Compare(a, b); c != 0 {
			if got := bytes.Compare(key.AppendLease(nil, 7, a), key.AppendLease(nil, 7, b)); got != c {
				t.Fatalf("attachments of %x and %x: %d, want %d", a, b, got, c)
			}
			if got := bytes.Compare(key.AppendBound(nil, a, false), kb); got != c {
				t.Fatalf("bound %x against version of %x: %d, want %d", a, b, got, c)
			}
			return
		}
		seek := key.AppendSeek(nil, a, s.Mod)
		if want = -cmpRev(s.Mod, u.Mod); want == 0 {
			want = -1
		}
		if got := bytes.Compare(seek, kb); got != want {
			t.Fatalf("place at %d against version %d: %d, want %d", s.Mod, u.Mod, got, want)
		}
		if bytes.Compare(seek, ka) != -1 {
			t.Fatalf("place at %d is not before the version there", s.Mod)
		}
	})
}

func cmpRev(a, b ids.Revision) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		user, s := users().Draw(t, "user"), states().Draw(t, "state")
		prefix := []byte("before")
		k := key.AppendVersion(bytes.Clone(prefix), user, s)[len(prefix):]
		got, gs, err := key.DecodeVersion(k)
		if err != nil || !bytes.Equal(got, user) || gs != s {
			t.Fatalf("%x %+v came back as %x %+v, %v", user, s, got, gs, err)
		}
		rev, tombstone, ok := key.DecodeMod(k)
		if !ok || rev != s.Mod || tombstone == s.Exists() {
			t.Fatalf("mod of %x: %d %v %v", k, rev, tombstone, ok)
		}
		if want := key.AppendUser(nil, user); !bytes.Equal(key.Prefix(k), want) {
			t.Fatalf("prefix of %x: %x, want %x", k, key.Prefix(k), want)
		}
		lease := ids.LeaseID(rapid.Int64().Draw(t, "lease"))
		gl, got, err := key.DecodeLease(key.AppendLease(nil, lease, user))
		if err != nil || gl != lease || !bytes.Equal(got, user) {
			t.Fatalf("attachment of %x to %d came back as %x %d, %v", user, lease, got, gl, err)
		}
		rev, sub, err := key.DecodeEvent(key.AppendEvent(nil, s.Mod, s.Sub))
		if err != nil || rev != s.Mod || sub != s.Sub {
			t.Fatalf("event %d.%d came back as %d.%d, %v", s.Mod, s.Sub, rev, sub, err)
		}
	})
}

func TestEventOrder(t *testing.T) {
	var keys [][]byte
	for _, rev := range []ids.Revision{1, 2, 255, 256, 1 << 40, math.MaxInt64} {
		for _, sub := range []uint32{0, 1, 256, math.MaxUint32} {
			keys = append(keys, key.AppendEvent(nil, rev, sub))
		}
	}
	if !slices.IsSortedFunc(keys, bytes.Compare) {
		t.Errorf("not in order: %x", keys)
	}
}

// TestLeaseBounds: the bounds of a lease's attachments hold exactly those of the span.
func TestLeaseBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		leases := rapid.SampledFrom([]ids.LeaseID{math.MinInt64, -1, 0, 1, 2, math.MaxInt64 - 1, math.MaxInt64})
		lease, other := leases.Draw(t, "lease"), leases.Draw(t, "other")
		start, end, user := users().Draw(t, "start"), users().Draw(t, "end"), users().Draw(t, "user")
		k := key.AppendLease(nil, other, user)
		got := bytes.Compare(key.AppendLeaseBound(nil, lease, start, false), k) <= 0 && bytes.Compare(k, key.AppendLeaseBound(nil, lease, end, true)) < 0
		want := lease == other && bytes.Compare(start, user) <= 0 && (len(end) == 0 || bytes.Compare(user, end) < 0)
		if got != want {
			t.Fatalf("attachment of %x to %d within [%x, %x) of %d: %v", user, other, start, end, lease, got)
		}
	})
}

// TestKinds: no two kinds of keys meet, and replicas' records are apart.
func TestKinds(t *testing.T) {
	lower, upper := key.ReplicaBounds(7)
	in := [][]byte{key.Replica(7, 0), key.Replica(7, 'c'), key.Replica(7, 255, 255, 255)}
	out := [][]byte{
		key.Replica(6, 255, 255), key.Replica(8, 0), key.Order('c'), key.Store("x"), key.AppendEvent(nil, 1, 0),
		key.AppendLease(nil, 1, nil), key.AppendVersion(nil, nil, key.State{Mod: 1}),
	}
	within := func(k []byte) bool { return bytes.Compare(lower, k) <= 0 && bytes.Compare(k, upper) < 0 }
	for _, k := range in {
		if !within(k) {
			t.Errorf("%x is not within its replica's bounds", k)
		}
	}
	for _, k := range out {
		if within(k) {
			t.Errorf("%x is within the bounds of replica 7", k)
		}
	}
	if lower, upper := key.ReplicaBounds(math.MaxUint64); bytes.Compare(lower, upper) >= 0 {
		t.Errorf("bounds of the last replica: %x %x", lower, upper)
	}
}

// TestComparer: what the engine relies on (see pebble's description of Comparer).
func TestComparer(t *testing.T) {
	c := key.Comparer
	var suffixes [][]byte
	for _, s := range []key.State{{Mod: 1}, {Mod: 1, Sub: 3}, {Mod: 9, Create: 3, Version: 9}, {Mod: math.MaxInt64, Create: 1, Version: math.MaxInt64, Lease: -1, Sub: math.MaxUint32}} {
		suffixes = append(suffixes, key.AppendVersion(nil, nil, s)[3:])
	}
	suffixes = append(suffixes, key.AppendSeekFrom(nil, 5), nil)
	for _, a := range awkward {
		pa := key.AppendUser(nil, a)
		next := c.ImmediateSuccessor(nil, pa)
		if c.Split(next) != len(next) {
			t.Errorf("successor %x of %x is no prefix", next, pa)
		}
		for _, s := range suffixes {
			k := slices.Concat(pa, s)
			if got := c.Split(k); got != len(pa) {
				t.Errorf("split of %x is %d, want %d", k, got, len(pa))
			}
			if c.Compare(k, next) >= 0 {
				t.Errorf("%x is not below %x, the successor of its prefix", k, next)
			}
			for _, b := range awkward {
				pb := key.AppendUser(nil, b)
				for _, u := range suffixes {
					want := c.Compare(pa, pb)
					if want == 0 {
						want = c.ComparePointSuffixes(s, u)
					}
					l := slices.Concat(pb, u)
					if got := c.Compare(k, l); got != want {
						t.Errorf("%x against %x: %d, want %d", k, l, got, want)
					}
					if c.Compare(pa, pb) < 0 && c.Compare(next, l) > 0 {
						t.Errorf("%x, the successor of %x, is above %x", next, pa, l)
					}
				}
			}
		}
	}
	for _, k := range [][]byte{key.Order('c', 9), key.Replica(1, 'c', 0, 1, 9), key.AppendLease(nil, 9, []byte("a")), {}, {'k'}, {'l'}, key.AppendEvent(nil, 1, 9)} {
		if c.Split(k) != len(k) {
			t.Errorf("split of %x is %d", k, c.Split(k))
		}
		if next := c.ImmediateSuccessor(nil, k); c.Compare(k, next) >= 0 {
			t.Errorf("successor of %x is %x", k, next)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, user := range awkward {
		f.Add(key.AppendVersion(nil, user, key.State{Mod: 9, Create: 3, Version: 300, Lease: -5, Sub: 1}))
		f.Add(key.AppendVersion(nil, user, key.State{Mod: 9, Sub: 200}))
		f.Add(key.AppendSeek(nil, user, 9))
		f.Add(key.AppendLease(nil, -9, user))
	}
	f.Add(key.AppendEvent(nil, 1, 2))
	f.Fuzz(func(t *testing.T, k []byte) {
		if user, s, err := key.DecodeVersion(k); err == nil {
			again, t2, err := key.DecodeVersion(key.AppendVersion(nil, user, s))
			if err != nil || !bytes.Equal(again, user) || t2 != s {
				t.Errorf("%x: %x %+v came back as %x %+v, %v", k, user, s, again, t2, err)
			}
			if _, _, ok := key.DecodeMod(k); !ok {
				t.Errorf("%x has no mod revision", k)
			}
		} else if !errors.Is(err, key.ErrCorrupt) {
			t.Errorf("%x: %v", k, err)
		}
		if n := key.Comparer.Split(k); n < 0 || n > len(k) || len(k) > 0 && n == 0 {
			t.Errorf("split of %x is %d", k, n)
		}
		if lease, user, err := key.DecodeLease(k); err == nil {
			if again := key.AppendLease(nil, lease, user); !bytes.Equal(again, k) {
				t.Error(cmp.Diff(again, k))
			}
		}
		if rev, sub, err := key.DecodeEvent(k); err == nil {
			if again := key.AppendEvent(nil, rev, sub); !bytes.Equal(again, k) {
				t.Error(cmp.Diff(again, k))
			}
		}
		key.DecodeFields(k, 77)
	})
}
