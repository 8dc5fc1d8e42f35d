package node

import (
	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/watchfanout"
)

// watches is a node's fan-out with what wakes it.
type watches struct {
	*watchfanout.Hub
	applied chan struct{} // for pump: something was applied, or somebody asks
	history chan struct{} // for catchUp
}

func newWatches(c *Core) *watches {
	w := &watches{applied: make(chan struct{}, 1), history: make(chan struct{}, 1)}
	w.Hub = watchfanout.New(watchSource{c}, func() {
		signal(w.applied)
		signal(w.history)
	})
	return w
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// moved says that a position was published or a replica's frontier has advanced.
func (w *watches) moved() {
	if w.Active() {
		signal(w.applied)
	}
}

// run serves watches until stop is closed.
func (w *watches) run(stop <-chan struct{}, wake <-chan struct{}, work func() (bool, error)) error {
	for {
		for more := true; more; {
			select {
			case <-stop:
				return nil
			default:
			}
			var err error
			if more, err = work(); err != nil {
				return err
			}
		}
		select {
		case <-stop:
			return nil
		case <-wake:
		}
	}
}

// Watches is the node's fan-out.
func (c *Core) Watches() *watchfanout.Hub { return c.watches.Hub }

// PumpWatches hands out what is applied and reads a part of the history that watches lack. It reports whether there is more.
func (c *Core) PumpWatches() bool {
	more, err := c.watches.Pump()
	if err != nil {
		c.fatal(err)
		return false
	}
	again, err := c.watches.CatchUp()
	if err != nil {
		c.fatal(err)
		return false
	}
	return more || again
}

// serveWatches runs until stop is closed: one goroutine hands out what is applied, one reads history.
func (n *Node) serveWatches() {
	w := n.core.watches
	fatal := func(err error) {
		if err != nil && !n.stopping.Load() {
			n.core.fatal(err)
		}
	}
	n.wg.Go(func() { fatal(w.run(n.done, w.applied, w.Pump)) })
	n.wg.Go(func() { fatal(w.run(n.done, w.history, w.CatchUp)) })
}

// watchSource is the node as watches see it. Every range has a replica here.
type watchSource struct{ c *Core }

func (s watchSource) Now() (rev, compacted ids.Revision) {
	v := s.c.order.View()
	return v.Revision, v.CompactRevision
}

func (s watchSource) Through(start, end []byte) ids.Revision {
	v := s.c.order.View()
	if !v.Initialised {
		return 0
	}
	if s.c.cfg.Mutation.NoFrontier {
		return v.Revision
	}
	p := v.Position
	for _, d := range v.Routing.Overlapping(start, end) {
		l := s.c.local(ids.RangeID(d.GetId()))
		if l == nil {
			return 0
		}
		p = min(p, l.replica.Frontier().Through(v.Position))
	}
	if p == v.Position {
		return v.Revision
	}
	rev, _ := s.c.order.RevisionAt(p)
	return rev
}

func (s watchSource) Removed() (rev ids.Revision) {
	if s.c.cfg.Mutation.NoRemoved {
		return 0
	}
	for _, l := range *s.c.ranges.Load() {
		rev = max(rev, l.replica.Removed())
	}
	return rev
}

func (s watchSource) Reader() mvcc.Reader { return s.c.engines.Data }

// Flush ends a pass; then the watches may go on.
func (m *rangeMachine) Flush() {
	m.Replica.Flush()
	m.c.watches.moved()
}

// Flush ends a pass; then the watches may go on.
func (m *orderMachine) Flush() {
	m.Machine.Flush()
	m.c.watches.moved()
}
