package braid

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/braidkv/braid"

// allowed is the direction of dependencies: "a, b < c" lets c import a and b and, with
// them, whatever those may import. "a !< b" says that b must not import a, directly or not. A new
// edge is a change of the architecture: say why in the commit.
const allowed = `
internal/invariant, internal/ids < proto, storage/key, range/latch;
storage/key < storage, storage/raftlog;
proto, internal/invariant < storage;
storage < mvcc;
proto, storage/key < order;
storage/key, internal/invariant < storage/raftlog;
storage/raftlog < raftgroup;
mvcc < storage/transfer;               # what a range's state consists of
mvcc, range/latch < range/eval;
order, mvcc, storage, range/eval < range;
mvcc < watchfanout;                    # reads the event index, knows spans and revisions only
watchfanout < router;
proto < peer;
proto, internal/ids < peer/peertest;
range, order, router/check < router;
internal/ids < internal/cluster;
router, raftgroup, peer, storage/transfer, internal/cluster < node;
node, clientapi, internal/logjson, internal/cluster < cmd/braid;
node, sim/check < sim;

order, mvcc, range, router !< raftgroup; # hosts bytes, not meaning
order, raftgroup !< mvcc;                # revisions come as arguments
range, mvcc !< order;                    # decides order without seeing values
raftgroup !< range, router;              # they see interfaces, node plugs it in
`

// thirdParty says which packages may import a module directly (prefix match).
var thirdParty = map[string][]string{
	"github.com/cockroachdb/pebble/v2":    {"storage", "storage/key", "storage/raftlog", "storage/transfer", "mvcc", "order", "range", "router", "node", "sim"},
	"go.etcd.io/raft/v3":                  {"storage/raftlog", "raftgroup"},
	"google.golang.org/grpc":              {"router", "router/check", "peer", "cmd/braid", "clientapi", "node", "proto"},
	"github.com/prometheus/client_golang": {"cmd/braid", "clientapi", "node", "router"},
	"github.com/anishathalye/porcupine":   {"sim/check"},
	"go.etcd.io/etcd/api/v3":              {"watchfanout", "mvcc", "range", "range/eval", "router", "router/check", "node", "sim", "sim/check", "clientapi", "cmd/braid"},
	// Only for tests.
	"github.com/cockroachdb/datadriven": {},
	"github.com/google/go-cmp":          {},
	"pgregory.net/rapid":                {},
	"go.uber.org/goleak":                {},
	// In the graph through others, not for our code.
	"github.com/cockroachdb/errors": {},
	"github.com/gogo/protobuf":      {},
	"github.com/golang/protobuf":    {},
}

// core packages have no goroutines, clock, sockets, files or global randomness.
var core = []string{"internal/ids", "internal/invariant", "storage/key", "mvcc", "order", "range", "range/latch", "range/eval", "router/check", "watchfanout"}

var forbiddenInCore = []string{"net", "os", "math/rand", "math/rand/v2", "crypto/rand", "time"}

type source struct {
	pkg     string // folder below the root
	file    string
	imports []string
}

func sources(t *testing.T, tests bool) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != "." {
				return filepath.SkipDir // a nested module
			}
			if d.Name() == ".git" || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") && !tests {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		s := source{pkg: filepath.ToSlash(filepath.Dir(path)), file: path}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, p)
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func parseRules(t *testing.T) (edges, negative map[string]map[string]bool) {
	t.Helper()
	edges, negative = map[string]map[string]bool{}, map[string]map[string]bool{}
	var text strings.Builder
	for _, line := range strings.Split(allowed, "\n") {
		line, _, _ = strings.Cut(line, "#")
		text.WriteString(line + " ")
	}
	add := func(m map[string]map[string]bool, from, to string) {
		if m[to] == nil {
			m[to] = map[string]bool{}
		}
		m[to][from] = true
	}
	names := func(s string) (out []string) {
		for _, n := range strings.Split(s, ",") {
			out = append(out, strings.TrimSpace(n))
		}
		return out
	}
	for _, rule := range strings.Split(text.String(), ";") {
		if strings.TrimSpace(rule) == "" {
			continue
		}
		m, parts := edges, strings.Split(rule, "<")
		if strings.Contains(rule, "!<") {
			m, parts = negative, strings.Split(rule, "!<")
		}
		for i := 0; i+1 < len(parts); i++ {
			for _, from := range names(parts[i]) {
				for _, to := range names(parts[i+1]) {
					add(m, from, to)
				}
			}
		}
	}
	return edges, negative
}

func reach(edges map[string]map[string]bool, to string, seen map[string]bool) {
	for from := range edges[to] {
		if !seen[from] {
			seen[from] = true
			reach(edges, from, seen)
		}
	}
}

// TestDependencies holds the imports between braid's packages, and those of other modules, to the text above.
func TestDependencies(t *testing.T) {
	edges, negative := parseRules(t)
	got := map[string]map[string]bool{}
	for _, s := range sources(t, false) {
		may := map[string]bool{}
		reach(edges, s.pkg, may)
		for _, imp := range s.imports {
			if local, ok := strings.CutPrefix(imp, modulePath+"/"); ok {
				if got[s.pkg] == nil {
					got[s.pkg] = map[string]bool{}
				}
				got[s.pkg][local] = true
				if local != s.pkg && !may[local] {
					t.Errorf("%s: package %s may not import %s", s.file, s.pkg, local)
				}
				continue
			}
			if msg := forbiddenModule(s.pkg, imp); msg != "" {
				t.Errorf("%s: %s", s.file, msg)
			}
		}
	}
	for to, froms := range negative {
		seen := map[string]bool{}
		reach(got, to, seen)
		for from := range froms {
			if seen[from] {
				t.Errorf("package %s reaches %s, which it must not", to, from)
			}
		}
	}
}

func forbiddenModule(pkg, imp string) string {
	best := ""
	for m := range thirdParty {
		if (imp == m || strings.HasPrefix(imp, m+"/")) && len(m) > len(best) {
			best = m
		}
	}
	if best == "" {
		return ""
	}
	for _, ok := range thirdParty[best] {
		if ok == pkg {
			return ""
		}
	}
	return fmt.Sprintf("package %s may not import %s", pkg, imp)
}

// TestCorePackages keeps clocks, sockets, files and global randomness out of the packages that must be
// functions of their input.
func TestCorePackages(t *testing.T) {
	isCore := map[string]bool{}
	for _, c := range core {
		isCore[c] = true
	}
	for _, s := range sources(t, false) {
		if !isCore[s.pkg] {
			continue
		}
		for _, imp := range s.imports {
			for _, bad := range forbiddenInCore {
				if imp == bad {
					t.Errorf("%s: core package %s imports %s", s.file, s.pkg, imp)
				}
			}
		}
		text, err := os.ReadFile(s.file)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "go ") {
				t.Errorf("%s:%d: a core package starts a goroutine", s.file, n+1)
			}
		}
	}
}

// TestNoBannedWords rejects names that say nothing and marks of unfinished work.
func TestNoBannedWords(t *testing.T) {
	var bad []string
	for _, s := range sources(t, true) {
		for _, part := range strings.Split(s.pkg, "/") {
			switch part {
			case "util", "utils", "common", "helper", "helpers", "base", "types", "manager", "misc":
				bad = append(bad, s.file+": folder name says nothing")
			}
		}
		if s.file == "deps_test.go" {
			continue
		}
		text, err := os.ReadFile(s.file)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(text), "\n") {
			for _, word := range []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"} {
				if strings.Contains(line, "// "+word) {
					bad = append(bad, fmt.Sprintf("%s:%d: %s", s.file, n+1, word))
				}
			}
			if strings.HasSuffix(s.file, "_test.go") && strings.Contains(line, "time."+"Sleep(") {
				bad = append(bad, fmt.Sprintf("%s:%d: a test sleeps", s.file, n+1))
			}
		}
	}
	sort.Strings(bad)
	for _, b := range bad {
		t.Error(b)
	}
}

// TestPackageComments demands a package comment in every package.
func TestPackageComments(t *testing.T) {
	has := map[string]bool{}
	for _, s := range sources(t, false) {
		f, err := parser.ParseFile(token.NewFileSet(), s.file, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		has[s.pkg] = has[s.pkg] || f.Doc != nil
	}
	for pkg, ok := range has {
		if !ok && pkg != "." && pkg != "proto" {
			t.Errorf("package %s has no comment", pkg)
		}
	}
}
