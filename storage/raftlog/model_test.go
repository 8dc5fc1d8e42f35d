package raftlog

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/internal/ids"
)

// model is a log the slow way. Operations make a new one, so that old ones can be kept.
type model struct {
	hs              HardState
	truncated, term uint64
	ents            []*raftpb.Entry
}

func (m model) last() uint64 { return m.truncated + uint64(len(m.ents)) }

func (m model) lastTerm() uint64 {
	if n := len(m.ents); n > 0 {
		return m.ents[n-1].GetTerm()
	}
	return m.term
}

func (m model) append(ents []*raftpb.Entry) model {
	keep := ents[0].GetIndex() - m.truncated - 1
	m.ents = append(append([]*raftpb.Entry(nil), m.ents[:keep]...), ents...)
	return m
}

func (m model) truncate(through uint64) model {
	n := through - m.truncated
	m.term = m.ents[n-1].GetTerm()
	m.ents, m.truncated = append([]*raftpb.Entry(nil), m.ents[n:]...), through
	return m
}

func (m model) String() string {
	return fmt.Sprintf("hs %+v, behind %d/%d: %s", m.hs, m.truncated, m.term, describe(m.ents))
}

// modelGroup is a group under test: states[i] is what its first i jobs lead to.
type modelGroup struct {
	g         *GroupLog
	states    []model
	completed int
}

func (m *modelGroup) now() model { return m.states[len(m.states)-1] }

func (m *modelGroup) Durable() {
	m.completed++
	m.g.Durable()
}

// TestAgainstModel runs random operations on several groups, compares every answer with a naive log, and crashes: what
// comes back must be the effect of a prefix of the jobs that has all completed ones (L1, L2), up to truncation and commit, which may be
// older.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := vfs.NewCrashableMem()
		tt := failer{r: t}
		db := openEngine(tt, fs)
		defer func() { db.Close() }()
		limit := rapid.SampledFrom([]int64{0, 1}).Draw(t, "cache")
		l := openLog(tt, db, Options{CacheBytes: 1})
		groups := make([]*modelGroup, 3)
		open := func() {
			for i := range groups {
				old := groups[i]
				g, err := l.Group(ids.GroupID(i))
				if err != nil {
					t.Fatal(err)
				}
				groups[i] = &modelGroup{g: g, states: []model{{}}}
				if old == nil {
					continue
				}
				// Which prefix is it?
				got := modelOf(tt, g)
				found := false
				for k := len(old.states) - 1; k >= old.completed && !found; k-- {
					found = explains(old.states[k], got)
				}
				if !found {
					t.Fatalf("group %d: after the crash %v, completed %d of\n%v", i, got, old.completed, old.states)
				}
				groups[i].states = []model{got}
			}
			if limit > 0 {
				l.cachePerGroup.Store(limit) // below what Options allow: nothing durable is cached
			}
		}
		open()
		pick := func(t *rapid.T) *modelGroup { return groups[rapid.IntRange(0, len(groups)-1).Draw(t, "group")] }
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				m := pick(t)
				now := m.now()
				first := rapid.Uint64Range(now.truncated+1, now.last()+1).Draw(t, "first")
				term := max(now.lastTerm(), 1)
				if first <= now.last() {
					term++
				}
				terms := make([]uint64, rapid.IntRange(1, 4).Draw(t, "n"))
				for i := range terms {
					terms[i] = term
				}
				ents := entries(first, terms...)
				now = now.append(ents)
				now.hs.Term = term
				m.states = append(m.states, now)
				m.g.Append(Append{HardState: &now.hs, Entries: ents, MustSync: true, Done: m})
			},
			"commit": func(t *rapid.T) {
				m := pick(t)
				now := m.now()
				now.hs.Commit = rapid.Uint64Range(now.hs.Commit, max(now.hs.Commit, now.last())).Draw(t, "commit")
				m.states = append(m.states, now)
				if m.g.Append(Append{HardState: &now.hs, Done: m}) {
					m.completed++
				}
			},
			"reset": func(t *rapid.T) {
				m := pick(t)
				now := m.now()
				index := now.last() + rapid.Uint64Range(1, 5).Draw(t, "ahead")
				now = model{hs: HardState{Term: now.lastTerm() + 1, Commit: index}, truncated: index, term: now.lastTerm() + 1}
				m.states = append(m.states, now)
				m.g.Append(Append{HardState: &now.hs, Reset: &Reset{Index: index, Term: now.term, Conf: &raftpb.ConfState{}}, Done: m})
			},
			"truncate": func(t *rapid.T) {
				m := pick(t)
				now := m.now()
				if len(now.ents) == 0 || m.g.Outstanding() > 0 {
					return // only what is delivered is truncated, so it is durable
				}
				through := rapid.Uint64Range(now.truncated+1, now.last()).Draw(t, "through")
				m.states[len(m.states)-1] = now.truncate(through)
				m.g.Truncate(through)
			},
			"write": func(t *rapid.T) { l.Write() },
			"pump":  func(t *rapid.T) { pump(tt, l) },
			"flush": func(t *rapid.T) { l.FlushLazy() },
			"crash": func(t *rapid.T) {
				keep := rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "keep")
				clone := fs.CrashClone(vfs.CrashCloneCfg{
					UnsyncedDataPercent: keep, RNG: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)),
				})
				db.Close()
				fs, db = clone, openEngine(tt, clone)
				l = openLog(tt, db, Options{CacheBytes: 1})
				open()
			},
			"": func(t *rapid.T) {
				var total int64
				for i, m := range groups {
					if got, want := contents(tt, m.g), m.now().String(); got != want {
						t.Fatalf("group %d:\n%s\nwant\n%s", i, got, want)
					}
					for j, e := range m.now().ents {
						lo := e.GetIndex()
						term, err := m.g.Term(lo)
						if err != nil || term != e.GetTerm() {
							t.Fatalf("group %d: term of %d is %d, %v", i, lo, term, err)
						}
						hi := min(lo+3, m.now().last()+1)
						max := rapid.Uint64Range(0, 150).Draw(t, "max")
						ents, err := m.g.Entries(lo, hi, max)
						if err != nil {
							t.Fatal(err)
						}
						var size uint64
						for k, e := range ents {
							size += uint64(entrySize(e))
							if k > 0 && size > max {
								t.Fatalf("group %d: %d bytes where %d were asked for", i, size, max)
							}
						}
						if want := m.now().ents[j:][:len(ents)]; describe(ents) != describe(want) || len(ents) == 0 {
							t.Fatalf("group %d: entries [%d, %d): %s", i, lo, hi, describe(ents))
						}
						total += entrySize(e)
					}
				}
				if got := l.TotalBytes(); got != total {
					t.Fatalf("%d bytes, want %d", got, total)
				}
			},
		})
	})
}

// explains tells whether got can be what a crash leaves of want: the same log, of which less may be truncated, and an
// older commit index.
func explains(want, got model) bool {
	if got.last() != want.last() || got.truncated > want.truncated || got.hs.Commit > want.hs.Commit || got.hs.Term != want.hs.Term {
		return false
	}
	if got.truncated < want.truncated {
		if want.truncated > got.last() || len(got.ents) < int(want.truncated-got.truncated) {
			return false
		}
		got = got.truncate(want.truncated)
	}
	return got.term == want.term && describe(got.ents) == describe(want.ents)
}

func modelOf(t testing.TB, g *GroupLog) model {
	t.Helper()
	first, _ := g.FirstIndex()
	last, _ := g.LastIndex()
	term, err := g.Term(first - 1)
	if err != nil {
		t.Fatal(err)
	}
	ents, err := g.Entries(first, last+1, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	return model{hs: g.HardState(), truncated: first - 1, term: term, ents: ents}
}

// failer lets helpers that want a testing.TB fail a rapid check.
type failer struct {
	testing.TB // nil: only what follows is used
	r          *rapid.T
}

func (f failer) Helper()                   {}
func (f failer) Fatal(args ...any)         { f.r.Fatal(args...) }
func (f failer) Errorf(s string, a ...any) { f.r.Errorf(s, a...) }
