package raftlog

import "go.etcd.io/raft/v3/raftpb"

// entryCache holds the newest entries of a log, without gaps up to the last one. Slices it hands out stay valid and unchanged:
// entries are only ever added behind what was handed out, or the array is left for a new one.
type entryCache struct {
	lo    uint64 // index of ents[0]
	ents  []*raftpb.Entry
	bytes int64
}

// add puts entries at the end; those at or above the first one's index are replaced.
func (c *entryCache) add(ents []*raftpb.Entry) {
	first := ents[0].GetIndex()
	if keep := int64(first) - int64(c.lo); len(c.ents) == 0 || keep <= 0 {
		c.lo, c.ents, c.bytes = first, nil, 0
	} else if keep < int64(len(c.ents)) {
		for _, e := range c.ents[keep:] {
			c.bytes -= entrySize(e)
		}
		c.ents = append(make([]*raftpb.Entry, 0, int(keep)+len(ents)), c.ents[:keep]...)
	}
	for _, e := range ents {
		c.bytes += entrySize(e)
	}
	c.ents = append(c.ents, ents...)
}

// trim drops the oldest entries until limit bytes are left, but none above index durable, which
// the engine cannot yet answer.
func (c *entryCache) trim(limit int64, durable uint64) {
	n := 0
	for c.bytes > limit && n < len(c.ents) && c.lo+uint64(n) <= durable {
		c.bytes -= entrySize(c.ents[n])
		n++
	}
	c.drop(n)
}

// dropThrough forgets entries up to index i.
func (c *entryCache) dropThrough(i uint64) {
	if len(c.ents) == 0 || i < c.lo {
		return
	}
	n := int(min(i-c.lo+1, uint64(len(c.ents))))
	for _, e := range c.ents[:n] {
		c.bytes -= entrySize(e)
	}
	c.drop(n)
}

func (c *entryCache) drop(n int) {
	if n == 0 {
		return
	}
	c.lo += uint64(n)
	rest := c.ents[n:]
	// Leave the array, and so the dropped entries, to the collector when most of it is waste.
	if 2*len(rest) <= n {
		rest = append([]*raftpb.Entry(nil), rest...)
	}
	c.ents = rest
}

// slice returns entries [lo, hi) as far as max bytes allow, at least one; all must be in the cache.
func (c *entryCache) slice(lo, hi, max uint64) []*raftpb.Entry {
	ents := c.ents[lo-c.lo : hi-c.lo]
	n := within(ents, max)
	return ents[:n:n]
}

// within counts the leading entries that fit into max bytes, at least one.
func within(ents []*raftpb.Entry, max uint64) int {
	var size uint64
	for i, e := range ents {
		size += uint64(entrySize(e))
		if size > max && i > 0 {
			return i
		}
	}
	return len(ents)
}
