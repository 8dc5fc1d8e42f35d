package order

import (
	"fmt"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	braidpb "github.com/braidkv/braid/proto"
)

// State is the order state: what applying the order log through a position amounts to. It is equal on all nodes at equal position
// (O2), and a function of the log only: Apply looks at nothing else, and nothing else changes what Snapshot shows.
//
// What an entry changes is remembered until Persist, so that persisting costs what changed and not what there is.
//
// Not safe for concurrent use.
type State struct {
	at          Point
	conf        ConfState // in force at at.Position
	revision    ids.Revision
	compacted   ids.Revision
	auth        ids.AuthRevision
	clusterID   uint64
	initialised bool
	members     []*braidpb.Member // ascending ID; elements are replaced, never changed
	ranges      []*rangeState     // ascending ID
	decisions   decisions

	mutation Mutation

	// Scratch of Apply: what it returns.
	effects Effects
	touched []*rangeState // ranges with items of the entry being applied

	dirty dirty
}

// rangeState is what the order state knows about a range.
//
// Invariants: newestDropped <= newestItem; queue holds exactly the items in (newestDropped, newestItem].
type rangeState struct {
	id            ids.RangeID
	generation    ids.Generation
	descriptor    *braidpb.RangeDescriptor // replaced, never changed
	ordered       ids.Seq
	newestItem    ids.Position
	newestDropped ids.Position
	flushed       []ids.Position // by replica, in the descriptor's order
	queue         itemQueue

	pending *itemBox // items of the entry being applied

	unpersisted bool // is in dirty.ranges
	metaChanged bool // anything but ordered, newestItem and queue's end has changed since Persist
}

// Effects is what an entry did besides changing the state. It is valid until the next Apply, except for the items,
// which are the caller's.
type Effects struct {
	// Items are what the position tells each range, ascending.
	Items []*braidpb.Items
	// Results are of the entry's commands, cuts and Init excluded, in their order.
	Results []Result
	// Decisions are the transactions decided now, not those decided before and tried again.
	Decisions []Decision
	// Initialised: the entry was the first Init. RoutingChanged: descriptors have. MembersChanged: members have.
	Initialised    bool
	RoutingChanged bool
	MembersChanged bool
}

// Decision is the end of a transaction over several ranges.
type Decision struct {
	Txn    ids.TxnID
	Commit bool
	// Revision is the transaction's if it is committed, else zero.
	Revision ids.Revision
	// Deadline is the last position at which a commit would have counted. The state forgets the decision after it.
	Deadline ids.Position
}

// firstAuthRevision is the auth revision of a store in which authentication was never touched, as in etcd.
const firstAuthRevision = 1

// NewState is the state before the first entry: a fresh store, at revision 1 (O2).
func NewState() *State {
	return &State{revision: 1, auth: firstAuthRevision, decisions: newDecisions()}
}

// Position is that of the last entry applied, Term its term.
func (s *State) Position() ids.Position { return s.at.Position }

// Term is the term of the last entry applied.
func (s *State) Term() ids.Term { return s.at.Term }

// Revision is the store's.
func (s *State) Revision() ids.Revision { return s.revision }

// Initialised tells whether Init was applied.
func (s *State) Initialised() bool { return s.initialised }

// find is the range of an ID, nil if there is none.
func (s *State) find(id ids.RangeID) *rangeState {
	lo, hi := 0, len(s.ranges)
	for lo < hi {
		mid := (lo + hi) / 2
		if s.ranges[mid].id < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(s.ranges) && s.ranges[lo].id == id {
		return s.ranges[lo]
	}
	return nil
}

// ordered is what the range has ordered, zero if there is no such range.
func (s *State) ordered(id ids.RangeID) ids.Seq {
	if r := s.find(id); r != nil {
		return r.ordered
	}
	return 0
}

// setConf takes over the configuration that an entry brings into force.
func (s *State) setConf(c *ConfState) {
	s.conf = c.clone()
	s.dirty.conf = true
}

// Apply applies the entry at a point of the log, which follows the last one applied. An entry without commands only moves the
// position.
func (s *State) Apply(at Point, e *braidpb.OrderEntry) *Effects {
	if at.Position != s.at.Position+1 || at.Term < s.at.Term {
		invariant.Fail("O2", "entry %d of term %d applied after entry %d of term %d", at.Position, at.Term, s.at.Position, s.at.Term)
	}
	s.at = at
	f := &s.effects
	clear(f.Items)
	*f = Effects{Items: f.Items[:0], Results: f.Results[:0], Decisions: f.Decisions[:0]}
	s.forgetDecisions()
	for _, c := range e.GetCommands() {
		s.command(c)
	}
	s.collect()
	if invariant.Enabled {
		err := s.check()
		invariant.Check(err == nil, "O3", "%v", err)
	}
	return f
}

func (s *State) command(c *braidpb.OrderCommand) {
	r := Result{Position: s.at.Position}
	switch k := c.GetKind().(type) {
	case *braidpb.OrderCommand_Cut:
		s.applyCut(k.Cut)
		return
	case *braidpb.OrderCommand_Init:
		s.applyInit(k.Init)
		return
	case *braidpb.OrderCommand_Commit:
		s.applyCommit(k.Commit, &r)
	case *braidpb.OrderCommand_Abort:
		s.applyAbort(k.Abort, &r)
	case *braidpb.OrderCommand_Compact:
		r.Err = s.applyCompact(k.Compact)
	case *braidpb.OrderCommand_SetMember:
		r.Err = s.applySetMember(k.SetMember)
	default:
		invariant.Fail("O2", "entry %d has a command that this version does not know", s.at.Position)
	}
	if r.Revision == 0 {
		r.Revision = s.revision
	}
	r.Proposal = TxnIDOf(c.GetProposal())
	s.effects.Results = append(s.effects.Results, r)
}

// collect turns the items of this entry over to the queues and the effects, in ascending order of ranges.
func (s *State) collect() {
	if !slices.IsSortedFunc(s.touched, compareRanges) {
		slices.SortFunc(s.touched, compareRanges)
	}
	for i, r := range s.touched {
		it := &r.pending.items
		r.pending = nil
		r.newestItem = s.at.Position
		r.queue.push(it)
		s.dirty.touch(r)
		s.effects.Items = append(s.effects.Items, it)
		s.touched[i] = nil
	}
	s.touched = s.touched[:0]
}

func compareRanges(a, b *rangeState) int {
	if a.id < b.id {
		return -1
	}
	return 1 // IDs differ
}

// itemBox holds the items of one range at one position: nearly always one, of seqs, so its parts are allocated with it.
type itemBox struct {
	items braidpb.Items
	list  [1]*braidpb.Item
	item  braidpb.Item
	kind  braidpb.Item_Seqs
	seqs  braidpb.SeqsItem
}

// box is where the items go that this entry has for the range. free may offer memory.
func (s *State) box(r *rangeState, free *itemBox) *itemBox {
	if r.pending == nil {
		if free == nil {
			free = new(itemBox)
		}
		free.items.Range, free.items.Position = uint64(r.id), uint64(s.at.Position)
		free.items.Items = free.list[:0]
		r.pending = free
		s.touched = append(s.touched, r)
	}
	return r.pending
}

func (s *State) addItem(r *rangeState, it *braidpb.Item) {
	b := s.box(r, nil)
	b.items.Items = append(b.items.Items, it)
}

func (s *State) applyInit(in *braidpb.Init) {
	if s.initialised {
		return // another leader was first
	}
	s.initialised, s.clusterID = true, in.GetClusterId()
	s.members = append([]*braidpb.Member(nil), in.GetMembers()...)
	sort.SliceStable(s.members, func(i, j int) bool { return s.members[i].GetId() < s.members[j].GetId() })
	for _, d := range in.GetRanges() {
		if s.find(ids.RangeID(d.GetId())) != nil {
			continue
		}
		d = proto.CloneOf(d)
		d.Generation, d.Version = max(1, d.GetGeneration()), max(1, d.GetVersion())
		r := newRangeState(d)
		s.ranges = append(s.ranges, r)
		slices.SortFunc(s.ranges, compareRanges)
		r.metaChanged = true
		s.dirty.touch(r)
	}
	s.dirty.members = true
	s.effects.Initialised, s.effects.RoutingChanged, s.effects.MembersChanged = true, true, true
}

func newRangeState(d *braidpb.RangeDescriptor) *rangeState {
	return &rangeState{
		id: ids.RangeID(d.GetId()), generation: ids.Generation(d.GetGeneration()), descriptor: d,
		flushed: make([]ids.Position, len(d.GetReplicas())),
	}
}

func (s *State) applyCompact(c *braidpb.Compact) error {
	rev := ids.Revision(c.GetRevision())
	if rev <= s.compacted {
		return ErrCompacted
	}
	if rev > s.revision {
		return ErrFutureRev
	}
	s.compacted = rev
	for _, r := range s.ranges {
		s.addItem(r, &braidpb.Item{Kind: &braidpb.Item_Compact{Compact: &braidpb.CompactItem{Revision: int64(rev)}}})
	}
	return nil
}

// applySetMember takes what a member publishes about itself: its name and client URLs, and peer URLs if it names any. Whether
// it is a learner is not for it to say.
func (s *State) applySetMember(c *braidpb.SetMember) error {
	m := c.GetMember()
	i, ok := slices.BinarySearchFunc(s.members, m.GetId(), func(x *braidpb.Member, id uint64) int {
		switch {
		case x.GetId() < id:
			return -1
		case x.GetId() > id:
			return 1
		}
		return 0
	})
	if !ok {
		return ErrNoMember
	}
	old := s.members[i]
	n := &braidpb.Member{Id: m.GetId(), Name: m.GetName(), ClientUrls: m.GetClientUrls(), PeerUrls: m.GetPeerUrls(), IsLearner: old.GetIsLearner()}
	if len(n.PeerUrls) == 0 {
		n.PeerUrls = old.GetPeerUrls()
	}
	s.members = slices.Clone(s.members) // views share the old one
	s.members[i] = n
	s.dirty.members = true
	s.effects.MembersChanged = true
	return nil
}

// view is a picture of the state. routing is taken over unless it is nil.
func (s *State) view(routing *Routing) *View {
	if routing == nil {
		ds := make([]*braidpb.RangeDescriptor, 0, len(s.ranges))
		for _, r := range s.ranges {
			ds = append(ds, r.descriptor)
		}
		routing = NewRouting(ds)
	}
	return &View{
		Position: s.at.Position, Revision: s.revision, CompactRevision: s.compacted, AuthRevision: s.auth,
		Initialised: s.initialised, ClusterID: s.clusterID, Members: s.members, Routing: routing,
	}
}

// check derives again what the state keeps up to date.
func (s *State) check() error {
	for _, r := range s.ranges {
		first, last := r.queue.bounds()
		empty := last == 0 && r.newestItem == r.newestDropped
		if !empty && !(first > r.newestDropped && last == r.newestItem) || r.newestItem > s.at.Position {
			return fmt.Errorf("range %d: items [%d, %d], dropped through %d, newest %d, at position %d",
				r.id, first, last, r.newestDropped, r.newestItem, s.at.Position)
		}
	}
	return nil
}
