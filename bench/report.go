package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
)

// setting is what a line of the table is about.
type setting struct {
	nodes, ranges, clients int
	workload               string
}

// row is one line: what both sides did in all rounds together.
type row struct {
	setting
	side map[string]*total
	// ratios of throughput, b to a, of the single rounds.
	rounds []float64
}

// total adds up the rounds of one side.
type total struct {
	kind           string
	ops, seconds   float64
	cpu, clientCPU float64
	latencies      []float64
	errors         int64
	peak           int64
	user, written  int64
	disk, diskUser int64 // of the last round
	syncs          int64
	perRound       map[int]float64
	firstErr       string
}

func (t *total) rate() float64 { return t.ops / t.seconds }
func (t *total) cpuPerOp() float64 {
	if t.ops == 0 {
		return math.NaN()
	}
	return t.cpu / t.ops
}
func (t *total) p(q float64) float64 { return quantile(t.latencies, q) }

// summarise adds up the rounds, in the order in which the settings were first measured.
func summarise(ms []measurement) []*row {
	var rows []*row
	find := func(s setting) *row {
		for _, r := range rows {
			if r.setting == s {
				return r
			}
		}
		r := &row{setting: s, side: map[string]*total{}}
		rows = append(rows, r)
		return r
	}
	for _, m := range ms {
		r := find(setting{m.Nodes, m.Ranges, m.Clients, m.Workload})
		t := r.side[m.Side]
		if t == nil {
			t = &total{kind: m.Kind, perRound: map[int]float64{}}
			r.side[m.Side] = t
		}
		t.ops += m.Ops
		t.seconds += m.Seconds
		t.cpu += m.ServerCPU
		t.clientCPU += m.ClientCPU
		t.errors += m.Errors
		t.peak = max(t.peak, m.PeakRSS)
		t.user += m.UserBytes
		t.written += m.WrittenBytes
		t.disk, t.diskUser = m.DiskBytes, m.TotalUserBytes
		t.syncs += m.Syncs
		t.perRound[m.Round] = m.Ops / m.Seconds
		t.latencies = append(t.latencies, m.latencies...)
		if t.firstErr == "" {
			t.firstErr = m.Error
		}
	}
	for _, r := range rows {
		for _, t := range r.side {
			slices.Sort(t.latencies)
		}
		a, b := r.side["a"], r.side["b"]
		for n := 0; a != nil && b != nil; n++ {
			x, okA := a.perRound[n]
			y, okB := b.perRound[n]
			if !okA || !okB {
				break
			}
			r.rounds = append(r.rounds, y/x)
		}
	}
	return rows
}

// writeTable prints a line per setting and side, and the ratios on the line of the second side.
func writeTable(out io.Writer, c *compare, rows []*row) {
	fmt.Fprintf(out, "%d CPUs shared by the nodes and the load generator; %d objects, values of %d bytes; requests go to: %s; "+
		"%d rounds of %v each, sides in turn\n\n", runtime.NumCPU(), c.objects, c.valueSize, c.target, c.rounds, c.window)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := "nodes\tranges\tworkload\tclients\tside\tops/s\tp50\tp99\tCPU/op\tclient CPU/op\tpeak RSS\twritten/B\tdisk/B\t"
	if c.diskStats != "" {
		head += "syncs/op\t"
	}
	fmt.Fprintln(w, head+"ops b/a\t(rounds)\tp50 b/a\tp99 b/a\tCPU b/a\terrors\t")
	for _, r := range rows {
		for _, name := range []string{"a", "b"} {
			t := r.side[name]
			if t == nil {
				continue
			}
			fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%s:%s\t%.0f\t%s\t%s\t%s\t%s\t%.0fM\t%s\t%s\t", r.nodes, r.ranges, r.workload, r.clients, name, t.kind,
				t.rate(), short(t.p(0.5)), short(t.p(0.99)), short(t.cpuPerOp()), short(t.clientCPU/t.ops), float64(t.peak)/(1<<20),
				per(t.written, t.user), per(t.disk, t.diskUser))
			if c.diskStats != "" {
				fmt.Fprintf(w, "%.3f\t", float64(t.syncs)/t.ops)
			}
			fmt.Fprint(w, ratios(r, name))
			if t.errors > 0 {
				fmt.Fprintf(w, "%d: %s", t.errors, t.firstErr)
			}
			fmt.Fprint(w, "\t\n")
		}
	}
	w.Flush()
	fmt.Fprintln(out, "\nCPU/op: CPU time of all nodes per operation. written/B: bytes that all nodes gave to the disk per byte of key and value written."+
		"\ndisk/B: space of all data folders at the end per such byte so far. peak RSS: sum over the nodes. An operation of list, page or stream is the whole list.")
}

func ratios(r *row, name string) string {
	a, b := r.side["a"], r.side["b"]
	if name != "b" || a == nil {
		return "\t\t\t\t\t"
	}
	spread := ""
	if len(r.rounds) > 1 {
		spread = fmt.Sprintf("%.2f-%.2f", slices.Min(r.rounds), slices.Max(r.rounds))
	}
	return fmt.Sprintf("%.2f\t%s\t%.2f\t%.2f\t%.2f\t", b.rate()/a.rate(), spread, b.p(0.5)/a.p(0.5), b.p(0.99)/a.p(0.99), b.cpuPerOp()/a.cpuPerOp())
}

// per is a ratio of bytes, or a dash if there is nothing to divide by.
func per(bytes, user int64) string {
	if user == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(bytes)/float64(user))
}

// short prints seconds with three digits.
func short(seconds float64) string {
	switch {
	case math.IsNaN(seconds) || math.IsInf(seconds, 0):
		return "-"
	case seconds >= 1:
		return fmt.Sprintf("%.3gs", seconds)
	case seconds >= 1e-3:
		return fmt.Sprintf("%.3gms", seconds*1e3)
	}
	return fmt.Sprintf("%.3gµs", seconds*1e6)
}

// writeJSON writes the single measurements.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}
