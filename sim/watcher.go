package sim

import (
	"cmp"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/sim/check"
	"github.com/braidkv/braid/watchfanout"
)

// watcher follows a span as a client does: when its node dies, or on a whim, it goes on at another one behind the last event it has seen; when it was
// compacted away, at the compaction.
type watcher struct {
	r           *run
	m           *member
	incarnation uint64
	st          *watchfanout.Stream // nil: not watching
	start, end  string
	prev        bool

	from, next int64 // the first revision wanted, and wanted now
	got        []*mvccpb.Event
	gaps       [][2]int64 // revisions [a, b) that were compacted away
	told       []toldPoint
}

// toldPoint is a progress response: what had been received when it came.
type toldPoint struct {
	rev  int64
	seen int
}

func (r *run) startWatcher() {
	rnd := r.c.World.Rand
	x := &watcher{r: r, from: 1, next: 1, prev: rnd.IntN(2) == 0}
	switch rnd.IntN(3) {
	case 0:
		x.start, x.end = keys[rnd.IntN(len(keys))], ""
		x.end = x.start + "\x00"
	case 1:
		x.start, x.end = "b", "e"
	default:
		x.start = "a"
	}
	x.next = int64(1 + rnd.IntN(30))
	x.from = x.next
	r.watches = append(r.watches, x)
	x.later()
}

func (x *watcher) later() {
	c := x.r.c
	after := c.World.Between(0, 60*Millisecond)
	if c.World.Chance(0.05) {
		after = c.World.Between(0, 2*Second) // a slow reader
	}
	c.World.After(after, "watcher", func() {
		if c.World.Now < x.r.until && c.err == nil {
			x.step()
			x.later()
		}
	})
}

func (x *watcher) alive() bool {
	return x.st != nil && x.m.core != nil && x.m.incarnation == x.incarnation
}

func (x *watcher) step() {
	c := x.r.c
	if x.alive() && c.World.Chance(0.03) { // what waits is lost with the connection
		x.st.Close()
		x.st = nil
	}
	if !x.alive() {
		x.st = nil
		if x.m = c.nodeAt(); x.m == nil {
			return
		}
		x.incarnation = x.m.incarnation
		x.st = x.m.core.Watches().NewStream(false, func() {})
		x.create()
		return
	}
	x.take()
	if x.st != nil && c.World.Chance(0.3) {
		x.st.Progress(0)
	}
	c.wakeWatches(x.m)
}

func (x *watcher) create() {
	x.st.Create(watchfanout.Create{Start: []byte(x.start), End: []byte(x.end), Revision: ids.Revision(x.next), PrevKV: x.prev}, 0)
	x.r.c.wakeWatches(x.m)
}

func (x *watcher) take() {
	rs, _ := x.st.Take()
	for _, resp := range rs {
		switch {
		case resp.CompactRevision != 0:
			x.gaps = append(x.gaps, [2]int64{x.next, resp.CompactRevision})
			x.next = max(x.next, resp.CompactRevision)
			x.create()
			return
		case resp.WatchId == -1:
			x.told = append(x.told, toldPoint{resp.Header.Revision, len(x.got)})
		}
		x.got = append(x.got, resp.Events...)
		if n := len(resp.Events); n > 0 {
			x.next = resp.Events[n-1].Kv.ModRevision + 1
		}
	}
}

// finishWatchers lets the watchers see everything.
func (r *run) finishWatchers() error {
	final := int64(r.c.members[0].core.View().Revision)
	done := func(x *watcher) bool {
		return x.next > final || len(x.told) > 0 && x.told[len(x.told)-1].rev >= final
	}
	for range 2000 {
		left := 0
		for _, x := range r.watches {
			if !done(x) {
				left++
				x.step()
				if x.alive() {
					x.st.Progress(0)
				}
			}
		}
		if left == 0 {
			return nil
		}
		if err := r.runUntil(r.c.World.Now+20*Millisecond, nil); err != nil {
			return err
		}
	}
	for _, x := range r.watches {
		if !done(x) {
			return fmt.Errorf("a watcher of %q to %q at node %v is stuck: wants revision %d of %d", x.start, x.end, x.m.id, x.next, final)
		}
	}
	return nil
}

// judgeWatchers compares what watchers saw with the history: every event of the span from the start on (reliable, resumable), once (unique), in the order of
// revisions and sub-revisions (ordered, atomic), with the previous values, and none at or below a revision of which progress had been told (bookmarkable).
func (r *run) judgeWatchers(history []check.Event, final int64) error {
	history = slices.Clone(history)
	slices.SortFunc(history, func(a, b check.Event) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Sub, b.Sub))
	})
	for _, x := range r.watches {
		if err := x.judge(history, final); err != nil {
			return fmt.Errorf("watcher of %q to %q from %d, gaps %v: %w", x.start, x.end, x.from, x.gaps, err)
		}
	}
	return nil
}

func (x *watcher) judge(history []check.Event, final int64) error {
	n, told := 0, x.told
	latest := map[string]check.Event{}
	for _, h := range history {
		before, had := latest[h.Key]
		latest[h.Key] = h
		if !mvcc.Contains([]byte(x.start), []byte(x.end), []byte(h.Key)) || h.Revision < x.from || x.missed(h.Revision) {
			continue
		}
		for len(told) > 0 && told[0].seen <= n {
			if told[0].rev >= h.Revision {
				return fmt.Errorf("progress %d before event %d of %q", told[0].rev, h.Revision, h.Key)
			}
			told = told[1:]
		}
		if n == len(x.got) {
			return fmt.Errorf("event %d.%d of %q is missing, through %d of %d", h.Revision, h.Sub, h.Key, x.next-1, final)
		}
		e := x.got[n]
		n++
		if string(e.Kv.Key) != h.Key || e.Kv.ModRevision != h.Revision || (e.Type == mvccpb.Event_DELETE) != h.Delete {
			return fmt.Errorf("event %d of %q instead of event %d.%d of %q", e.Kv.ModRevision, e.Kv.Key, h.Revision, h.Sub, h.Key)
		}
		if !h.Delete && (string(e.Kv.Value) != h.Value || e.Kv.Version != h.Version || e.Kv.CreateRevision != h.Create) {
			return fmt.Errorf("event %v instead of %+v", e, h)
		}
		if p := e.PrevKv; p != nil && (!had || before.Delete || p.ModRevision != before.Revision || string(p.Value) != before.Value) {
			return fmt.Errorf("event %v after %+v", e, before)
		}
	}
	if n < len(x.got) {
		return fmt.Errorf("event %v is not in the history, or came twice", x.got[n])
	}
	return nil
}

func (x *watcher) missed(rev int64) bool {
	for _, g := range x.gaps {
		if rev >= g[0] && rev < g[1] {
			return true
		}
	}
	return false
}
