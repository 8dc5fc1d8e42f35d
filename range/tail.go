package ranges

import (
	"math"

	"github.com/braidkv/braid/internal/ids"
)

// tail remembers how large the delivered part of the log is, so that it can be truncated by size. It is coarse: a mark
// for every so many entries or bytes. What was delivered before this process began is not known; the limit by entries holds
// for it.
type tail struct {
	marks     deque[tailMark]
	total     int64
	truncated ids.Index
}

type tailMark struct {
	index ids.Index
	total int64 // bytes of all entries through index
}

const (
	tailEntries = 256
	tailBytes   = 256 << 10
)

func (t *tail) add(i ids.Index, size int) {
	t.total += int64(size)
	if n := t.marks.Len(); n > 0 {
		if last := t.marks.At(n - 1); i < last.index+tailEntries && t.total < last.total+tailBytes {
			return
		}
	}
	t.marks.PushBack(tailMark{i, t.total})
}

// find is the last entry that is not wanted any more, if what is flushed ends with entry flushed.
func (t *tail) find(flushed ids.Index, keepEntries uint64, keepBytes int64) ids.Index {
	var through ids.Index
	if uint64(flushed) > keepEntries {
		through = flushed - ids.Index(keepEntries)
	}
	end := t.total
	for i := t.marks.Len() - 1; i >= 0; i-- {
		m := t.marks.At(i)
		if m.index > flushed {
			continue
		}
		if end == t.total {
			end = m.total
		}
		if end-m.total >= keepBytes {
			return max(through, m.index)
		}
	}
	return through
}

// cut is the last entry to go, if what is flushed ends with entry flushed and followers that are heard of have what goes
// through held: zero if nothing goes.
func (t *tail) cut(flushed, held ids.Index, l *Limits) ids.Index {
	through := t.find(flushed, l.KeepEntries, l.KeepBytes)
	if held < through {
		through = max(held, t.find(flushed, heldFactor*l.KeepEntries, heldFactor*l.KeepBytes))
	}
	if through <= t.truncated {
		return 0
	}
	for t.marks.Len() > 1 && t.marks.At(1).index <= through {
		t.marks.PopFront()
	}
	t.truncated = through
	return through
}

// heldFactor is how many times the limits a leader keeps of its log for followers that it hears of.
const heldFactor = 32

// truncate lets the log forget what is durably applied, except for what followers may want: a leader knows what those that it hears of
// have, and would rather keep more than hand out state.
func (r *Replica) truncate(m FlushMark) {
	held := ids.Index(math.MaxUint64)
	if r.role.IsLeader {
		r.host.Followers(func(f Follower) {
			if f.Active {
				held = min(held, f.Match)
			}
		})
	}
	if through := r.tail.cut(m.Index, held, &r.cfg.Limits); through > 0 {
		r.host.Truncate(through)
	}
}
