// Package mvcc keeps every version of every user key in the data engine and reads them at a revision.
//
// Given a reader or a batch and a revision, it puts, deletes, reads, lists, counts and compacts; it decides nothing: revisions, and
// what to write, come as arguments. It has no goroutines and no state but a Writer's; a Writer and an Iterator belong to one goroutine
// each, everything else may be used by anybody.
//
// Spans are [start, end): an empty start is the first key, an empty end is the end of the key space. A single key k is
// [k, k+"\x00").
//
// Stored under k: for each version its key, which tells all but the value (see package key), and the value as the client
// gave it; a tombstone has none. Under e: for each event a format byte, whether it is a deletion, what the key was before (mod
// revision, zero if it did not exist, else followed by the fields of its version) and the user key. Under l: one empty
// record for each key of a lease.
//
// M1: the versions of a key have ascending revisions, at most one at each; a transaction writes no key twice.
//
// Entries under e and l may be left over from a state that an imported one replaced (see package transfer). What reads
// them asks the versions whether they still hold.
package mvcc
