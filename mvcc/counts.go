package mvcc

import (
	"encoding/binary"
	"sync"

	"github.com/braidkv/braid/internal/ids"
)

// maxCounts is how many counts are remembered: more than there are lists under way at a time. The oldest is forgotten first.
const maxCounts = 1024

// maxCountKey is the length of bounds, together, from which nothing is remembered: it bounds the memory.
const maxCountKey = 4 << 10

// Counts remembers how many keys lie behind a page of a list, so that the next page need not count the whole rest again, which is what makes
// paging through n keys take time in n². What a span holds at a revision never changes once all of that revision is
// applied, so what is remembered stays true; nothing has to be invalidated. Whether the revision is compacted is asked elsewhere. The
// zero Counts is ready to use, by any goroutine.
type Counts struct {
	mu     sync.Mutex
	counts map[string]int64
	order  [maxCounts]string // a ring
	next   int
}

// countKey appends what a count belongs to; ok is false if that is too long.
func countKey(dst, start, end []byte, rev ids.Revision) (k []byte, ok bool) {
	dst = binary.AppendUvarint(dst, uint64(rev))
	dst = binary.AppendUvarint(dst, uint64(len(start)))
	return append(append(dst, start...), end...), len(start)+len(end) <= maxCountKey
}

// Get is the number of keys of a span at a revision, if it is known.
func (c *Counts) Get(start, end []byte, rev ids.Revision) (int64, bool) {
	var buf [256]byte
	k, _ := countKey(buf[:0], start, end, rev)
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.counts[string(k)]
	return n, ok
}

// Page notes what a page has shown: of count keys in a span that ends at end, those up to and including last, shown in number, with
// no filter. All that was written at or below the revision must be applied in the whole span.
func (c *Counts) Page(last, end []byte, rev ids.Revision, count, shown int64) {
	var buf [256]byte
	// Clients go on with the key that follows.
	k, ok := countKey(buf[:0], append(append(make([]byte, 0, 128), last...), 0), end, rev)
	if !ok || shown >= count {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int64{}
	}
	if _, ok := c.counts[string(k)]; ok {
		return
	}
	delete(c.counts, c.order[c.next])
	c.order[c.next] = string(k)
	c.counts[c.order[c.next]] = count - shown
	c.next = (c.next + 1) % maxCounts
}
