package latch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/braidkv/braid/range/latch"
)

func point(k string) latch.Span { return latch.Span{Start: []byte(k)} }

// span makes [start, end); an empty end is that of the key space.
func span(start, end string) latch.Span {
	return latch.Span{Start: []byte(start), End: append([]byte{}, end...)}
}

func TestOverlaps(t *testing.T) {
	for _, c := range []struct {
		a, b latch.Span
		want bool
	}{
		{point("a"), point("a"), true},
		{point("a"), point("a\x00"), false},
		{point("a"), span("a", "b"), true},
		{point("b"), span("a", "b"), false},
		{point("a\xff"), span("a", "b"), true},
		{point("z"), span("a", ""), true},
		{point("a"), span("b", ""), false},
		{span("a", "c"), span("b", "d"), true},
		{span("a", "b"), span("b", "c"), false},
		{span("a", "z"), span("m", "n"), true},
		{span("a", ""), span("x", "y"), true},
		{span("x", ""), span("a", "x"), false},
		{span("a", ""), span("b", ""), true},
	} {
		if c.a.Overlaps(c.b) != c.want || c.b.Overlaps(c.a) != c.want {
			t.Errorf("%q, %q: want %v", c.a, c.b, c.want)
		}
	}
	if !point("a").Point() || span("a", "").Point() {
		t.Error("Point")
	}
}

// script runs a few verbs on a set and prints what is granted.
//
//	a=P r:k,x..y w:k   acquire: P, S or L for the kind, spans that it reads and writes; x.. goes to the end
//	a=I ...            inherit, as a lock
//	show a, release a
func script(t *testing.T, lines ...string) string {
	t.Helper()
	s := latch.New()
	ids, names := map[string]latch.ID{}, map[latch.ID]string{}
	var out []string
	for _, line := range lines {
		words := strings.Fields(line)
		var granted []latch.ID
		switch {
		case words[0] == "show":
			granted = s.Show(ids[words[1]])
		case words[0] == "release":
			granted = s.Release(ids[words[1]])
		default:
			name, kind, _ := strings.Cut(words[0], "=")
			req := latch.Request{Kind: map[string]latch.Kind{"P": latch.Pipelined, "S": latch.Single, "L": latch.Lock, "I": latch.Lock}[kind]}
			for _, w := range words[1:] {
				mode, list, _ := strings.Cut(w, ":")
				for _, x := range strings.Split(list, ",") {
					sp := point(x)
					if a, b, ok := strings.Cut(x, ".."); ok {
						sp = span(a, b)
					}
					if mode == "r" {
						req.Reads = append(req.Reads, sp)
					} else {
						req.Writes = append(req.Writes, sp)
					}
				}
			}
			var id latch.ID
			held := true
			if kind == "I" {
				id = s.Inherit(req)
			} else {
				id, held = s.Acquire(req)
			}
			if held != s.Held(id) {
				t.Errorf("%s: Held is %v", line, !held)
			}
			ids[name], names[id] = id, name
			if held {
				granted = []latch.ID{id}
			}
		}
		for _, id := range granted {
			out = append(out, names[id])
		}
		out = append(out, "|")
	}
	return strings.TrimSuffix(strings.Join(out, " "), " |")
}

func TestScripts(t *testing.T) {
	for _, c := range []struct {
		what  string
		lines []string
		want  string
	}{
		{"blind writes do not meet", []string{"a=P w:k", "b=P w:k", "c=P w:k"}, "a | b | c"},
		{"reads do not meet", []string{"a=S r:k", "b=S r:a..z", "c=L r:k"}, "a | b | c"},
		{"a read waits for a write", []string{"a=P w:k", "b=P r:k", "release a"}, "a | | b"},
		{"a write waits for a read", []string{"a=P r:k", "b=P w:k", "release a"}, "a | | b"},
		{"other keys do not matter", []string{"a=P r:k w:k", "b=P r:l w:l", "c=S r:l\x00..z"}, "a | b | c"},
		{"who comes later waits behind who waits", []string{"a=P r:k", "b=P w:k", "c=P r:k", "release a", "release b"}, "a | | | b | c"},
		{"but not if they do not meet", []string{"a=P r:k", "b=P w:k", "c=P w:k", "release a"}, "a | | | b c"},
		{"all latches or none", []string{"a=P r:k", "b=P w:k,l", "c=P r:l", "release a", "release b"}, "a | | | b | c"},
		{"two stand in the way", []string{"a=P r:k", "b=P r:l", "c=P w:k,l", "release a", "release b"}, "a | b | | | c"},
		{"compare-and-swap on one key, one after the other", []string{"a=P r:k w:k", "b=P r:k w:k", "c=P r:k w:k", "show a", "show b", "show c"}, "a | | | b | c |"},
		{"and without waiting once they are visible", []string{"a=P r:k w:k", "show a", "b=P r:k w:k", "show b", "c=P w:k"}, "a | | b | | c"},
		{"a range read waits for a visible write", []string{"a=P r:k w:k", "show a", "b=S r:a..z", "release a"}, "a | | | b"},
		{"a range delete may follow a visible read", []string{"a=P r:k w:l", "show a", "b=S r:m..z w:a..l"}, "a | | b"},
		{"a lock does not", []string{"a=P r:k w:l", "show a", "b=L w:k", "release a"}, "a | | | b"},
		{"a lock reads no visible write", []string{"a=P w:k", "show a", "b=L r:k", "release a"}, "a | | | b"},
		{"a waiting lock is not overtaken", []string{"a=P r:k w:k", "show a", "b=L r:k w:k", "c=P r:k w:k", "release a", "release b"}, "a | | | | b | c"},
		{"showing helps only those that it helps", []string{"a=P r:k w:k", "b=L r:k", "c=S r:a..z", "d=P r:k", "show a", "release a"}, "a | | | | d | b c"},
		{"a request that gives up while it waits lets others pass", []string{"a=P r:k", "b=P w:k", "c=P r:k", "release b", "release a"}, "a | | | c |"},
		{"twice given up", []string{"a=P r:k", "b=P w:k", "release b", "release b", "release a"}, "a | | | |"},
		{"inherited prepares do not wait for each other", []string{"a=I r:k w:k", "b=I r:a..z w:k", "c=P r:k", "release a", "release b"}, "a | b | | | c"},
		{"a span to the end", []string{"a=S r:m..", "b=P w:l", "c=P w:m", "d=P w:zzz", "release a"}, "a | b | | | c d"},
		{"read and write of one key in one request", []string{"a=P r:k,k w:k", "b=P w:k", "release a"}, "a | | b"},
		{"what waits cannot be shown", []string{"a=P r:k", "b=P w:k", "show b", "c=P r:k", "release a", "release b"}, "a | | | | b | c"},
	} {
		if got := script(t, c.lines...); got != c.want {
			t.Errorf("%s: %q\n got %s\nwant %s", c.what, c.lines, got, c.want)
		}
	}
}

func TestResetAndUnknown(t *testing.T) {
	s := latch.New()
	a, _ := s.Acquire(latch.Request{Writes: []latch.Span{point("k")}})
	b, granted := s.Acquire(latch.Request{Reads: []latch.Span{point("k"), span("a", "c")}})
	if granted || s.Len() != 2 {
		t.Errorf("granted %v, %d latches", granted, s.Len())
	}
	s.Reset()
	if s.Len() != 0 || s.Held(a) || s.Release(a) != nil || s.Release(b) != nil || s.Show(a) != nil || s.Release(0) != nil {
		t.Error("something is left")
	}
	c, granted := s.Acquire(latch.Request{Reads: []latch.Span{point("k")}, Writes: []latch.Span{point("b")}})
	if !granted || c == a || c == b {
		t.Errorf("granted %v, ID %d after %d and %d", granted, c, a, b)
	}
}

// TestKeysAreGivenBack: a key belongs to its owner again when his latch is gone, though others are still at it.
func TestKeysAreGivenBack(t *testing.T) {
	s := latch.New()
	k := []byte("key")
	a, _ := s.Acquire(latch.Request{Writes: []latch.Span{{Start: k}}})
	b, _ := s.Acquire(latch.Request{Writes: []latch.Span{point("key")}})
	s.Release(a)
	copy(k, "XXX")
	c, granted := s.Acquire(latch.Request{Reads: []latch.Span{point("key")}})
	if granted {
		t.Error("the write of the second is not found")
	}
	if got := s.Release(b); !slices.Equal(got, []latch.ID{c}) {
		t.Errorf("granted %v, want %v", got, c)
	}
}

// model is a Set in words: a request may go on if no older one stands in its way.
type model struct{ list []*entry }

type entry struct {
	id            latch.ID
	req           latch.Request
	held, visible bool
}

func overlap(a, b []latch.Span) bool {
	return slices.ContainsFunc(a, func(x latch.Span) bool { return slices.ContainsFunc(b, x.Overlaps) })
}

func (o *entry) stands(y *entry) bool {
	wr, rw := overlap(o.req.Writes, y.req.Reads), overlap(o.req.Reads, y.req.Writes)
	if o.visible && y.req.Kind == latch.Pipelined {
		return false
	}
	if o.visible && y.req.Kind == latch.Single {
		return wr
	}
	return wr || rw
}

// settle grants what can be granted.
func (m *model) settle() (granted []latch.ID) {
	for i, y := range m.list {
		if !y.held && !slices.ContainsFunc(m.list[:i], func(o *entry) bool { return o.stands(y) }) {
			y.held = true
			granted = append(granted, y.id)
		}
	}
	return granted
}

func genSpans(t *rapid.T, what string) (out []latch.Span) {
	keys := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	for range rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(t, what) {
		if rapid.IntRange(0, 4).Draw(t, "is span") == 0 {
			out = append(out, span(keys.Draw(t, "start"), rapid.SampledFrom([]string{"", "e", "d\x00", "z"}).Draw(t, "end")))
		} else {
			out = append(out, point(keys.Draw(t, "key")))
		}
	}
	return out
}

// TestAgainstModel compares every answer with the model's, and with that of a second set that gets the same calls: hashing must not
// show.
func TestAgainstModel(t *testing.T) {
	waited := 0
	rapid.Check(t, func(t *rapid.T) {
		m, s, twin := &model{}, latch.New(), latch.New()
		pick := func() *entry {
			if len(m.list) == 0 {
				return &entry{id: 999}
			}
			return rapid.SampledFrom(m.list).Draw(t, "which")
		}
		same := func(what string, got, other, want []latch.ID) {
			t.Helper()
			if !slices.Equal(got, want) || !slices.Equal(other, want) {
				t.Fatalf("%s: granted %v and %v, want %v", what, got, other, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				req := latch.Request{
					Reads: genSpans(t, "reads"), Writes: genSpans(t, "writes"),
					Kind: rapid.SampledFrom([]latch.Kind{latch.Pipelined, latch.Pipelined, latch.Single, latch.Lock}).Draw(t, "kind"),
				}
				id, granted := s.Acquire(req)
				id2, granted2 := twin.Acquire(req)
				m.list = append(m.list, &entry{id: id, req: req})
				want := len(m.settle()) == 1
				if granted != want || granted2 != want || id2 != id {
					t.Fatalf("%+v: granted %v, %v, want %v", req, granted, granted2, want)
				}
				if !want {
					waited++
				}
			},
			"inherit": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") > 0 {
					t.Skip("seldom")
				}
				req := latch.Request{Reads: genSpans(t, "reads"), Writes: genSpans(t, "writes"), Kind: latch.Lock}
				m.list = append(m.list, &entry{id: s.Inherit(req), req: req, held: true})
				twin.Inherit(req)
			},
			"show": func(t *rapid.T) {
				e := pick()
				if e.req.Kind == latch.Lock {
					t.Skip("never shown")
				}
				e.visible = e.held
				same("show", s.Show(e.id), twin.Show(e.id), m.settle())
			},
			"release": func(t *rapid.T) {
				e := pick()
				m.list = slices.DeleteFunc(m.list, func(x *entry) bool { return x == e })
				same("release", s.Release(e.id), twin.Release(e.id), m.settle())
			},
			"": func(t *rapid.T) {
				if s.Len() != len(m.list) {
					t.Fatalf("%d latches, want %d", s.Len(), len(m.list))
				}
				for i, e := range m.list {
					if s.Held(e.id) != e.held {
						t.Fatalf("latch %d held: %v", e.id, !e.held)
					}
					// What latches are for: nobody holds what an older holder, who is neither visible nor inherited, excludes.
					for _, o := range m.list[:i] {
						if o.held && e.held && !o.visible && e.req.Kind != latch.Lock && o.stands(e) {
							t.Fatalf("latches %d and %d are both held", o.id, e.id)
						}
					}
				}
			},
		})
		// Nobody starves: if what is held is released, everything is granted, and in the end nothing is left.
		for range m.list {
			i := slices.IndexFunc(m.list, func(e *entry) bool { return e.held })
			if i < 0 {
				t.Fatal("something waits for nobody")
			}
			e := m.list[i]
			m.list = slices.Delete(m.list, i, i+1)
			same("release in the end", s.Release(e.id), twin.Release(e.id), m.settle())
		}
		if s.Len() != 0 {
			t.Fatalf("%d latches are left", s.Len())
		}
	})
	if waited == 0 {
		t.Error("nobody ever waited")
	}
}

// TestManyPoints goes beyond what is kept for use again.
func TestManyPoints(t *testing.T) {
	s := latch.New()
	var ids []latch.ID
	for i := range 5000 {
		id, _ := s.Acquire(latch.Request{Writes: []latch.Span{point(fmt.Sprint(i % 3000))}})
		ids = append(ids, id)
	}
	all, granted := s.Acquire(latch.Request{Reads: []latch.Span{span("", "")}, Kind: latch.Single})
	if granted {
		t.Error("the whole span is granted")
	}
	var got []latch.ID
	for _, id := range ids {
		got = append(got, s.Release(id)...)
	}
	if d := cmp.Diff([]latch.ID{all}, got); d != "" {
		t.Error(d)
	}
}

func keys(n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = fmt.Appendf(nil, "/registry/pods/default/pod-%06d", i)
	}
	return out
}

// BenchmarkPoints is the life of a compare-and-swap among others on other keys.
func BenchmarkPoints(b *testing.B) {
	for _, flight := range []int{1, 64, 4096} {
		b.Run(fmt.Sprint("flight=", flight), func(b *testing.B) {
			s, ks, ids := latch.New(), keys(8192), make([]latch.ID, flight)
			spans := make([][]latch.Span, len(ks))
			for i, k := range ks {
				spans[i] = []latch.Span{{Start: k}}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Release(ids[i%flight])
				sp := spans[i%len(ks)]
				id, _ := s.Acquire(latch.Request{Reads: sp, Writes: sp})
				s.Show(id)
				ids[i%flight] = id
			}
		})
	}
}

// BenchmarkHotKey has many unordered writes of one key in flight.
func BenchmarkHotKey(b *testing.B) {
	const flight = 512
	s, ids := latch.New(), make([]latch.ID, flight)
	sp := []latch.Span{point("hot")}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Release(ids[i%flight])
		id, _ := s.Acquire(latch.Request{Reads: sp, Writes: sp})
		s.Show(id)
		ids[i%flight] = id
	}
}

// BenchmarkSpan is a range read among many points.
func BenchmarkSpan(b *testing.B) {
	s := latch.New()
	for _, k := range keys(4096) {
		s.Acquire(latch.Request{Writes: []latch.Span{{Start: k}}})
	}
	sp := []latch.Span{span("/registry/services/", "/registry/services0")}
	b.ReportAllocs()
	for b.Loop() {
		id, _ := s.Acquire(latch.Request{Reads: sp, Kind: latch.Single})
		s.Release(id)
	}
}
