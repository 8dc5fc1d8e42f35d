package check

import (
	"fmt"
	"slices"
	"sort"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// version is what a key holds from one revision on; kv is nil for a deletion.
type version struct {
	rev int64
	kv  *mvccpb.KeyValue
}

// timeline is the content of the store at every revision from base on. It does not change once it is built.
type timeline struct {
	base  int64
	keys  []string // ascending: every key that ever existed
	byKey map[string][]version
	// events[i] is revision base+1+i, in sub order where that is known.
	events [][]Event
}

// at returns the events of a revision above base.
func (t *timeline) at(rev int64) []Event { return t.events[rev-t.base-1] }

// get returns the key as of rev, or nil.
func (t *timeline) get(key string, rev int64) *mvccpb.KeyValue {
	vs := t.byKey[key]
	i := sort.Search(len(vs), func(i int) bool { return vs[i].rev > rev })
	if i == 0 {
		return nil
	}
	return vs[i-1].kv
}

// newTimeline builds the timeline of a history. It reports contradictions between the events through
// fault and goes on as well as it can.
func newTimeline(h *History, fault func(Fault)) *timeline {
	t := &timeline{base: h.Base, byKey: map[string][]version{}}
	for _, kv := range h.Initial {
		t.byKey[string(kv.Key)] = []version{{rev: kv.ModRevision, kv: kv}}
		if kv.ModRevision > h.Base {
			fault(Fault{Name: BadHistory, Op: -1, Revision: kv.ModRevision, Text: fmt.Sprintf("initial key %q is newer than the base %d", kv.Key, h.Base)})
		}
	}
	if h.Final > h.Base {
		t.events = make([][]Event, h.Final-h.Base)
	}
	for _, e := range h.Events {
		if e.Revision <= h.Base || e.Revision > h.Final {
			fault(Fault{Name: BadEvents, Op: -1, Revision: e.Revision, Text: fmt.Sprintf("outside (%d, %d]: %v", h.Base, h.Final, e)})
			continue
		}
		i := e.Revision - h.Base - 1
		t.events[i] = append(t.events[i], e)
	}
	for i, evs := range t.events {
		rev := h.Base + 1 + int64(i)
		if len(evs) == 0 {
			fault(Fault{Name: RevisionGap, Op: -1, Revision: rev, Text: "no event has this revision"})
			continue
		}
		slices.SortStableFunc(evs, func(a, b Event) int { return int(a.Sub - b.Sub) })
		for n, e := range evs {
			if e.Sub >= 0 && e.Sub != int64(n) {
				fault(Fault{Name: BadEvents, Op: -1, Revision: rev, Text: fmt.Sprintf("sub-revisions are not 0, 1, ..: event %d has %d", n, e.Sub)})
				break
			}
		}
		t.append(rev, evs, fault)
	}
	for k := range t.byKey {
		t.keys = append(t.keys, k)
	}
	slices.Sort(t.keys)
	return t
}

func (t *timeline) append(rev int64, evs []Event, fault func(Fault)) {
	bad := func(e Event, why string) {
		fault(Fault{Name: BadEvents, Op: -1, Revision: rev, Text: fmt.Sprintf("%s: %v", why, e)})
	}
	for _, e := range evs {
		vs := t.byKey[e.Key]
		if len(vs) > 0 && vs[len(vs)-1].rev == rev {
			bad(e, "one key twice in one revision")
			continue
		}
		var prev *mvccpb.KeyValue
		if len(vs) > 0 {
			prev = vs[len(vs)-1].kv
		}
		if e.Delete {
			if prev == nil {
				bad(e, "the key did not exist")
			}
			t.byKey[e.Key] = append(vs, version{rev: rev})
			continue
		}
		kv := written(prev, e, rev)
		if e.Create != 0 && e.Create != kv.CreateRevision || e.Version != 0 && e.Version != kv.Version {
			bad(e, fmt.Sprintf("create revision %d and version %d, want %d and %d", e.Create, e.Version, kv.CreateRevision, kv.Version))
		}
		t.byKey[e.Key] = append(vs, version{rev: rev, kv: kv})
	}
}

// written is the key after a put at rev on top of prev, which is nil if it did not exist.
func written(prev *mvccpb.KeyValue, e Event, rev int64) *mvccpb.KeyValue {
	kv := &mvccpb.KeyValue{Key: []byte(e.Key), Value: []byte(e.Value), Lease: e.Lease, CreateRevision: rev, ModRevision: rev, Version: 1}
	if prev != nil {
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
	}
	return kv
}

// source is a store's content by revision: a timeline, or a state of the search in Recover.
type source interface {
	get(key string, rev int64) *mvccpb.KeyValue
	// sorted lists, in ascending order, every key that may exist at some revision.
	sorted() []string
}

func (t *timeline) sorted() []string { return t.keys }

// span is a set of keys as etcd's requests name it.
type span struct{ key, end string }

func (s span) has(k string) bool {
	switch s.end {
	case "":
		return k == s.key
	case "\x00":
		return k >= s.key
	}
	return k >= s.key && k < s.end
}

// view is the content at one revision, with what a transaction wrote so far on top.
type view struct {
	src source
	rev int64
	// own holds the transaction's own writes, nil for deleted; empty outside of one.
	own map[string]*mvccpb.KeyValue
}

func (v *view) get(key string) *mvccpb.KeyValue {
	if kv, ok := v.own[key]; ok {
		return kv
	}
	return v.src.get(key, v.rev)
}

// scan returns the keys of a span in ascending order.
func (v *view) scan(s span) []*mvccpb.KeyValue {
	if s.end == "" {
		if kv := v.get(s.key); kv != nil {
			return []*mvccpb.KeyValue{kv}
		}
		return nil
	}
	keys := v.src.sorted()
	i, _ := slices.BinarySearch(keys, s.key)
	var out []*mvccpb.KeyValue
	for ; i < len(keys) && s.has(keys[i]); i++ {
		if kv := v.get(keys[i]); kv != nil {
			out = append(out, kv)
		}
	}
	return v.addNew(out, s)
}

// addNew merges into a scan the transaction's own keys that the source has never seen.
func (v *view) addNew(out []*mvccpb.KeyValue, s span) []*mvccpb.KeyValue {
	known := v.src.sorted()
	added := false
	for k, kv := range v.own {
		if _, seen := slices.BinarySearch(known, k); !seen && kv != nil && s.has(k) {
			out, added = append(out, kv), true
		}
	}
	if added {
		slices.SortFunc(out, func(a, b *mvccpb.KeyValue) int { return slices.Compare(a.Key, b.Key) })
	}
	return out
}
