package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
)

// Keys of the log engine: 'g', group (8 bytes, big-endian), kind; entries are followed by their index
// (8 bytes, big-endian), so that a group is one span and its entries ascend.
const (
	prefixGroup = 'g'

	kindConf      = 'c'
	kindEntry     = 'e'
	kindHardState = 'h'
	kindTruncated = 't'
	kindEnd       = 'z' // above every kind

	groupKeyLen = 1 + 8 + 1
	entryKeyLen = groupKeyLen + 8
)

// valueVersion is the high half of the first byte of every value.
const valueVersion = 0x10

// ErrCorrupt marks a record of the log engine that cannot be what was written.
var ErrCorrupt = errors.New("raftlog: corrupt record")

func appendGroupKey(dst []byte, g ids.GroupID, kind byte) []byte {
	dst = append(dst, prefixGroup)
	dst = binary.BigEndian.AppendUint64(dst, uint64(g))
	return append(dst, kind)
}

func appendEntryKey(dst []byte, g ids.GroupID, index uint64) []byte {
	dst = appendGroupKey(dst, g, kindEntry)
	return binary.BigEndian.AppendUint64(dst, index)
}

// putEntryKey fills k, which has entryKeyLen bytes.
func putEntryKey(k []byte, g ids.GroupID, index uint64) {
	k[0] = prefixGroup
	binary.BigEndian.PutUint64(k[1:], uint64(g))
	k[9] = kindEntry
	binary.BigEndian.PutUint64(k[groupKeyLen:], index)
}

func decodeEntryKey(k []byte) (index uint64, err error) {
	if len(k) != entryKeyLen || k[0] != prefixGroup || k[9] != kindEntry {
		return 0, fmt.Errorf("%w: entry key %x", ErrCorrupt, k)
	}
	return binary.BigEndian.Uint64(k[groupKeyLen:]), nil
}

// An entry's value is: version and type (one byte), term (varint), data.

func entryHeaderLen(term uint64) int { return 1 + uvarintLen(term) }

func putEntryHeader(v []byte, typ raftpb.EntryType, term uint64) int {
	v[0] = valueVersion | byte(typ)
	return 1 + binary.PutUvarint(v[1:], term)
}

func decodeEntryHeader(v []byte) (typ raftpb.EntryType, term uint64, data []byte, err error) {
	if len(v) < 2 || v[0]&0xf0 != valueVersion || v[0]&0x0f > byte(raftpb.EntryConfChangeV2) {
		return 0, 0, nil, fmt.Errorf("%w: entry value header", ErrCorrupt)
	}
	term, n := binary.Uvarint(v[1:])
	if n <= 0 {
		return 0, 0, nil, fmt.Errorf("%w: entry term", ErrCorrupt)
	}
	return raftpb.EntryType(v[0] & 0x0f), term, v[1+n:], nil
}

func uvarintLen(x uint64) int {
	n := 1
	for x >= 0x80 {
		x >>= 7
		n++
	}
	return n
}

// appendNumbers encodes small records: version byte, then the numbers as varints.
func appendNumbers(dst []byte, xs ...uint64) []byte {
	dst = append(dst, valueVersion)
	for _, x := range xs {
		dst = binary.AppendUvarint(dst, x)
	}
	return dst
}

// numbers decodes a record of appendNumbers that has exactly the n numbers asked for, or with n < 0 any number of them.
func numbers(v []byte, n int) ([]uint64, error) {
	if len(v) == 0 || v[0] != valueVersion {
		return nil, fmt.Errorf("%w: version byte", ErrCorrupt)
	}
	var xs []uint64
	for v = v[1:]; len(v) > 0; {
		x, k := binary.Uvarint(v)
		if k <= 0 {
			return nil, fmt.Errorf("%w: number %d", ErrCorrupt, len(xs))
		}
		xs = append(xs, x)
		v = v[k:]
	}
	if n >= 0 && len(xs) != n {
		return nil, fmt.Errorf("%w: %d numbers, want %d", ErrCorrupt, len(xs), n)
	}
	return xs, nil
}

// A configuration is: index it is in force from, auto-leave flag, then for each of the four lists its
// length and its members.

func appendConf(dst []byte, index uint64, cs *raftpb.ConfState) []byte {
	xs := []uint64{index, 0}
	if cs.GetAutoLeave() {
		xs[1] = 1
	}
	for _, list := range [][]uint64{cs.GetVoters(), cs.GetLearners(), cs.GetVotersOutgoing(), cs.GetLearnersNext()} {
		xs = append(xs, uint64(len(list)))
		xs = append(xs, list...)
	}
	return appendNumbers(dst, xs...)
}

func decodeConf(v []byte) (index uint64, cs *raftpb.ConfState, err error) {
	xs, err := numbers(v, -1)
	if err != nil {
		return 0, nil, err
	}
	bad := fmt.Errorf("%w: configuration record", ErrCorrupt)
	if len(xs) < 2 {
		return 0, nil, bad
	}
	index, auto := xs[0], xs[1] == 1
	xs = xs[2:]
	var lists [4][]uint64
	for i := range lists {
		if len(xs) == 0 || xs[0] > uint64(len(xs)-1) {
			return 0, nil, bad
		}
		n := xs[0]
		if n > 0 {
			lists[i] = xs[1 : 1+n : 1+n]
		}
		xs = xs[1+n:]
	}
	if len(xs) != 0 {
		return 0, nil, bad
	}
	return index, &raftpb.ConfState{
		Voters: lists[0], Learners: lists[1], VotersOutgoing: lists[2], LearnersNext: lists[3], AutoLeave: &auto,
	}, nil
}
