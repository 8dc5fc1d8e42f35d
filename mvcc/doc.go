// Package mvcc keeps every version of every user key in the data engine and reads them at a revision.
//
// Given a reader or a batch and a revision, it puts, deletes, reads, lists, counts and compacts; it decides nothing: revisions, and
// what to write, come as arguments. It has no goroutines and no state but a Writer's; a Writer belongs to one goroutine,
// everything else may be used by anybody.
//
// Spans are [start, end): an empty start is the first key, an empty end is the end of the key space. A single key k is
// [k, k+"\x00").
//
// Stored under k: for each version, its key (see package key) and format, create revision, version number, sub-revision,
// lease and value; a tombstone has only format and sub-revision. Under e: for each event the user key, whether it is a deletion, and the
// mod revision that the key had before, zero if none. Under l: one empty record for each key of a lease.
package mvcc
