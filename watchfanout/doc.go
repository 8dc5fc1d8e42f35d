// Package watchfanout serves the watches of a node from the node's own replicas, in the order of revisions.
//
// A Hub has groups, one for each span that is watched. A group has a mark, done: every event of its span at or below it has been handed to the
// streams of its watches, or is for a catch-up to find. Pump moves the marks on: through the least frontier of the ranges that the
// span touches, so that nothing can still come below. A range to which the order log has nothing to say lags behind nobody, and so marks follow the
// store's revision also where nothing happens. Pump reads what lies between the old and the new marks once, from the event index, for all
// groups.
//
// A watch is synced, and gets what Pump reads, or behind: because it starts in the past, or its stream was full. CatchUp reads history
// for those, a part at a time and many watches at once, outside of all locks, until they meet their group's mark.
//
// A Stream is a client's: a queue of responses, bounded in bytes. A response that finds the queue full makes its watch fall behind; it does not wait,
// and nobody waits for it.
//
// The package has no goroutines and no clock: the node calls Pump when something was applied, CatchUp as long as it says so, and
// Tick. All of it is safe for concurrent use.
package watchfanout
