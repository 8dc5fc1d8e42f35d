package raftgroup

import (
	"encoding/binary"
	"fmt"
	"math"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/raftlog"
)

// A letter's body begins with its kind, whose high half is the version of the format. All numbers are
// varints.
const (
	// kindMessage is one Raft message.
	kindMessage = 0x11
	// kindBeats are heartbeats and their answers, of any groups, to one node; what one pass over the
	// groups has produced. The group of the letter means nothing.
	kindBeats = 0x12
	// kindQuiesce tells a follower that its leader falls silent.
	kindQuiesce = 0x13
)

const (
	flagReject = 1 << iota
	flagContext
	flagEntries
	flagSnapshot
)

// acceptable are the types of message that another node may send. Proposals are not forwarded (R4), the
// rest is local.
var acceptable = [...]bool{
	raftpb.MsgApp: true, raftpb.MsgAppResp: true,
	raftpb.MsgVote: true, raftpb.MsgVoteResp: true,
	raftpb.MsgPreVote: true, raftpb.MsgPreVoteResp: true,
	raftpb.MsgSnap:      true,
	raftpb.MsgHeartbeat: true, raftpb.MsgHeartbeatResp: true,
	raftpb.MsgTimeoutNow: true,
	raftpb.MsgReadIndex:  true, raftpb.MsgReadIndexResp: true,
}

// wireMessage holds a message and the fields it points to in one allocation.
type wireMessage struct {
	m                                                  raftpb.Message
	typ                                                raftpb.MessageType
	to, from, term, logTerm, index, commit, rejectHint uint64
	reject                                             bool
}

func (w *wireMessage) link() *raftpb.Message {
	m := &w.m
	m.Type, m.To, m.From, m.Term = &w.typ, &w.to, &w.from, &w.term
	m.LogTerm, m.Index, m.Commit, m.RejectHint, m.Reject = &w.logTerm, &w.index, &w.commit, &w.rejectHint, &w.reject
	return m
}

const maxHeader = 3 + 8*binary.MaxVarintLen64

// encodeMessage makes the letter of a message.
func encodeMessage(m *raftpb.Message) []byte {
	ents, snap := m.GetEntries(), m.GetSnapshot()
	size := maxHeader + len(m.GetContext())
	for _, e := range ents {
		size += len(e.GetData()) + 1 + 3*binary.MaxVarintLen64
	}
	if snap != nil {
		cs := snap.GetMetadata().GetConfState()
		n := len(cs.GetVoters()) + len(cs.GetLearners()) + len(cs.GetVotersOutgoing()) + len(cs.GetLearnersNext())
		size += len(snap.GetData()) + (10+n)*binary.MaxVarintLen64
	}
	b := make([]byte, 0, size)
	var flags byte
	if m.GetReject() {
		flags |= flagReject
	}
	if len(m.GetContext()) > 0 {
		flags |= flagContext
	}
	if len(ents) > 0 {
		flags |= flagEntries
	}
	if snap != nil {
		flags |= flagSnapshot
	}
	b = append(b, kindMessage, byte(m.GetType()), flags)
	for _, x := range [...]uint64{m.GetTo(), m.GetFrom(), m.GetTerm(), m.GetLogTerm(), m.GetIndex(), m.GetCommit(), m.GetRejectHint()} {
		b = binary.AppendUvarint(b, x)
	}
	if flags&flagContext != 0 {
		b = appendBytes(b, m.GetContext())
	}
	if flags&flagEntries != 0 {
		b = binary.AppendUvarint(b, uint64(len(ents)))
		for _, e := range ents {
			b = append(b, byte(e.GetType()))
			b = binary.AppendUvarint(b, e.GetTerm())
			b = binary.AppendUvarint(b, e.GetIndex())
			b = appendBytes(b, e.GetData())
		}
	}
	if flags&flagSnapshot != 0 {
		b = appendSnapshot(b, snap)
	}
	return b
}

func appendSnapshot(b []byte, s *raftpb.Snapshot) []byte {
	md := s.GetMetadata()
	b = binary.AppendUvarint(b, md.GetIndex())
	b = binary.AppendUvarint(b, md.GetTerm())
	cs := md.GetConfState()
	for _, list := range [][]uint64{cs.GetVoters(), cs.GetLearners(), cs.GetVotersOutgoing(), cs.GetLearnersNext()} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, x := range list {
			b = binary.AppendUvarint(b, x)
		}
	}
	if cs.GetAutoLeave() {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return appendBytes(b, s.GetData())
}

func appendBytes(b, data []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(data)))
	return append(b, data...)
}

// reader decodes; after the first fault everything it returns is zero and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) number() uint64 {
	x, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return x
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	x := r.b[0]
	r.b = r.b[1:]
	return x
}

// bytes returns a part of the input, not a copy.
func (r *reader) bytes() []byte {
	n := r.number()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	x := r.b[:n:n]
	r.b = r.b[n:]
	if n == 0 {
		return nil
	}
	return x
}

// count reads the length of a list whose members take at least size bytes.
func (r *reader) count(size int) int {
	n := r.number()
	if n > uint64(len(r.b)/size) {
		r.bad, r.b = true, nil
		return 0
	}
	return int(n)
}

func (r *reader) list() []uint64 {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	xs := make([]uint64, n)
	for i := range xs {
		xs[i] = r.number()
	}
	return xs
}

// decodeMessage decodes a body of kindMessage without its first byte. Entries and context share its memory.
func decodeMessage(b []byte) (*raftpb.Message, error) {
	r := reader{b: b}
	w := &wireMessage{typ: raftpb.MessageType(r.byte())}
	flags := r.byte()
	if int(w.typ) >= len(acceptable) || !acceptable[w.typ] {
		return nil, fmt.Errorf("%w: type %d", ErrBadMessage, w.typ)
	}
	w.to, w.from, w.term = r.number(), r.number(), r.number()
	w.logTerm, w.index, w.commit, w.rejectHint = r.number(), r.number(), r.number(), r.number()
	w.reject = flags&flagReject != 0
	m := w.link()
	if flags&flagContext != 0 {
		m.Context = r.bytes()
	}
	if flags&flagEntries != 0 {
		if n := r.count(4); n > 0 {
			block := raftlog.NewEntryBlock(n)
			m.Entries = make([]*raftpb.Entry, n)
			for i := range m.Entries {
				typ := raftpb.EntryType(r.byte())
				if typ > raftpb.EntryConfChangeV2 {
					r.bad = true
				}
				term, index := r.number(), r.number()
				m.Entries[i] = block.Set(i, typ, term, index, r.bytes())
			}
		}
	}
	if flags&flagSnapshot != 0 {
		m.Snapshot = r.snapshot()
	}
	if r.bad || len(r.b) > 0 {
		return nil, fmt.Errorf("%w: %s of %d bytes", ErrBadMessage, w.typ, len(b))
	}
	if err := plausible(m); err != nil {
		return nil, err
	}
	return m, nil
}

func (r *reader) snapshot() *raftpb.Snapshot {
	md := &raftpb.SnapshotMetadata{Index: new(r.number()), Term: new(r.number())}
	cs := &raftpb.ConfState{Voters: r.list(), Learners: r.list(), VotersOutgoing: r.list(), LearnersNext: r.list()}
	cs.AutoLeave = new(r.byte() == 1)
	md.ConfState = cs
	return &raftpb.Snapshot{Metadata: md, Data: r.bytes()}
}

// plausible refuses what Raft takes for granted in messages of its own making and would panic or go astray on.
func plausible(m *raftpb.Message) error {
	bad := func(what string) error { return fmt.Errorf("%w: %s: %s", ErrBadMessage, m.GetType(), what) }
	if m.GetFrom() == 0 || m.GetTo() == 0 || m.GetFrom() >= maxReplica || m.GetTo() >= maxReplica {
		return bad("sender or receiver")
	}
	switch m.GetType() {
	case raftpb.MsgReadIndex, raftpb.MsgReadIndexResp:
		if len(m.GetEntries()) != 1 {
			return bad("wants one entry")
		}
		return nil
	case raftpb.MsgHeartbeatResp:
		if n := len(m.GetContext()); n != 0 && n != 8 {
			return bad("context")
		}
	case raftpb.MsgSnap:
		if m.GetSnapshot().GetMetadata().GetIndex() == 0 {
			return bad("empty snapshot")
		}
	case raftpb.MsgApp:
		prev, term := m.GetIndex(), m.GetLogTerm()
		for _, e := range m.GetEntries() {
			if e.GetIndex() != prev+1 || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
				return bad("entries out of order")
			}
			prev, term = e.GetIndex(), e.GetTerm()
		}
	}
	if m.GetTerm() == 0 {
		return bad("no term")
	}
	return nil
}

// maxReplica is above every replica ID; Raft uses the highest numbers for its storage threads.
const maxReplica = math.MaxUint64 - 15

// beat is a heartbeat, its answer, or a note (see noteState), without a read request.
type beat struct {
	group    ids.GroupID
	kind     byte
	to, from uint64
	term     uint64
	commit   uint64
}

// Kinds of beats.
const (
	beatAsk    = 0
	beatAnswer = 1
	beatNote   = 2 // a heartbeat that wants no answer
)

func appendBeat(b []byte, x beat) []byte {
	b = binary.AppendUvarint(b, uint64(x.group))
	b = append(b, x.kind)
	for _, n := range [...]uint64{x.to, x.from, x.term, x.commit} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// decodeBeats decodes a body of kindBeats without its first byte and hands out each beat.
func decodeBeats(b []byte, fn func(g ids.GroupID, m *raftpb.Message, note bool)) error {
	r := reader{b: b}
	for len(r.b) > 0 {
		g := ids.GroupID(r.number())
		w := &wireMessage{typ: raftpb.MsgHeartbeat}
		kind := r.byte()
		if kind == beatAnswer {
			w.typ = raftpb.MsgHeartbeatResp
		}
		w.to, w.from, w.term, w.commit = r.number(), r.number(), r.number(), r.number()
		if r.bad || kind > beatNote {
			return fmt.Errorf("%w: heartbeats of %d bytes", ErrBadMessage, len(b))
		}
		m := w.link()
		if err := plausible(m); err != nil {
			return err
		}
		fn(g, m, kind == beatNote)
	}
	return nil
}

// quiesce is a leader's last word before it falls silent: its log ends at (index, logTerm), all of it
// committed, and the receiver has all of it. With index zero it is a follower's answer that it will not.
type quiesce struct {
	to, from             uint64
	term, index, logTerm uint64
	incarnation          uint64 // of the leader's process
}

func encodeQuiesce(q quiesce) []byte {
	b := []byte{kindQuiesce}
	for _, n := range [...]uint64{q.to, q.from, q.term, q.index, q.logTerm, q.incarnation} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func decodeQuiesce(b []byte) (*quiesce, error) {
	r := reader{b: b}
	q := &quiesce{to: r.number(), from: r.number(), term: r.number(), index: r.number(), logTerm: r.number(), incarnation: r.number()}
	if r.bad || len(r.b) > 0 || q.from == 0 || q.from >= maxReplica || q.term == 0 {
		return nil, fmt.Errorf("%w: quiesce", ErrBadMessage)
	}
	return q, nil
}
