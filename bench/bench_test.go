package main

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSplitKeys: the split keys cut the objects into parts of nearly equal size.
func TestSplitKeys(t *testing.T) {
	for _, ranges := range []int{1, 3, 4, 16} {
		keys := splitKeys(ranges)
		if len(keys) != ranges-1 || !slices.IsSorted(keys) {
			t.Fatalf("%d ranges: %v", ranges, keys)
		}
		sizes := make([]int, ranges)
		for i := range 1600 {
			n, found := slices.BinarySearch(keys, object(i))
			if found {
				n++
			}
			sizes[n]++
		}
		if slices.Max(sizes)-slices.Min(sizes) > 100 {
			t.Errorf("%d ranges: %v objects", ranges, sizes)
		}
		if !strings.HasPrefix(object(7), prefix) || created(1) >= prefixEnd {
			t.Error("a key is outside of the list")
		}
	}
}

// TestOverlap: operations at the edges of a window count in part.
func TestOverlap(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(100, 0).Add(time.Duration(s * float64(time.Second))) }
	for _, tc := range []struct{ t0, t1, want float64 }{
		{1, 2, 1}, {-1, 1, 0.5}, {9, 13, 0.25}, {-5, 15, 0.5}, {-2, -1, 0}, {11, 12, 0}, {3, 3, 0},
	} {
		if got := overlap(at(tc.t0), at(tc.t1), at(0), at(10)); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("[%v, %v]: %v, want %v", tc.t0, tc.t1, got, tc.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	if quantile(nil, 0.5) != 0 || quantile([]float64{1, 2, 3, 4}, 0.5) != 3 || quantile([]float64{1, 2}, 1) != 2 {
		t.Fatal("wrong quantiles")
	}
}

// TestReport adds up two rounds of two sides and prints and draws them.
func TestReport(t *testing.T) {
	m := func(side string, round int, ops, cpu float64) measurement {
		return measurement{Side: side, Kind: "etcd", Nodes: 3, Ranges: 1, Workload: "put", Clients: 64, Round: round,
			Ops: ops, Seconds: 2, ServerCPU: cpu, latencies: []float64{0.001, 0.002}}
	}
	rows := summarise([]measurement{m("a", 0, 100, 1), m("b", 0, 150, 1), m("a", 1, 100, 1), m("b", 1, 250, 1)})
	if len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
	a, b := rows[0].side["a"], rows[0].side["b"]
	if a.rate() != 50 || b.rate() != 100 || b.cpuPerOp() != 0.005 || !slices.Equal(rows[0].rounds, []float64{1.5, 2.5}) {
		t.Fatalf("a %v, b %v, rounds %v", a.rate(), b.rate(), rows[0].rounds)
	}
	var out bytes.Buffer
	writeTable(&out, &compare{}, rows)
	if !strings.Contains(out.String(), "2.00  1.50-2.50") {
		t.Fatalf("no ratio in\n%s", out.String())
	}
	file := filepath.Join(t.TempDir(), "p.png")
	if err := plotSummary(file, rows); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		t.Fatal("no plot")
	}
}

// TestFlags: bad flags are refused with a message that names them.
func TestFlags(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--workloads=fly", "fly"}, {"--clients=0", "--clients"}, {"--nodes=x", "--nodes"}, {"--ranges=99", "--ranges"},
		{"--a=mysql", "mysql"}, {"--target=moon", "moon"}, {"--seconds=0", "--seconds"}, {"--etcd=/nonexistent", "etcd"},
	} {
		err := run(context.Background(), []string{"compare", tc.args})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.args, err)
		}
	}
	if err := run(context.Background(), []string{"fly"}); err == nil {
		t.Error("an unknown mode was accepted")
	}
}
