package key

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// split is where the part of a key ends that all versions of a user key share. Keys without a version are wholly that part.
func split(k []byte) int { return len(k) - suffixLen(k) }

// Comparer orders keys by their bytes and knows where a user key ends and its version begins, so that bloom
// filters work on user keys and iterators can step from one to the next. Its name is stored in the engine, which
// does not open with another: a change of the order or of the split needs a new name.
var Comparer = func() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Split = split
	c.ComparePointSuffixes = bytes.Compare
	c.CompareRangeSuffixes = bytes.Compare
	// A shortened key could split where no version begins: keys are kept as they are.
	c.Separator = func(dst, a, _ []byte) []byte { return append(dst, a...) }
	c.Successor = func(dst, a []byte) []byte { return append(dst, a...) }
	c.ImmediateSuccessor = immediateSuccessor
	c.Name = "braid.v1"
	return &c
}()

// immediateSuccessor appends the least prefix above another. A zero byte behind a terminated user key would be
// among its versions, so that one is followed by what its terminator raised by one makes.
func immediateSuccessor(dst, prefix []byte) []byte {
	dst = append(dst, prefix...)
	if n := len(prefix); n > 2 && prefix[0] == PrefixUser && prefix[n-1] == terminator && prefix[n-2] == escape {
		dst[len(dst)-1] = terminator + 1
		return dst
	}
	return append(dst, 0)
}
