// Command braid is the server, which takes etcd's flags and variables, and its operator's tools.
//
//	braid [flags]            serve
//	braid ranges [flags]     print the ranges of a cluster
//	braid --version
//	braid --help
//
// The package only turns a command line into node.Config and clientapi.Config, and signals into the order to stop.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/braidkv/braid/internal/logjson"
	"github.com/braidkv/braid/node"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	stop := make(chan os.Signal, 1)
	go func() { // lives as long as the process
		stop <- <-signals
		<-signals
		os.Exit(1) // whoever asks twice does not want to wait
	}()
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr, &process{start: startNode, signals: stop}))
}

func startNode(ctx context.Context, cfg node.Config) (server, error) {
	n, err := node.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// Exit statuses, as etcd's.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// gcBallastBytes is memory that is never touched, and so takes no room, but counts for Go's pace of garbage collection. A node's own heap is small
// (engines keep theirs outside of it), so that it would be collected every few megabytes: a tenth of the CPU under load. With it, up to
// twice this much garbage may lie about.
const gcBallastBytes = 64 << 20

const usage = `Usage:

  braid [flags]
    Start a braid server. Flags may be given as --flag value or --flag=value, or by environment
    variables: --data-dir as ETCD_DATA_DIR. The command line wins.

  braid ranges [--endpoints host:port,...] [--keys]
    Print the ranges of a cluster.

  braid --version
    Print the version.

Flags:
`

// run is the process: it returns the exit status.
func run(args, environ []string, stdout, stderr io.Writer, p *process) int {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if args[0] != "ranges" {
			fmt.Fprintf(stderr, "braid: unknown command %q; see braid --help\n", args[0])
			return exitUsage
		}
		return status(runRanges(args[1:], stdout, stderr, nil), stderr)
	}
	o, err := parse(args, environ)
	if errors.Is(err, flag.ErrHelp) {
		printUsage(stdout)
		return exitOK
	}
	if err == nil && o.version {
		printVersion(stdout)
		return exitOK
	}
	if usageErr := new(usageError); errors.As(err, usageErr) {
		return status(err, stderr)
	}
	level := slog.LevelInfo
	if err == nil {
		level = o.logLevel
	}
	if p.log == nil {
		p.log = slog.New(logjson.New(stderr, level))
	}
	p.log.Info("Running: ", "args", append([]string{"braid"}, args...))
	if err != nil {
		p.log.Warn("failed to verify flags", "error", err)
		return exitFailed
	}
	for _, n := range o.notices {
		p.log.Log(context.Background(), n.level, n.msg, n.args...)
	}
	ballast := make([]byte, gcBallastBytes)
	err = p.run(o)
	runtime.KeepAlive(ballast)
	if err != nil {
		p.log.Log(context.Background(), logjson.LevelFatal, "the server has failed", "error", err)
		return exitFailed
	}
	return exitOK
}

func status(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "braid: %v\n", err)
	if usageErr := new(usageError); errors.As(err, usageErr) {
		return exitUsage
	}
	return exitFailed
}

// printUsage lists the flags that have an effect, then the names of the others.
func printUsage(w io.Writer) {
	fmt.Fprint(w, usage)
	line, others := " ", ""
	newFlagSet(&raw{}, func(string, string) {}).VisitAll(func(f *flag.Flag) {
		if _, ok := f.Value.(*acceptedFlag); ok {
			if len(line)+len(f.Name) > 110 {
				line, others = " ", others+line+"\n"
			}
			line += " --" + f.Name
			return
		}
		value, text := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "%s\n        %s", strings.TrimRight("  --"+f.Name+" "+value, " "), text)
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(w, " Default: %s.", f.DefValue)
		}
		fmt.Fprintln(w)
	})
	fmt.Fprintf(w, "\nAccepted for compatibility with etcd, without effect in this version:\n%s%s\n", others, line)
}
