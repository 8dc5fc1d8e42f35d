package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/braidkv/braid/test/servers"
)

// measurement is one workload with one number of clients on one cluster for one window of time.
type measurement struct {
	Side     string `json:"side"` // "a" or "b"
	Kind     string `json:"kind"` // "etcd" or "braid"
	Nodes    int    `json:"nodes"`
	Ranges   int    `json:"ranges"`
	Workload string `json:"workload"`
	Clients  int    `json:"clients"`
	Round    int    `json:"round"`

	// Ops counts an operation that only partly lies in the window by that part.
	Ops     float64 `json:"ops"`
	Seconds float64 `json:"seconds"`
	Errors  int64   `json:"errors"`
	Error   string  `json:"error,omitempty"` // the first

	P50, P99, Max  float64 // seconds, of the operations that touch the window
	ServerCPU      float64 `json:"server_cpu_seconds"`
	ClientCPU      float64 `json:"client_cpu_seconds"`
	PeakRSS        int64   `json:"peak_rss_bytes"` // of all nodes together, within the window
	UserBytes      int64   `json:"user_bytes"`     // keys and values written, once
	WrittenBytes   int64   `json:"written_bytes"`  // what all nodes gave to the disk
	DiskBytes      int64   `json:"disk_bytes"`     // space of all nodes at the end of the window
	TotalUserBytes int64   `json:"total_user_bytes"`
	Syncs          int64   `json:"syncs"` // -1: not known

	latencies []float64 // sorted
}

// window is what one client saw.
type clientWindow struct {
	ops       float64
	bytes     int64
	latencies []float64
	errors    int64
	err       error
}

// measure runs a workload against a running cluster: warm-up, window, and the operations' ends.
func (c *compare) measure(ctx context.Context, cl *servers.Cluster, conns *connections, l *loadState, w workload, clients int) (measurement, error) {
	m := measurement{Nodes: len(cl.Nodes), Workload: w.name, Clients: clients, Seconds: c.window.Seconds(), Syncs: -1}
	if w.before != nil {
		if err := w.before(ctx, l, conns); err != nil {
			return m, err
		}
	}
	start := time.Now().Add(c.warmUp)
	end := start.Add(c.window)
	ctx, cancel := context.WithDeadline(ctx, end.Add(c.operationLimit))
	defer cancel()
	results := make([]clientWindow, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { results[i] = runClient(ctx, conns, w.prepare(l, i, clients), i, start, end) })
	}
	before, err := c.snapshot(ctx, cl, start)
	if err != nil {
		cancel()
		wg.Wait()
		return m, err
	}
	cl.ResetPeaks()
	after, err := c.snapshot(ctx, cl, end)
	wg.Wait()
	if err != nil {
		return m, err
	}
	m.ServerCPU = (after.usage.CPU - before.usage.CPU).Seconds()
	m.ClientCPU = (after.own - before.own).Seconds()
	m.PeakRSS = after.usage.PeakRSS
	m.WrittenBytes = after.usage.Written - before.usage.Written
	if after.syncs >= 0 {
		m.Syncs = after.syncs - before.syncs
	}
	m.add(results)
	if m.DiskBytes, err = cl.DiskBytes(); err != nil {
		return m, err
	}
	return m, ctx.Err()
}

func (m *measurement) add(results []clientWindow) {
	for _, r := range results {
		m.Ops += r.ops
		m.Errors += r.errors
		m.UserBytes += r.bytes
		m.latencies = append(m.latencies, r.latencies...)
		if r.err != nil && m.Error == "" {
			m.Error = r.err.Error()
		}
	}
	slices.Sort(m.latencies)
	m.P50, m.P99, m.Max = quantile(m.latencies, 0.5), quantile(m.latencies, 0.99), quantile(m.latencies, 1)
}

// runClient repeats an operation until the window's end.
func runClient(ctx context.Context, conns *connections, op operation, id int, start, end time.Time) clientWindow {
	var w clientWindow
	r := rand.New(rand.NewPCG(uint64(id), 5))
	for n := 0; ; n++ {
		t0 := time.Now()
		if !t0.Before(end) || ctx.Err() != nil {
			return w
		}
		bytes, err := op(ctx, conns.nth(id+n), r, n)
		t1 := time.Now()
		if err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return w
			}
			w.errors++
			w.err = err
			pause(ctx, 10*time.Millisecond)
			continue
		}
		part := overlap(t0, t1, start, end)
		if part <= 0 {
			continue
		}
		w.ops += part
		w.bytes += int64(float64(bytes) * part)
		w.latencies = append(w.latencies, t1.Sub(t0).Seconds())
	}
}

// overlap is the part of [t0, t1] that lies in [start, end].
func overlap(t0, t1, start, end time.Time) float64 {
	whole := t1.Sub(t0)
	if whole <= 0 {
		return 0
	}
	if t0.Before(start) {
		t0 = start
	}
	if t1.After(end) {
		t1 = end
	}
	return max(0, float64(t1.Sub(t0))/float64(whole))
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// figures are what the window's two ends differ by.
type figures struct {
	usage servers.Usage
	own   time.Duration
	syncs int64
}

// snapshot waits until a moment and reads the figures.
func (c *compare) snapshot(ctx context.Context, cl *servers.Cluster, at time.Time) (figures, error) {
	pause(ctx, time.Until(at))
	var f figures
	var err error
	if f.usage, err = cl.Usage(); err != nil {
		return f, err
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return f, fmt.Errorf("own usage: %w", err)
	}
	f.own = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	f.syncs, err = syncs(ctx, c.diskStats)
	return f, err
}

// syncs asks the slow disks how often they were synced; -1 without a URL.
func syncs(ctx context.Context, urls string) (int64, error) {
	if urls == "" {
		return -1, nil
	}
	var sum int64
	for _, url := range strings.Split(urls, ",") {
		n, err := diskSyncs(ctx, url)
		if err != nil {
			return -1, fmt.Errorf("--disk-stats: %w", err)
		}
		sum += n
	}
	return sum, nil
}

func diskSyncs(ctx context.Context, url string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var body struct{ Syncs int64 }
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	return body.Syncs, nil
}

// quantile of sorted values; 0 if there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
