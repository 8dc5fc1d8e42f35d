package ranges

import "github.com/braidkv/braid/internal/ids"

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

// cut is the last entry to go, if what is flushed ends with entry flushed: zero if nothing goes.
func (t *tail) cut(flushed ids.Index, l *Limits) ids.Index {
	var through ids.Index
	if uint64(flushed) > l.KeepEntries {
		through = flushed - ids.Index(l.KeepEntries)
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
		if end-m.total >= l.KeepBytes {
			through = max(through, m.index)
			break
		}
	}
	for t.marks.Len() > 1 && t.marks.At(1).index <= through {
		t.marks.PopFront()
	}
	if through <= t.truncated {
		return 0
	}
	t.truncated = through
	return through
}

// truncate lets the log forget what is durably applied, except for what slow followers may want.
func (r *Replica) truncate(m FlushMark) {
	if through := r.tail.cut(m.Index, &r.cfg.Limits); through > 0 {
		r.host.Truncate(through)
	}
}
