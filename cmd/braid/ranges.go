package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const rangesUsage = `Usage: braid ranges [--endpoints host:port,...] [--keys] [--timeout 5s]

Prints a table of the cluster's ranges for each endpoint, as that member sees them:
SIZE, KEYS, APPLIED and FRONTIER are those of its own replica.
`

// runRanges is the subcommand "ranges". dial replaces the network in tests.
func runRanges(args []string, stdout, stderr io.Writer, dial func(context.Context, string) (net.Conn, error)) error {
	fs := flag.NewFlagSet("braid ranges", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	endpoints := fs.String("endpoints", "127.0.0.1:2379", "Comma-separated `endpoints` to ask.")
	keys := fs.Bool("keys", false, "Count the live keys of each range.")
	timeout := fs.Duration("timeout", 5*time.Second, "Longest `time` to wait for one endpoint.")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, rangesUsage)
		return nil
	} else if err != nil {
		return usageError{err}
	}
	if fs.NArg() > 0 {
		return usageError{fmt.Errorf("%q is not a valid flag", fs.Arg(0))}
	}
	var errs []error
	for i, e := range strings.Split(*endpoints, ",") {
		ctx, cancel := context.WithTimeout(context.Background(), *timeout)
		resp, err := askRanges(ctx, e, *keys, dial)
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("asking %s for its ranges: %w", e, err))
			continue
		}
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		fmt.Fprintf(stdout, "# %s: ", e)
		if err := printRanges(stdout, resp); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

func askRanges(ctx context.Context, endpoint string, keys bool, dial func(context.Context, string) (net.Conn, error)) (*braidpb.RangesResponse, error) {
	target := strings.TrimPrefix(endpoint, "http://")
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if dial != nil {
		target = "passthrough:///" + target
		opts = append(opts, grpc.WithContextDialer(dial))
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return braidpb.NewOperatorClient(conn).Ranges(ctx, &braidpb.RangesRequest{CountKeys: keys}, grpc.MaxCallRecvMsgSize(1<<30))
}

func printRanges(w io.Writer, resp *braidpb.RangesResponse) error {
	fmt.Fprintf(w, "cluster %x, member %x, position %d, revision %d, order leader %s\n",
		resp.ClusterId, resp.MemberId, resp.Position, resp.Revision, nodeName(resp.OrderLeader))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tSTART\tEND\tGEN\tLEADER\tREPLICAS\tSIZE\tKEYS\tSEQ\tAPPLIED\tFRONTIER")
	for _, r := range resp.Ranges {
		var replicas []string
		for _, n := range r.Replicas {
			replicas = append(replicas, nodeName(n))
		}
		size, keys, applied, frontier := "-", "-", "-", "-"
		if l := r.Local; l != nil {
			size, applied, frontier = bytesText(l.SizeBytes), strconv.FormatUint(l.AppliedSeq, 10), strconv.FormatUint(l.Frontier, 10)
			if l.KeysCounted {
				keys = strconv.FormatInt(l.Keys, 10)
			}
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", r.Id, bound(r.Start, "(first)"), bound(r.End, "(last)"),
			r.Generation, nodeName(r.Leader), strings.Join(replicas, ","), size, keys, r.Seq, applied, frontier)
	}
	return t.Flush()
}

func nodeName(id uint64) string {
	if id == 0 {
		return "-"
	}
	return ids.NodeID(id).String()
}

// bound prints a range's bound: a key in quotes, or what the absence of one means.
func bound(key []byte, none string) string {
	if len(key) == 0 {
		return none
	}
	return strconv.Quote(string(key))
}

func bytesText(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/1024, 0
	for f >= 1024 && unit < len(units)-1 {
		f /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", f, units[unit])
}
