package check

import (
	"math"
	"sort"
)

// bounds answers what real time says about revisions: what must be below a request that was sent at
// a time, and what must be above one that returned at a time.
type bounds struct {
	returns []stamp // by time; rev is the highest revision answered up to then
	invokes []stamp // by time; rev is the lowest revision written by requests sent from then on
}

type stamp struct{ time, rev int64 }

// newBounds sorts the stamps: answered holds (return time, revision named), sent holds (time sent, own revision) of writes.
func newBounds(answered, sent []stamp) *bounds {
	byTime := func(s []stamp) { sort.Slice(s, func(i, j int) bool { return s[i].time < s[j].time }) }
	byTime(answered)
	byTime(sent)
	for i := 1; i < len(answered); i++ {
		answered[i].rev = max(answered[i].rev, answered[i-1].rev)
	}
	for i := len(sent) - 2; i >= 0; i-- {
		sent[i].rev = min(sent[i].rev, sent[i+1].rev)
	}
	return &bounds{returns: answered, invokes: sent}
}

// before is the highest revision answered before a time, or floor if there is none.
func (b *bounds) before(time, floor int64) int64 {
	i := sort.Search(len(b.returns), func(i int) bool { return b.returns[i].time >= time })
	if i == 0 {
		return floor
	}
	return max(floor, b.returns[i-1].rev)
}

// after is the lowest revision written by requests sent after a time, or math.MaxInt64.
func (b *bounds) after(time int64) int64 {
	i := sort.Search(len(b.invokes), func(i int) bool { return b.invokes[i].time > time })
	if i == len(b.invokes) {
		return math.MaxInt64
	}
	return b.invokes[i].rev
}
