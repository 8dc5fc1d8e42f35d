package ranges

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/braidkv/braid/storage/key"
)

// What a replica keeps under r/<range>/. Each value is one byte of format version and a message.
const (
	recordCursor   = 'c' // braidpb.Cursor
	recordConf     = 'f' // braidpb.ConfRecord
	recordPrepared = 'p' // braidpb.Prepared, by transaction
	recordDecided  = 'd' // braidpb.OrderDecision, by transaction

	recordFormat = 1
)

// records reads and writes a replica's durable records.
type records struct {
	id     ids.RangeID
	buf    []byte
	cursor []byte // its key
}

func newRecords(id ids.RangeID) records {
	return records{id: id, cursor: key.Replica(id, recordCursor)}
}

func (rs *records) set(b *pebble.Batch, k []byte, m proto.Message) error {
	var err error
	rs.buf, err = proto.MarshalOptions{}.MarshalAppend(append(rs.buf[:0], recordFormat), m)
	if err != nil {
		return fmt.Errorf("encoding a record of range %d: %w", rs.id, err)
	}
	return b.Set(k, rs.buf, nil)
}

// decodeRecord is the reverse of set.
func decodeRecord(v []byte, m proto.Message) error {
	if len(v) == 0 || v[0] != recordFormat {
		return fmt.Errorf("record of unknown format %x", v[:min(1, len(v))])
	}
	return proto.Unmarshal(v[1:], m)
}

// at is the key of a record; t is zero unless there is one for each transaction.
func (rs *records) at(what byte, t ids.TxnID) []byte {
	if t.IsZero() {
		return key.Replica(rs.id, what)
	}
	return key.Replica(rs.id, what, appendTxn(nil, t)...)
}

// loaded is a replica's durable state.
type loaded struct {
	cursor   *braidpb.Cursor     // empty: none
	conf     *braidpb.ConfRecord // nil: none
	prepared []*braidpb.Prepared
	decided  []*braidpb.OrderDecision
}

func (rs *records) load(db *pebble.DB) (*loaded, error) {
	l := &loaded{cursor: &braidpb.Cursor{}}
	get := func(what byte, m proto.Message) (bool, error) {
		v, closer, err := db.Get(rs.at(what, ids.TxnID{}))
		if errors.Is(err, pebble.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("reading record %q of range %d: %w", what, rs.id, err)
		}
		defer closer.Close()
		if err := decodeRecord(v, m); err != nil {
			return false, fmt.Errorf("record %q of range %d is corrupt: %w", what, rs.id, err)
		}
		return true, nil
	}
	if _, err := get(recordCursor, l.cursor); err != nil {
		return nil, err
	}
	conf := &braidpb.ConfRecord{}
	ok, err := get(recordConf, conf)
	if err != nil {
		return nil, err
	}
	if ok {
		l.conf = conf
	}
	err = rs.each(db, recordPrepared, func() proto.Message {
		l.prepared = append(l.prepared, &braidpb.Prepared{})
		return l.prepared[len(l.prepared)-1]
	})
	if err != nil {
		return nil, err
	}
	err = rs.each(db, recordDecided, func() proto.Message {
		l.decided = append(l.decided, &braidpb.OrderDecision{})
		return l.decided[len(l.decided)-1]
	})
	return l, err
}

// each reads all records of a kind into messages that next provides.
func (rs *records) each(db *pebble.DB, what byte, next func() proto.Message) error {
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: key.Replica(rs.id, what), UpperBound: key.Replica(rs.id, what+1),
	})
	if err != nil {
		return fmt.Errorf("reading records %q of range %d: %w", what, rs.id, err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = decodeRecord(v, next())
		}
		if err != nil {
			return errors.Join(fmt.Errorf("record %q of range %d is corrupt: %w", what, rs.id, err), it.Close())
		}
	}
	if err := it.Close(); err != nil {
		return fmt.Errorf("reading records %q of range %d: %w", what, rs.id, err)
	}
	return nil
}

func appendTxn(dst []byte, t ids.TxnID) []byte {
	for _, u := range []uint64{uint64(t.Node), t.Incarnation, t.Counter} {
		for s := 56; s >= 0; s -= 8 {
			dst = append(dst, byte(u>>s))
		}
	}
	return dst
}

func confRecord(c *ConfState, term ids.Term) *braidpb.ConfRecord {
	return &braidpb.ConfRecord{
		Index: uint64(c.Index), Term: uint64(term), Voters: numbers(c.Voters), Learners: numbers(c.Learners),
		VotersOutgoing: numbers(c.VotersOutgoing), LearnersNext: numbers(c.LearnersNext), AutoLeave: c.AutoLeave,
	}
}

func confState(r *braidpb.ConfRecord) ConfState {
	return ConfState{
		Index: ids.Index(r.Index), Voters: replicas(r.Voters), Learners: replicas(r.Learners),
		VotersOutgoing: replicas(r.VotersOutgoing), LearnersNext: replicas(r.LearnersNext), AutoLeave: r.AutoLeave,
	}
}

func numbers(in []ids.ReplicaID) (out []uint64) {
	for _, x := range in {
		out = append(out, uint64(x))
	}
	return out
}

func replicas(in []uint64) (out []ids.ReplicaID) {
	for _, x := range in {
		out = append(out, ids.ReplicaID(x))
	}
	return out
}
