package ranges

import (
	"unsafe"

	"github.com/braidkv/braid/internal/ids"
)

// unordered is a write which this leader has numbered and which is not applied. Key and value are the request's own
// bytes, which do not change before the write is applied.
type unordered struct {
	key, value []byte
	lease      ids.LeaseID
	delete     bool
	seq        ids.Seq
	gen        ids.Generation
	auth       ids.AuthRevision

	// Of the same key. depth counts the writes from when there was none; deleted is the depth of the newest deletion at or
	// below this write, other that of the newest write below it that is stamped otherwise; zero if there is none.
	older, newer   *unordered
	depth          uint64
	deleted, other uint64
}

// chain is the unordered writes to one key: of ascending seqs, oldest to newest.
type chain struct{ oldest, newest *unordered }

// overlay holds a leader's unordered writes by key. It is what a request is evaluated on, above the applied state, so that
// compare-and-swap on one key does not wait for the order in between. All it does is independent of how many writes a key has.
type overlay struct {
	chains map[string]*chain
	free   []*chain
}

func newOverlay() overlay { return overlay{chains: make(map[string]*chain)} }

// push adds a write with a seq above all others.
func (o *overlay) push(u *unordered) {
	c := o.chains[str(u.key)]
	if c == nil {
		if n := len(o.free); n > 0 {
			c, o.free = o.free[n-1], o.free[:n-1]
		} else {
			c = &chain{}
		}
		// The map keeps these bytes of the key as long as there is a write to it.
		o.chains[str(u.key)] = c
		c.oldest = u
		u.depth = 1
	} else {
		old := c.newest
		old.newer, u.older = u, old
		u.depth, u.deleted, u.other = old.depth+1, old.deleted, old.other
		if old.gen != u.gen || old.auth != u.auth {
			u.other = old.depth
		}
	}
	if u.delete {
		u.deleted = u.depth
	}
	c.newest = u
}

// remove takes a write out: the oldest of its key when it was applied, the newest when its proposal was dropped.
func (o *overlay) remove(u *unordered) {
	c := o.chains[string(u.key)]
	if u.newer != nil {
		u.newer.older = u.older
	} else {
		c.newest = u.older
	}
	if u.older != nil {
		u.older.newer = u.newer
	} else {
		c.oldest = u.newer
	}
	u.older, u.newer = nil, nil
	if c.oldest == nil {
		delete(o.chains, string(u.key))
		o.free = append(o.free, c)
	}
}

// get is the unordered writes to a key, nil if there are none.
func (o *overlay) get(key []byte) *chain { return o.chains[string(key)] }

// mixed tells whether the writes are stamped in different ways.
func (c *chain) mixed() bool { return c.newest.other >= c.oldest.depth }

// versions is how many versions the key has from the writes alone, and whether the first of them creates the key whatever it was
// before.
func (c *chain) versions() (n int64, created bool) {
	u := c.newest
	if u.deleted >= c.oldest.depth {
		return int64(u.depth - u.deleted), true
	}
	return int64(u.depth - c.oldest.depth + 1), false
}

// str is b as a string without a copy; b must not change as long as the string is used.
func str(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
