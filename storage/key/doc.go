// Package key encodes and decodes every key of the data engine, and holds the engine's comparer. The order of the
// encoded keys is the order of what they stand for. (The keys of the log engine are raftlog's.)
//
//	k <user key, escaped> <terminator> <version>        a version of a user key, newest first
//	e <revision: 8> <sub: 4>                            the event index
//	l <lease: 8> <user key, escaped> <terminator>       what is attached to a lease
//	r <range: 8> <what: 1> <suffix>                     records of a replica
//	o <what: 1> <suffix>                                records of the order state
//	s <name>                                            records of the store itself
//
// User keys are escaped so that none is the beginning of another and their order is kept: 0x00 becomes 0x00 0xff, and the
// terminator is 0x00 0x01.
//
// A version's key holds all there is to know of it but the value:
//
//	<revision, inverted: 8> <kind: 1> <fields> <length of the version: 1>
//
// The fields of a put are, as varints, revision minus create revision, version number, sub-revision and (signed) lease; those of
// a tombstone the sub-revision. They are in the key, not beside the value, so that counting, listing keys, filtering by revision and
// looking up what a write replaces never touch a value, which may lie in another file. There is at most one
// version of a user key at a revision, so the fields never decide an order; the length at the end makes the
// split between user key and version a matter of one byte.
package key

import "errors"

// The first byte of a key says what it is.
const (
	PrefixUser    = 'k'
	PrefixEvent   = 'e'
	PrefixLease   = 'l'
	PrefixReplica = 'r'
	PrefixOrder   = 'o'
	PrefixStore   = 's'
)

// ErrCorrupt says that bytes are not a key of the kind asked for.
var ErrCorrupt = errors.New("key: malformed")
