// Package storage opens the two Pebble engines of a node.
//
// log holds the Raft logs and hard states; its write-ahead log is the only thing that a write waits for. data holds
// versions, the event index, and the states of replicas and of the order group; it has no write-ahead log, so after a crash it is a prefix, in
// commit order, of the batches committed to it (its memtables are flushed in order), and everything behind is
// applied again from the logs.
//
// The directory carries a format version, written before anything else, and an identity, both in the file FORMAT. A directory of another
// format is refused.
package storage
