package order

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Config is what a Machine is made of. Zero limits and timings stand for the defaults.
type Config struct {
	Node ids.NodeID
	// Incarnation is unique among all starts of this node's process: IDs of proposals and reads contain it.
	Incarnation uint64
	// Data is the node's data engine (write-ahead log off).
	Data *pebble.DB
	// Bootstrap is what the first leader writes into an empty order log: from its flags. Nil: never.
	Bootstrap *braidpb.Init

	Limits   Limits
	Timing   Timing
	Mutation Mutation
	Logger   *slog.Logger
}

// Limits bound what the machine holds and does at once.
type Limits struct {
	// MaxInflight is the number of entries that the leader has proposed and not yet applied, at which it waits so that cuts
	// grow (default 2).
	MaxInflight int
	// MaxCommands is the number of commands beside the cut in one entry (default 512); others wait for the next.
	MaxCommands int
	// MaxProposals bounds the proposals that wait at this node for their outcome (beyond: ErrFull) and, on the leader,
	// those of all nodes that wait to be appended (beyond: dropped, and sent again by their owners) (default 16384).
	MaxProposals int
	// MaxReadLetters is the number of requests to the leader for a position that may be unanswered; reads that
	// come meanwhile share the next one (default 4).
	MaxReadLetters int
	// KeepEntries is how much of the order log stays below what is flushed, for followers that lag (default 10000).
	KeepEntries uint64
	// History is the number of positions that RevisionAt remembers (default 4096).
	History int
}

// Timing is in ticks of the order group.
type Timing struct {
	// ReportTicks after a report that no cut covers yet it is sent again (default 2).
	ReportTicks int
	// ReadTicks after a request for a position it is sent again (default 2), ReadTimeoutTicks after it came a read
	// fails (default 70).
	ReadTicks        int
	ReadTimeoutTicks int
	// ProposalTicks after a proposal was sent to the leader it is sent again (default 5), ProposalTimeoutTicks after
	// it came it fails unless it says otherwise (default 70).
	ProposalTicks        int
	ProposalTimeoutTicks int
	// MarkTicks is how long flush marks wait for a cut or report to travel with, and after which they are
	// sent again (default 10).
	MarkTicks int
}

func (c *Config) setDefaults() {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Limits.MaxInflight, 2)
	def(&c.Limits.MaxCommands, 512)
	def(&c.Limits.MaxProposals, 16384)
	def(&c.Limits.MaxReadLetters, 4)
	def(&c.Limits.History, 4096)
	if c.Limits.KeepEntries == 0 {
		c.Limits.KeepEntries = 10000
	}
	def(&c.Timing.ReportTicks, 2)
	def(&c.Timing.ReadTicks, 2)
	def(&c.Timing.ReadTimeoutTicks, 70)
	def(&c.Timing.ProposalTicks, 5)
	def(&c.Timing.ProposalTimeoutTicks, 70)
	def(&c.Timing.MarkTicks, 10)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports every fault of the configuration.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(c.Node != 0, "the node has no ID")
	need(c.Data != nil, "there is no data engine")
	if c.Bootstrap != nil {
		errs = append(errs, validateInit(c.Bootstrap))
	}
	l, t := c.Limits, c.Timing
	need(min(l.MaxInflight, l.MaxCommands, l.MaxProposals, l.MaxReadLetters, l.History) >= 0, "a limit is negative")
	need(min(t.ReportTicks, t.ReadTicks, t.ReadTimeoutTicks, t.ProposalTicks, t.ProposalTimeoutTicks, t.MarkTicks) >= 0, "a timing is negative")
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("order: configuration: %w", err)
	}
	return nil
}

// validateInit sees to it that the ranges cover the key space, once, and have replicas.
func validateInit(in *braidpb.Init) error {
	var errs []error
	rs := NewRouting(in.GetRanges()).Ranges()
	if len(rs) == 0 {
		return errors.New("the first ranges are missing")
	}
	seen := map[uint64]bool{}
	for i, d := range rs {
		end := []byte{} // of the range before: the first one starts at the beginning
		if i > 0 {
			end = rs[i-1].GetEnd()
		}
		if !bytes.Equal(d.GetStart(), end) || i > 0 && len(end) == 0 {
			errs = append(errs, fmt.Errorf("range %d starts at %q, the one before it ends at %q", d.GetId(), d.GetStart(), end))
		}
		if d.GetId() == 0 || seen[d.GetId()] {
			errs = append(errs, fmt.Errorf("range ID %d is zero or not unique", d.GetId()))
		}
		seen[d.GetId()] = true
		if len(d.GetReplicas()) == 0 {
			errs = append(errs, fmt.Errorf("range %d has no replicas", d.GetId()))
		}
	}
	if last := rs[len(rs)-1]; len(last.GetEnd()) > 0 {
		errs = append(errs, fmt.Errorf("the last range ends at %q", last.GetEnd()))
	}
	return errors.Join(errs...)
}
