package check

import (
	"fmt"
	"slices"
	"sort"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// Diff returns the events of revision rev, given the whole content at rev-1 and at rev, each in key order. So the
// history of a store can be had by reading it at every revision, without a watch. Subs are unknown (-1).
// It fails if the two contents cannot be neighbours.
func Diff(before, after []*mvccpb.KeyValue, rev int64) ([]Event, error) {
	var out []Event
	for len(before) > 0 || len(after) > 0 {
		order := -1
		switch {
		case len(before) == 0:
			order = 1
		case len(after) > 0:
			order = slices.Compare(before[0].Key, after[0].Key)
		}
		switch {
		case order < 0:
			out = append(out, Event{Revision: rev, Sub: -1, Key: string(before[0].Key), Delete: true})
			before = before[1:]
			continue
		case order == 0 && proto.Equal(before[0], after[0]):
			before, after = before[1:], after[1:]
			continue
		case after[0].ModRevision != rev:
			return nil, fmt.Errorf("between revisions %d and %d %s appeared or changed", rev-1, rev, show(after[0]))
		}
		kv := after[0]
		out = append(out, Event{
			Revision: rev, Sub: -1, Key: string(kv.Key), Value: string(kv.Value), Lease: kv.Lease,
			Create: kv.CreateRevision, Version: kv.Version,
		})
		after = after[1:]
		if order == 0 {
			before = before[1:]
		}
	}
	return out, nil
}

// Content is what one node holds: all events from a common revision on, in the order of revision and key or sub.
type Content struct {
	Node     string
	Revision int64 // the node's own revision
	Events   []Event
}

// SameContent compares what the nodes hold, and reports the first difference of each node from the first one.
func SameContent(nodes []Content) []Fault {
	var faults []Fault
	if len(nodes) == 0 {
		return nil
	}
	first := nodes[0]
	want := inKeyOrder(first.Events)
	for _, n := range nodes[1:] {
		differ := func(rev int64, format string, args ...any) {
			faults = append(faults, Fault{Name: NodesDiffer, Op: -1, Revision: rev,
				Text: fmt.Sprintf("%s and %s: ", first.Node, n.Node) + fmt.Sprintf(format, args...)})
		}
		if n.Revision != first.Revision {
			differ(0, "at revision %d and %d", first.Revision, n.Revision)
			continue
		}
		got := inKeyOrder(n.Events)
		i := 0
		for i < len(want) && i < len(got) && sameEvent(want[i], got[i]) {
			i++
		}
		switch {
		case i < len(want) && i < len(got):
			differ(min(want[i].Revision, got[i].Revision), "%v and %v", want[i], got[i])
		case i < len(want):
			differ(want[i].Revision, "%v and nothing", want[i])
		case i < len(got):
			differ(got[i].Revision, "nothing and %v", got[i])
		}
	}
	return faults
}

func inKeyOrder(events []Event) []Event {
	out := slices.Clone(events)
	sort.SliceStable(out, func(i, j int) bool {
		if out[i].Revision != out[j].Revision {
			return out[i].Revision < out[j].Revision
		}
		return out[i].Key < out[j].Key
	})
	return out
}

// sameEvent compares two events; a sub, create revision or version that one side does not know is not compared.
func sameEvent(a, b Event) bool {
	if a.Sub < 0 || b.Sub < 0 {
		a.Sub, b.Sub = 0, 0
	}
	if a.Create == 0 || b.Create == 0 {
		a.Create, b.Create = 0, 0
	}
	if a.Version == 0 || b.Version == 0 {
		a.Version, b.Version = 0, 0
	}
	return a == b
}
