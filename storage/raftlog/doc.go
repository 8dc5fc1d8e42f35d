// Package raftlog keeps the Raft logs and hard states of all groups of a node in one engine, and turns the
// appends of all groups into few synced batches.
//
// # Map
//
// A GroupLog belongs to the worker of its group: it answers Raft from memory (terms, first and last index, a bounded
// cache of recent entries) and reads the engine only for old entries. What it is told to append it knows at once,
// which is right because Raft asks storage only for what it has been told is durable. Writing is the
// Log's: GroupLog.Append puts a job into one queue for all groups, and then
//
//	jobs of all groups ─> write: one batch, handed to the engine ─> settle: wait for the fsync ─> Job.Done
//
// in the order of submission. Several batches may wait for the disk at once; the engine syncs
// them together. Done is called only when the job and all before it are durable.
//
// What need not be durable by itself (the commit index, truncation) rides with the next batch, or with the next
// call of FlushLazy.
//
// # Guarantees
//
//   - L1: jobs of a group become durable in order; after a crash the log is that of some prefix of its jobs which contains
//     every job that was completed.
//   - L2: an entry and the removal of entries above it that it replaces are one batch, and so are a
//     log reset and its hard state.
//   - L3: after an error of write or sync no further job is completed, ever; onFatal is told once.
//
// # Goroutines
//
// None but Run's own (which the caller starts): it waits for the disk and completes jobs. Write may be called
// from workers; whoever comes first writes for all.
package raftlog
