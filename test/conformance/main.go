// Command conformance runs the checks of a conformance kit against a cluster whose ranges cut through the checks' keys,
// and, on request, etcd's own test suites against the binary.
//
//	conformance                                  braid from this checkout: 3 nodes, 16 ranges; areas kv, txn, compaction, shard
//	conformance --kind etcd                      the same on etcd 3.7.3: everything must pass
//	conformance --suites common,integration/clientv3 --suite-areas kv,txn
//
// The kit is not part of the project: it is looked for in ../shared/conformance from the project's root, or where --kit
// says. Without it nothing is run, and the program says so.
//
// Exit status: 0 everything passed (or there is no kit), 1 a check failed, 2 the run could not be made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/braidkv/braid/test/servers"
)

// prefix is where the checks' keys are.
const prefix = "/cases/x/"

// splits cut the key space into 16 ranges: most of them between the keys of single checks, the rest between keys that lie
// far apart.
var splits = []string{
	"(", prefix + "b", prefix + "c", prefix + "d", prefix + "k3", prefix + "lock/", prefix + "old", prefix + "p2", prefix + "p5",
	prefix + "pods/b", prefix + "q", prefix + "x", "A", "a", "q",
}

var errFailed = errors.New("checks failed")

type options struct {
	kind, binary, flags, kit string
	nodes                    int
	splits, areas            []string
	suites, suiteAreas       []string
	suiteSplits              string
	jobs                     int
	limit                    time.Duration
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	switch {
	case err == nil:
	case errors.Is(err, errFailed):
		fmt.Println("FAIL:", err)
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.StringVar(&o.kind, "kind", "braid", "what the servers are: braid or etcd")
	f.StringVar(&o.binary, "binary", "", "the server's program (default: built from this checkout)")
	f.StringVar(&o.flags, "flags", "", "more flags for every node, separated by spaces")
	f.StringVar(&o.kit, "kit", "", "folder of the conformance kit (default: ../shared/conformance from the project's root)")
	f.IntVar(&o.nodes, "nodes", 3, "nodes")
	split := f.String("split-keys", strings.Join(splits, ","), "keys at which the key space is cut (braid)")
	areas := f.String("areas", "kv,txn,compaction,shard", "areas of the cases to run, comma-separated; none: no cases")
	suites := f.String("suites", "", "suites of etcd to run, comma-separated: common, e2e, integration, integration/clientv3, ..")
	suiteAreas := f.String("suite-areas", "kv,txn", "areas of the suites to run, comma-separated")
	f.StringVar(&o.suiteSplits, "suite-split-keys", "", "split keys for the suites' servers (braid), by environment")
	f.IntVar(&o.jobs, "jobs", 2, "tests of a suite that run at once")
	f.DurationVar(&o.limit, "limit", 30*time.Minute, "time for everything")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.splits, o.areas, o.suites, o.suiteAreas = list(*split), list(*areas), list(*suites), list(*suiteAreas)
	if o.nodes < 1 || o.jobs < 1 {
		return o, errors.New("--nodes and --jobs must be above 0")
	}
	return o, nil
}

func list(text string) []string {
	if text == "" || text == "none" {
		return nil
	}
	return strings.Split(text, ",")
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("not done within %v", o.limit))
	defer cancel()
	if o.kit == "" {
		root, err := servers.Root()
		if err != nil {
			return err
		}
		o.kit = filepath.Join(root, "..", "shared", "conformance")
	}
	if _, err := os.Stat(o.kit); errors.Is(err, fs.ErrNotExist) {
		fmt.Printf("no conformance kit at %s: nothing was run\n", o.kit)
		return nil
	}
	if o.binary, err = servers.Binary(ctx, servers.Kind(o.kind), o.binary); err != nil {
		return err
	}
	return errors.Join(runCases(ctx, o), runSuites(ctx, o))
}

// runCases starts a cluster and runs the cases of the areas against all its nodes.
func runCases(ctx context.Context, o options) error {
	if len(o.areas) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "braid-conformance-")
	if err != nil {
		return fmt.Errorf("making a data folder: %w", err)
	}
	defer os.RemoveAll(dir) // ours; what stays is only space
	program := filepath.Join(dir, "cases")
	if err := servers.GoBuild(ctx, filepath.Join(o.kit, "cases"), ".", program); err != nil {
		return err
	}
	cl, err := servers.New(servers.Config{
		Kind: servers.Kind(o.kind), Binary: o.binary, Nodes: o.nodes, Dir: dir, SplitKeys: o.splits, Flags: strings.Fields(o.flags),
	})
	if err != nil {
		return err
	}
	defer cl.Close()
	startCtx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := cl.Start(startCtx); err != nil {
		return err
	}
	var errs []error
	for _, a := range o.areas {
		fmt.Printf("== %s: cases of the area %s, %d nodes\n", o.kind, a, o.nodes)
		err := command(ctx, nil, program, "--endpoints", strings.Join(cl.Endpoints(), ","), "--area", a, "--prefix", prefix)
		if err != nil {
			errs = append(errs, fmt.Errorf("cases of the area %s: %w", a, err))
		}
	}
	return errors.Join(append(errs, cl.Stop(10*time.Second))...)
}

// runSuites runs the open tests of the areas in etcd's suites.
func runSuites(ctx context.Context, o options) error {
	if len(o.suites) == 0 {
		return nil
	}
	dir := filepath.Join(o.kit, "etcd-suite")
	table, err := os.ReadFile(filepath.Join(dir, "tests.tsv"))
	if err != nil {
		return fmt.Errorf("reading the list of tests: %w", err)
	}
	var env []string
	if o.suiteSplits != "" {
		env = append(env, "ETCD_INITIAL_SPLIT_KEYS="+o.suiteSplits)
	}
	var errs []error
	for _, s := range o.suites {
		tests := choose(string(table), s, o.suiteAreas)
		if len(tests) == 0 {
			errs = append(errs, fmt.Errorf("the suite %s has no tests of the areas %v", s, o.suiteAreas))
			continue
		}
		fmt.Printf("== %s: suite %s, %d tests of the areas %v\n", o.kind, s, len(tests), o.suiteAreas)
		err := command(ctx, env, filepath.Join(dir, "run-suite"), "--bin", o.binary, "--suite", s, "--list", "open",
			"--run", "^("+strings.Join(tests, "|")+")$", "--jobs", fmt.Sprint(o.jobs))
		if err != nil {
			errs = append(errs, fmt.Errorf("suite %s: %w", s, err))
		}
	}
	return errors.Join(errs...)
}

// choose picks the tests that apply and must pass, by the table's columns suite, test, area, applicable, .., list.
func choose(table, suite string, areas []string) []string {
	var out []string
	seen := map[string]bool{}
	for _, line := range strings.Split(table, "\n") {
		f := strings.Split(line, "\t")
		if len(f) < 8 || f[3] == "no" || f[7] != "open" || seen[f[1]] {
			continue
		}
		if f[0] != suite && !strings.HasPrefix(f[0], suite+"/") {
			continue
		}
		for _, a := range areas {
			if f[2] == a {
				out, seen[f[1]] = append(out, f[1]), true
			}
		}
	}
	return out
}

// command runs a program of the kit in a process group of its own, all of which ends with ctx. A program that ran and
// said no is errFailed.
func command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdout, os.Stderr, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return errFailed
	}
	return err
}
