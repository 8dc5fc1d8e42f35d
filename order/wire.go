package order

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// entryFormat is the format of order log entries and of order states in snapshots. A node refuses to apply what has a higher one.
const entryFormat = 1

// ConfState is the order group's configuration: raftgroup's, field by field.
type ConfState struct {
	Index          ids.Index
	Voters         []ids.ReplicaID
	Learners       []ids.ReplicaID
	VotersOutgoing []ids.ReplicaID
	LearnersNext   []ids.ReplicaID
	AutoLeave      bool
}

// Entry is a committed entry of the order log: raftgroup's, field by field.
type Entry struct {
	Position ids.Position
	Term     ids.Term
	Data     []byte     // empty: Raft's own
	Conf     *ConfState // the configuration in force after the entry, if it changes it
}

// Role is this node's part in the order group: raftgroup's, field by field.
type Role struct {
	Term          ids.Term
	Leader        ids.NodeID // zero: none known
	LeaderReplica ids.ReplicaID
	IsLeader      bool
}

// SnapMeta is the Raft part of an order snapshot: raftgroup's, field by field. Data is an encoded OrderState.
type SnapMeta struct {
	Position ids.Position
	Term     ids.Term
	Conf     ConfState
	Data     []byte
}

// Point is an entry's place in the order log.
type Point struct {
	Position ids.Position
	Term     ids.Term
}

// EncodeEntry encodes commands as the payload of an order log entry.
func EncodeEntry(commands ...*braidpb.OrderCommand) ([]byte, error) {
	b, err := proto.Marshal(&braidpb.OrderEntry{Format: entryFormat, Commands: commands})
	if err != nil {
		return nil, fmt.Errorf("encoding an order entry: %w", err)
	}
	return b, nil
}

// DecodeEntry decodes the payload of an order log entry; empty data, which Raft itself appends, gives an entry
// without commands. Errors are ErrCorrupt or ErrFormat.
func DecodeEntry(data []byte) (*braidpb.OrderEntry, error) {
	e := new(braidpb.OrderEntry)
	if len(data) == 0 {
		return e, nil
	}
	if err := proto.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("%w: order entry: %w", ErrCorrupt, err)
	}
	if e.GetFormat() != entryFormat {
		return nil, fmt.Errorf("%w: order entry has format %d", ErrFormat, e.GetFormat())
	}
	return e, nil
}

// TxnIDOf converts an ID from its form on the wire; nil gives the zero ID.
func TxnIDOf(t *braidpb.TxnID) ids.TxnID {
	return ids.TxnID{Node: ids.NodeID(t.GetNode()), Incarnation: t.GetIncarnation(), Counter: t.GetCounter()}
}

// TxnIDProto converts an ID to its form on the wire.
func TxnIDProto(t ids.TxnID) *braidpb.TxnID {
	return &braidpb.TxnID{Node: uint64(t.Node), Incarnation: t.Incarnation, Counter: t.Counter}
}

func (c *ConfState) toProto(term ids.Term) *braidpb.ConfRecord {
	return &braidpb.ConfRecord{
		Index: uint64(c.Index), Term: uint64(term),
		Voters: rawIDs(c.Voters), Learners: rawIDs(c.Learners), VotersOutgoing: rawIDs(c.VotersOutgoing),
		LearnersNext: rawIDs(c.LearnersNext), AutoLeave: c.AutoLeave,
	}
}

func confOf(r *braidpb.ConfRecord) ConfState {
	return ConfState{
		Index:  ids.Index(r.GetIndex()),
		Voters: replicaIDs(r.GetVoters()), Learners: replicaIDs(r.GetLearners()),
		VotersOutgoing: replicaIDs(r.GetVotersOutgoing()), LearnersNext: replicaIDs(r.GetLearnersNext()),
		AutoLeave: r.GetAutoLeave(),
	}
}

func (c *ConfState) clone() ConfState {
	d := *c
	d.Voters, d.Learners = slices.Clone(c.Voters), slices.Clone(c.Learners)
	d.VotersOutgoing, d.LearnersNext = slices.Clone(c.VotersOutgoing), slices.Clone(c.LearnersNext)
	return d
}

func rawIDs(in []ids.ReplicaID) []uint64 {
	var out []uint64
	for _, r := range in {
		out = append(out, uint64(r))
	}
	return out
}

func replicaIDs(in []uint64) []ids.ReplicaID {
	var out []ids.ReplicaID
	for _, r := range in {
		out = append(out, ids.ReplicaID(r))
	}
	return out
}
