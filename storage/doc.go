// Package storage opens the two Pebble engines of a node.
//
// log holds the Raft logs and hard states; its write-ahead log is the only thing that a write waits for. data holds
// versions, the event index, and the states of replicas and of the order group; it has no write-ahead log, so after a crash it is a prefix, in
// commit order, of the batches committed to it (its memtables are flushed in order), and everything behind is
// applied again from the logs.
//
// The directory carries a format version, written before anything else, and an identity, both in the file FORMAT. A directory of another
// format is refused.
//
// # Memory
//
// Memtables take their room out of the block cache, in both engines (Pebble reserves it there). So CacheBytes is about what the engines
// use altogether, and what is left for blocks is CacheBytes less the memtables in use: usually one or two of each
// engine, 32 to 64 and 16 to 32 MiB. Below that, blocks of filters and indexes would be read again for every look-up. Values in memory
// outside of it: table metadata and compression buffers, some MiB.
//
// # Errors
//
// What a caller waits for returns its error. What goes wrong in the background, a flush or a compaction, or a block that is found corrupt
// wherever it is read, is told to OnBackgroundError as well; the error names the file. Some errors leave an engine without a
// state it could go on from (the write-ahead log or the manifest cannot be written): it tells OnBackgroundError
// and then panics with a FatalError.
package storage
