package order

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/storage/key"
)

// Reader is the part of an engine that Load needs; a *pebble.DB or *pebble.Snapshot.
type Reader interface {
	NewIter(o *pebble.IterOptions) (*pebble.Iterator, error)
}

// dirty is what has changed since the last Persist.
type dirty struct {
	ranges        []*rangeState
	txns          []ids.TxnID // decided or forgotten
	members, conf bool
	all           bool // the state replaces another one: whatever is stored goes
	key, value    []byte
}

func (d *dirty) touch(r *rangeState) {
	if !r.unpersisted {
		r.unpersisted = true
		d.ranges = append(d.ranges, r)
	}
}

func (d *dirty) decision(t ids.TxnID) { d.txns = append(d.txns, t) }

// Persist adds what has changed since the last Persist, Load or Restore to a batch, which the caller commits (or stops the node). One small
// record says where the log and the revision are, and one more per touched range what it is told; how far
// a range is ordered is read from its items, so its own record is written only when items are dropped.
func (s *State) Persist(b *pebble.Batch) error {
	d := &s.dirty
	if d.all {
		if err := b.DeleteRange([]byte{key.PrefixOrder}, []byte{key.PrefixOrder + 1}, nil); err != nil {
			return persisting(err)
		}
		d.all = false
	}
	for i, r := range d.ranges {
		if err := s.persistRange(b, r); err != nil {
			return persisting(err)
		}
		d.ranges[i] = nil
	}
	d.ranges = d.ranges[:0]
	for _, t := range d.txns {
		if err := s.persistDecision(b, t); err != nil {
			return persisting(err)
		}
	}
	d.txns = d.txns[:0]
	if d.members {
		if err := s.persistMembers(b); err != nil {
			return persisting(err)
		}
	}
	if d.conf {
		if err := d.setMessage(b, s.conf.toProto(s.at.Term)); err != nil {
			return persisting(err)
		}
	}
	d.members, d.conf = false, false
	d.key = appendKey(d.key[:0], recordHeader)
	d.value = s.appendHeader(d.value[:0])
	return persisting(b.Set(d.key, d.value, nil))
}

func persisting(err error) error {
	if err != nil {
		return fmt.Errorf("persisting order state: %w", err)
	}
	return nil
}

// setMessage stores the configuration record.
func (d *dirty) setMessage(b *pebble.Batch, m *braidpb.ConfRecord) error {
	d.key = appendKey(d.key[:0], recordConf)
	return d.set(b, m)
}

// set stores a message under d.key.
func (d *dirty) set(b *pebble.Batch, m proto.Message) (err error) {
	if d.value, err = (proto.MarshalOptions{}).MarshalAppend(append(d.value[:0], recordVersion), m); err != nil {
		return err
	}
	return b.Set(d.key, d.value, nil)
}

// appendHeader encodes: version, then as varints position, term, revision, compacted, auth revision, cluster ID, and 1 if
// initialised.
func (s *State) appendHeader(v []byte) []byte {
	v = append(v, recordVersion)
	v = binary.AppendUvarint(v, uint64(s.at.Position))
	v = binary.AppendUvarint(v, uint64(s.at.Term))
	v = binary.AppendUvarint(v, uint64(s.revision))
	v = binary.AppendUvarint(v, uint64(s.compacted))
	v = binary.AppendUvarint(v, uint64(s.auth))
	v = binary.AppendUvarint(v, s.clusterID)
	return append(v, bit(s.initialised))
}

func (s *State) persistRange(b *pebble.Batch, r *rangeState) error {
	d := &s.dirty
	r.unpersisted = false
	if r.metaChanged {
		r.metaChanged = false
		d.key = appendKey(d.key[:0], recordRange, uint64(r.id))
		if err := d.set(b, r.toProto()); err != nil {
			return err
		}
		if r.newestDropped > 0 {
			n := len(appendItemKey(d.key[:0], r.id, 0))
			d.key = appendItemKey(appendItemKey(d.key[:0], r.id, 0), r.id, r.newestDropped+1)
			if err := b.DeleteRange(d.key[:n], d.key[n:], nil); err != nil {
				return err
			}
		}
	}
	return r.queue.save(func(p ids.Position, body []byte) error {
		d.key = appendItemKey(d.key[:0], r.id, p)
		d.value = append(append(d.value[:0], recordVersion), body...)
		return b.Set(d.key, d.value, nil)
	})
}

func (r *rangeState) toProto() *braidpb.OrderRange {
	o := &braidpb.OrderRange{
		Descriptor_: r.descriptor, Ordered: uint64(r.ordered),
		NewestItem: uint64(r.newestItem), NewestDropped: uint64(r.newestDropped),
	}
	for i, p := range r.flushed {
		if p > 0 {
			o.Flushed = append(o.Flushed, &braidpb.Flushed{Range: uint64(r.id), Node: r.descriptor.GetReplicas()[i].GetNode(), Position: uint64(p)})
		}
	}
	return o
}

// persistDecision stores a decision, or deletes it: version, then as varints 1 if committed else 0, revision, deadline.
func (s *State) persistDecision(b *pebble.Batch, t ids.TxnID) error {
	d := &s.dirty
	d.key = appendDecisionKey(d.key[:0], t)
	x := s.decisions.byTxn[t]
	if x == nil {
		return b.Delete(d.key, nil)
	}
	v := append(d.value[:0], recordVersion, bit(x.Commit))
	v = binary.AppendUvarint(v, uint64(x.Revision))
	d.value = binary.AppendUvarint(v, uint64(x.Deadline))
	return b.Set(d.key, d.value, nil)
}

// persistMembers stores all members. None goes away yet.
func (s *State) persistMembers(b *pebble.Batch) error {
	for _, m := range s.members {
		s.dirty.key = appendKey(s.dirty.key[:0], recordMember, m.GetId())
		if err := s.dirty.set(b, m); err != nil {
			return err
		}
	}
	return nil
}

// Load reads the state that was persisted last; the state before the first entry if there is none. Errors are the engine's,
// ErrCorrupt or ErrFormat.
func Load(r Reader) (*State, error) {
	s := NewState()
	found := false
	for _, step := range []struct {
		what byte
		take func(k, v []byte) error
	}{
		{recordHeader, func(_, v []byte) error { found = true; return s.loadHeader(v) }},
		{recordConf, s.loadConf},
		{recordMember, s.loadMember},
		{recordRange, s.loadRange},
		{recordItems, s.loadItems},
		{recordDecision, s.loadDecision},
	} {
		if err := scan(r, step.what, step.take); err != nil {
			return nil, fmt.Errorf("loading order state: %w", err)
		}
	}
	if !found && len(s.ranges) > 0 {
		return nil, fmt.Errorf("loading order state: %w: no header", ErrCorrupt)
	}
	for _, r := range s.ranges {
		r.queue.markSaved()
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("loading order state: %w: %w", ErrCorrupt, err)
	}
	return s, nil
}

// scan visits the records of a kind. The value is given without its version.
func scan(r Reader, what byte, take func(k, v []byte) error) (err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{key.PrefixOrder, what}, UpperBound: []byte{key.PrefixOrder, what + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if len(v) == 0 {
			return fmt.Errorf("%w: empty record %q", ErrCorrupt, it.Key())
		}
		if v[0] != recordVersion {
			return fmt.Errorf("%w: record %q has version %d", ErrFormat, it.Key(), v[0])
		}
		if err := take(it.Key(), v[1:]); err != nil {
			return err
		}
	}
	return it.Error()
}

func (s *State) loadHeader(v []byte) error {
	d := varints{b: v}
	s.at = Point{Position: ids.Position(d.next()), Term: ids.Term(d.next())}
	s.revision, s.compacted = ids.Revision(d.next()), ids.Revision(d.next())
	s.auth, s.clusterID, s.initialised = ids.AuthRevision(d.next()), d.next(), d.next() == 1
	if d.bad {
		return fmt.Errorf("%w: header %x", ErrCorrupt, v)
	}
	return nil
}

func (s *State) loadConf(_, v []byte) error {
	m := new(braidpb.ConfRecord)
	if err := proto.Unmarshal(v, m); err != nil {
		return fmt.Errorf("%w: configuration: %w", ErrCorrupt, err)
	}
	s.conf = confOf(m)
	return nil
}

func (s *State) loadMember(_, v []byte) error {
	m := new(braidpb.Member)
	if err := proto.Unmarshal(v, m); err != nil {
		return fmt.Errorf("%w: member: %w", ErrCorrupt, err)
	}
	s.members = append(s.members, m)
	return nil
}

func (s *State) loadRange(_, v []byte) error {
	m := new(braidpb.OrderRange)
	if err := proto.Unmarshal(v, m); err != nil {
		return fmt.Errorf("%w: range: %w", ErrCorrupt, err)
	}
	return s.addRange(m)
}

// addRange takes a range from its record or from a snapshot, where they ascend; without its items.
func (s *State) addRange(m *braidpb.OrderRange) error {
	r := newRangeState(m.GetDescriptor_())
	if n := len(s.ranges); r.id == 0 || n > 0 && s.ranges[n-1].id >= r.id {
		return fmt.Errorf("%w: range %d is out of order", ErrCorrupt, r.id)
	}
	r.ordered = ids.Seq(m.GetOrdered())
	r.newestItem, r.newestDropped = ids.Position(m.GetNewestItem()), ids.Position(m.GetNewestDropped())
	for _, f := range m.GetFlushed() {
		for i, x := range r.descriptor.GetReplicas() {
			if x.GetNode() == f.GetNode() {
				r.flushed[i] = ids.Position(f.GetPosition())
			}
		}
	}
	s.ranges = append(s.ranges, r)
	return nil
}

func (s *State) loadItems(k, v []byte) error {
	x, err := suffixOf(k, 2)
	if err != nil {
		return err
	}
	items, err := decodeItems(v)
	if err != nil {
		return err
	}
	r := s.find(ids.RangeID(x[0]))
	if r == nil {
		return fmt.Errorf("%w: items of range %d, which does not exist", ErrCorrupt, x[0])
	}
	p := ids.Position(x[1])
	if p <= r.newestDropped || p > s.at.Position {
		return fmt.Errorf("%w: items of range %d at position %d, dropped through %d", ErrCorrupt, r.id, p, r.newestDropped)
	}
	r.queue.pushEncoded(p, v)
	r.newestItem = max(r.newestItem, p)
	for _, it := range items {
		if q := it.GetSeqs(); q != nil {
			r.ordered = max(r.ordered, ids.Seq(q.GetThrough()))
		}
	}
	return nil
}

func (s *State) loadDecision(k, v []byte) error {
	x, err := suffixOf(k, 3)
	if err != nil {
		return err
	}
	d := varints{b: v}
	dec := &Decision{Txn: ids.TxnID{Node: ids.NodeID(x[0]), Incarnation: x[1], Counter: x[2]}}
	dec.Commit, dec.Revision, dec.Deadline = d.next() == 1, ids.Revision(d.next()), ids.Position(d.next())
	if d.bad {
		return fmt.Errorf("%w: decision %x", ErrCorrupt, v)
	}
	s.decisions.add(dec)
	return nil
}
