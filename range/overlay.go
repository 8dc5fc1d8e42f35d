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

	older, newer *unordered // of the same key
}

// overlay holds a leader's unordered writes by key, each key's in the order of seqs. It is what a request is
// evaluated on, above the applied state, so that compare-and-swap on one key does not wait for the order in between.
type overlay struct {
	newest map[string]*unordered
}

func newOverlay() overlay { return overlay{newest: make(map[string]*unordered)} }

// push adds a write with a seq above all others.
func (o *overlay) push(u *unordered) {
	k := str(u.key)
	u.older = o.newest[k]
	if u.older != nil {
		u.older.newer = u
		// The map keeps the key that it was given first, whose bytes live as long as the map points at them.
	}
	o.newest[k] = u
}

// remove takes a write out: the oldest of its key when it was applied, the newest when its proposal was dropped.
func (o *overlay) remove(u *unordered) {
	if u.newer != nil {
		u.newer.older = u.older
	} else if u.older != nil {
		o.newest[str(u.key)] = u.older
	} else {
		delete(o.newest, str(u.key))
	}
	if u.older != nil {
		u.older.newer = u.newer
	}
	u.older, u.newer = nil, nil
}

// get is the newest unordered write to a key, nil if there is none.
func (o *overlay) get(key []byte) *unordered { return o.newest[string(key)] }

// str is b as a string without a copy; b must not change as long as the string is used.
func str(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
