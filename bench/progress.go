package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows how far a run is: a bar on a terminal, else a line per finished step, on standard error.
type progress struct {
	bar   *progressbar.ProgressBar // nil without a terminal
	total int
	n     int
	what  string
}

func onTerminal() bool {
	info, err := os.Stderr.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// newProgress is for total steps that together take at least the given time.
func newProgress(total int, least time.Duration) *progress {
	p := &progress{total: total}
	if onTerminal() {
		p.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth())
	} else {
		fmt.Fprintf(os.Stderr, "%d measurements, %v without starts and stops\n", total, least.Round(time.Second))
	}
	return p
}

func (p *progress) describe(what string) {
	p.what = what
	if p.bar != nil {
		p.bar.Describe(what)
	}
}

func (p *progress) done(m measurement) {
	p.n++
	if p.bar != nil {
		_ = p.bar.Add(1) // a bar that cannot be drawn is no reason to stop
		return
	}
	fmt.Fprintf(os.Stderr, "%3d/%d %s: %.0f/s, p99 %s, %s of server CPU per operation%s\n",
		p.n, p.total, p.what, m.Ops/m.Seconds, short(m.P99), short(m.ServerCPU/max(m.Ops, 1e-9)), m.errorNote())
}

func (p *progress) close() {
	if p.bar != nil {
		_ = p.bar.Finish() // only drawing
	}
}

func (m *measurement) errorNote() string {
	if m.Errors == 0 {
		return ""
	}
	return fmt.Sprintf(", %d errors (%s)", m.Errors, m.Error)
}

// counter shows a number that grows up to a total.
type counter struct {
	bar   *progressbar.ProgressBar
	total int64
	what  string
}

func newCounter(total int64, what string) *counter {
	c := &counter{total: total, what: what}
	if onTerminal() {
		c.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish())
	}
	return c
}

// set is called once a second.
func (c *counter) set(n int64) {
	if c.bar != nil {
		_ = c.bar.Set64(n) // only drawing
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %d of %d\n", c.what, n, c.total)
}

func (c *counter) close() {
	if c.bar != nil {
		_ = c.bar.Finish() // only drawing
	}
}
