package raftlog

import "go.etcd.io/raft/v3/raftpb"

// EntryBlock holds entries and the fields they point to in one allocation. It is for decoders: Raft's entries
// have a pointer per field, which would make five allocations each.
type EntryBlock struct {
	slots []entrySlot
}

type entrySlot struct {
	entry       raftpb.Entry
	term, index uint64
	typ         raftpb.EntryType
}

// NewEntryBlock makes room for n entries.
func NewEntryBlock(n int) EntryBlock { return EntryBlock{slots: make([]entrySlot, n)} }

// Set fills entry i, which keeps data.
func (b EntryBlock) Set(i int, typ raftpb.EntryType, term, index uint64, data []byte) *raftpb.Entry {
	s := &b.slots[i]
	s.term, s.index = term, index
	s.entry.Term, s.entry.Index, s.entry.Data = &s.term, &s.index, data
	if typ != raftpb.EntryNormal {
		s.typ = typ
		s.entry.Type = &s.typ
	}
	return &s.entry
}

// entryOverhead is more than an entry's encoding adds to its data, here and in Raft's own accounting.
const entryOverhead = 32

func entrySize(e *raftpb.Entry) int64 { return int64(len(e.GetData())) + entryOverhead }
