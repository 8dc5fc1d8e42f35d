package key

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// split is where the part of a key ends that all versions of a user key share.
func split(k []byte) int {
	if len(k) == 0 || k[0] != PrefixUser {
		return len(k)
	}
	end, _ := splitEscaped(k[1:])
	if end < 0 {
		return len(k)
	}
	return 1 + end
}

// Comparer orders keys by their bytes and knows where a user key ends and its version begins, so that bloom
// filters work on user keys and iterators can step from one to the next.
var Comparer = func() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Split = split
	c.ComparePointSuffixes = bytes.Compare
	c.CompareRangeSuffixes = bytes.Compare
	// A shortened key must not look like a user key with a strange version: keys are kept as they are.
	c.Separator = func(dst, a, _ []byte) []byte { return append(dst, a...) }
	c.Successor = func(dst, a []byte) []byte { return append(dst, a...) }
	// The least prefix above: a zero byte behind a terminated user key is still one prefix with it, so it goes to the next one.
	c.ImmediateSuccessor = func(dst, prefix []byte) []byte {
		dst = append(dst, prefix...)
		if n := split(prefix); n == len(prefix) && len(prefix) > 2 && prefix[0] == PrefixUser && prefix[n-1] == terminator && prefix[n-2] == escape {
			dst[len(dst)-1] = terminator + 1
			return dst
		}
		return append(dst, 0)
	}
	c.Name = "braid.v1"
	return &c
}()
