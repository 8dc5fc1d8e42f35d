package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
)

// load reads a group's state and checks that its entries form one log.
func (g *GroupLog) load() error {
	if v, err := g.l.get(g.id, kindHardState); err != nil {
		return err
	} else if v != nil {
		xs, err := numbers(v, 3)
		if err != nil {
			return fmt.Errorf("raftlog: hard state of group %d: %w", g.id, err)
		}
		g.hs = HardState{Term: xs[0], Vote: xs[1], Commit: xs[2]}
	}
	if v, err := g.l.get(g.id, kindConf); err != nil {
		return err
	} else if v != nil {
		if g.confIndex, g.conf, err = decodeConf(v); err != nil {
			return fmt.Errorf("raftlog: configuration of group %d: %w", g.id, err)
		}
	}
	var truncTerm uint64
	if v, err := g.l.get(g.id, kindTruncated); err != nil {
		return err
	} else if v != nil {
		xs, err := numbers(v, 2)
		if err != nil {
			return fmt.Errorf("raftlog: truncated state of group %d: %w", g.id, err)
		}
		g.truncated, truncTerm = xs[0], xs[1]
	}
	g.terms = termRuns{{g.truncated, truncTerm}}
	g.last = g.truncated
	return g.loadEntries()
}

func (g *GroupLog) loadEntries() error {
	it, err := g.l.db.NewIter(&pebble.IterOptions{
		LowerBound: appendGroupKey(nil, g.id, kindEntry),
		UpperBound: appendGroupKey(nil, g.id, kindEntry+1),
	})
	if err != nil {
		return fmt.Errorf("raftlog: opening group %d: %w", g.id, err)
	}
	defer it.Close()
	var bytes int64
	for ok := it.First(); ok; ok = it.Next() {
		index, err := decodeEntryKey(it.Key())
		if err != nil {
			return fmt.Errorf("raftlog: group %d: %w", g.id, err)
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("raftlog: group %d, reading entry %d: %w", g.id, index, err)
		}
		_, term, data, err := decodeEntryHeader(v)
		if err != nil {
			return fmt.Errorf("raftlog: group %d, entry %d: %w", g.id, index, err)
		}
		if index != g.last+1 || term < g.terms[len(g.terms)-1].term {
			return fmt.Errorf("raftlog: group %d: %w: entry %d of term %d follows entry %d of term %d",
				g.id, ErrCorrupt, index, term, g.last, g.terms[len(g.terms)-1].term)
		}
		g.last = index
		g.terms = g.terms.put(index, term)
		g.sizes = append(g.sizes, uint32(len(data)+entryOverhead))
		bytes += int64(len(data) + entryOverhead)
	}
	g.addBytes(bytes)
	if err := it.Error(); err != nil {
		return fmt.Errorf("raftlog: reading group %d: %w", g.id, err)
	}
	return nil
}

// ErrStateBehindLog says that the machine's state ends before the log starts: entries are missing.
var ErrStateBehindLog = errors.New("raftlog: the log starts above the machine's state")

// Start is what the machine's durable state says about the log.
type Start struct {
	// Applied is the last entry the state contains, Term its term (zero if unknown).
	Applied, Term uint64
	// Conf is the newest configuration that the state knows, in force from ConfIndex.
	Conf      *raftpb.ConfState
	ConfIndex uint64
}

// A group is born with its log behind entry BirthIndex of term BirthTerm, which stands for its first configuration. So a replica that is added
// later, whose log is empty, cannot be brought up by entries alone, in which that configuration is not found: it gets a
// snapshot.
const (
	BirthIndex = 1
	BirthTerm  = 1
)

// Reconcile brings log and machine state together at start, durably, before Raft reads either. It returns the entry
// that counts as applied.
//
// A log of which there is nothing is born if a configuration with voters is given. The commit index is at least what
// was applied. If the state ends behind the log's end, or the log has another entry at that place, the state came in a snapshot and the
// crash came before the log was reset: that is done now. Of two configurations the newer one counts.
func (g *GroupLog) Reconcile(s Start) (applied uint64, err error) {
	newborn := g.conf == nil && g.last == 0 && len(s.Conf.GetVoters()) > 0
	if s.Applied == 0 && (newborn || g.truncated == BirthIndex && g.terms[0].term == BirthTerm) {
		s.Applied, s.Term = BirthIndex, BirthTerm
		if s.ConfIndex == 0 {
			s.ConfIndex = BirthIndex
		}
	}
	if s.Applied < g.truncated {
		return 0, fmt.Errorf("%w: group %d: applied %d, log starts behind %d", ErrStateBehindLog, g.id, s.Applied, g.truncated)
	}
	if g.conf == nil || s.ConfIndex > g.confIndex {
		g.conf, g.confIndex = s.Conf, s.ConfIndex
	}
	mismatch := s.Applied <= g.last && s.Term != 0 && g.terms.at(s.Applied) != s.Term
	if s.Applied > g.last || mismatch {
		return s.Applied, g.startBehind(s)
	}
	g.hs.Commit = max(g.hs.Commit, s.Applied)
	if g.hs.Commit > g.last {
		return 0, fmt.Errorf("%w: group %d: commit %d is behind the log's end %d", ErrCorrupt, g.id, g.hs.Commit, g.last)
	}
	return s.Applied, nil
}

// startBehind resets the log to the machine's state.
func (g *GroupLog) startBehind(s Start) error {
	if s.Term == 0 {
		return fmt.Errorf("%w: group %d: applied %d, log ends at %d and no term is known", ErrCorrupt, g.id, s.Applied, g.last)
	}
	if s.Term > g.hs.Term {
		g.hs.Term, g.hs.Vote = s.Term, 0
	}
	g.hs.Commit = s.Applied
	conf, index := g.conf, g.confIndex
	r := &Reset{Index: s.Applied, Term: s.Term, Conf: conf}
	g.applyReset(r)
	g.confIndex = index
	b := g.l.db.NewBatch()
	if err := g.l.encode(b, &job{g: g, reset: r, hs: g.hs, setHS: true}); err != nil {
		return err
	}
	if err := b.Set(appendGroupKey(nil, g.id, kindConf), appendConf(nil, index, conf), nil); err != nil {
		return fmt.Errorf("raftlog: configuration of group %d: %w", g.id, err)
	}
	return g.l.applyNow(b)
}

func (l *Log) get(g ids.GroupID, kind byte) ([]byte, error) {
	v, closer, err := l.db.Get(appendGroupKey(nil, g, kind))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("raftlog: reading %q of group %d: %w", kind, g, err)
	}
	out := append([]byte(nil), v...)
	return out, closer.Close()
}

// Groups lists the groups of which the engine has anything, ascending.
func (l *Log) Groups() ([]ids.GroupID, error) {
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixGroup}, UpperBound: []byte{prefixGroup + 1}})
	if err != nil {
		return nil, fmt.Errorf("raftlog: listing groups: %w", err)
	}
	defer it.Close()
	var out []ids.GroupID
	for ok := it.First(); ok; {
		k := it.Key()
		if len(k) < groupKeyLen {
			return nil, fmt.Errorf("raftlog: listing groups: %w: key %x", ErrCorrupt, k)
		}
		g := ids.GroupID(binary.BigEndian.Uint64(k[1:]))
		out = append(out, g)
		ok = it.SeekGE(appendGroupKey(nil, g, kindEnd))
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("raftlog: listing groups: %w", err)
	}
	return out, nil
}

// read reads entries [lo, hi) from the engine as far as max bytes allow, at least one.
func (l *Log) read(g ids.GroupID, lo, hi, max uint64) (ents []*raftpb.Entry, size uint64, err error) {
	it, err := l.db.NewIter(&pebble.IterOptions{
		LowerBound: appendEntryKey(nil, g, lo),
		UpperBound: appendEntryKey(nil, g, hi),
	})
	if err != nil {
		return nil, 0, fmt.Errorf("raftlog: reading group %d from entry %d: %w", g, lo, err)
	}
	defer it.Close()
	next := lo
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, 0, fmt.Errorf("raftlog: group %d, reading entry %d: %w", g, next, err)
		}
		index, err := decodeEntryKey(it.Key())
		if err != nil {
			return nil, 0, fmt.Errorf("raftlog: group %d: %w", g, err)
		}
		typ, term, data, err := decodeEntryHeader(v)
		if err != nil {
			return nil, 0, fmt.Errorf("raftlog: group %d, entry %d: %w", g, index, err)
		}
		if index != next {
			break
		}
		if size += uint64(len(data) + entryOverhead); size > max && len(ents) > 0 {
			size -= uint64(len(data) + entryOverhead)
			return ents, size, nil
		}
		ents = append(ents, NewEntryBlock(1).Set(0, typ, term, index, append([]byte(nil), data...)))
		next++
	}
	if err := it.Error(); err != nil {
		return nil, 0, fmt.Errorf("raftlog: reading group %d from entry %d: %w", g, lo, err)
	}
	if next != hi {
		return nil, 0, fmt.Errorf("raftlog: group %d: %w: entry %d is missing", g, ErrCorrupt, next)
	}
	l.counters.EntriesRead.Add(uint64(len(ents)))
	return ents, size, nil
}
