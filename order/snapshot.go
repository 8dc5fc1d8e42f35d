package order

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Snapshot is the whole state. Equal states give equal snapshots.
func (s *State) Snapshot() *braidpb.OrderState {
	o := &braidpb.OrderState{
		Format: entryFormat, Position: uint64(s.at.Position), Revision: int64(s.revision), CompactRevision: int64(s.compacted),
		ClusterId: s.clusterID, AuthRevision: uint64(s.auth), Members: s.members,
	}
	for _, r := range s.ranges {
		o.Ranges = append(o.Ranges, r.toProto())
		o.Items = append(o.Items, s.itemsOf(r, 0)...)
	}
	for _, d := range s.decisions.sorted() {
		o.Decisions = append(o.Decisions, &braidpb.OrderDecision{
			Txn: TxnIDProto(d.Txn), Commit: d.Commit, Revision: int64(d.Revision), Deadline: uint64(d.Deadline),
		})
	}
	return o
}

// itemsOf decodes the stored items of a range above a position.
func (s *State) itemsOf(r *rangeState, above ids.Position) (out []*braidpb.Items) {
	err := r.queue.each(above, func(p ids.Position, body []byte) error {
		items, err := decodeItems(body)
		out = append(out, &braidpb.Items{Range: uint64(r.id), Position: uint64(p), Items: items})
		return err
	})
	if err != nil { // they were encoded here, or checked by Load
		panic(err)
	}
	return out
}

// Restore makes the state that a snapshot shows, as of the point that Raft's part of the snapshot names. The next Persist stores all
// of it in place of whatever is stored. The snapshot is the state's from now on. Errors are ErrCorrupt or ErrFormat.
func Restore(o *braidpb.OrderState, at Point, conf ConfState) (*State, error) {
	if o.GetFormat() != entryFormat {
		return nil, fmt.Errorf("%w: order state has format %d", ErrFormat, o.GetFormat())
	}
	if ids.Position(o.GetPosition()) != at.Position {
		return nil, fmt.Errorf("%w: order state of position %d is offered as of %d", ErrCorrupt, o.GetPosition(), at.Position)
	}
	s := NewState()
	s.at, s.conf = at, conf.clone()
	s.revision, s.compacted = ids.Revision(o.GetRevision()), ids.Revision(o.GetCompactRevision())
	s.auth, s.clusterID, s.members = ids.AuthRevision(o.GetAuthRevision()), o.GetClusterId(), o.GetMembers()
	s.initialised = len(o.GetRanges()) > 0
	for _, m := range o.GetRanges() {
		if err := s.addRange(m); err != nil {
			return nil, err
		}
	}
	for _, it := range o.GetItems() {
		r := s.find(ids.RangeID(it.GetRange()))
		p := ids.Position(it.GetPosition())
		if _, last := r.queueBounds(); r == nil || p <= max(last, r.newestDropped) || p > r.newestItem {
			return nil, fmt.Errorf("%w: items of range %d at position %d", ErrCorrupt, it.GetRange(), p)
		}
		r.queue.push(it)
	}
	for _, d := range o.GetDecisions() {
		t := TxnIDOf(d.GetTxn())
		s.decisions.add(&Decision{Txn: t, Commit: d.GetCommit(), Revision: ids.Revision(d.GetRevision()), Deadline: ids.Position(d.GetDeadline())})
		s.dirty.decision(t)
	}
	for _, r := range s.ranges {
		r.metaChanged = true
		s.dirty.touch(r)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	s.dirty.all, s.dirty.members, s.dirty.conf = true, true, true
	return s, nil
}

func (r *rangeState) queueBounds() (first, last ids.Position) {
	if r == nil {
		return 0, 0
	}
	return r.queue.bounds()
}

// decodeSnapshot decodes the data of a snapshot.
func decodeSnapshot(meta *SnapMeta) (*State, error) {
	o := new(braidpb.OrderState)
	if err := proto.Unmarshal(meta.Data, o); err != nil {
		return nil, fmt.Errorf("%w: order state: %w", ErrCorrupt, err)
	}
	return Restore(o, Point{Position: meta.Position, Term: meta.Term}, meta.Conf)
}
