package order

import (
	"fmt"

	"github.com/braidkv/braid/internal/ids"
)

// apply applies what was delivered: all entries, one batch; then items to the replicas, the new position to everybody, outcomes to
// their owners, in this order. Whoever learns of an outcome finds it in the View, and whoever sees a position published
// finds the items up to it at the replicas' frontiers.
func (m *Machine) apply() {
	if len(m.delivered) == 0 {
		return
	}
	var initialised, routing bool
	for i := range m.delivered {
		f, err := m.applyEntry(&m.delivered[i])
		if err != nil {
			m.fatal(err)
			return
		}
		initialised, routing = initialised || f.Initialised, routing || f.RoutingChanged
	}
	clear(m.delivered)
	m.delivered = m.delivered[:0]
	if err := m.commit(); err != nil {
		m.fatal(err)
		return
	}
	if initialised {
		m.checkBootstrap()
	}
	for i, r := range m.created {
		m.host.CreateRange(r.descriptor)
		m.created[i] = nil
	}
	m.created = m.created[:0]
	for i, it := range m.items {
		m.host.Dispatch(ids.RangeID(it.GetRange()), it)
		m.items[i] = nil
	}
	m.items = m.items[:0]
	r := m.View().Routing
	if routing {
		r = nil
	}
	m.publish(r)
	m.proposals.settle(m)
}

// applyEntry applies one entry to the state in memory and gathers what it leads to.
func (m *Machine) applyEntry(x *Entry) (*Effects, error) {
	e, err := DecodeEntry(x.Data)
	if err != nil {
		return nil, fmt.Errorf("order log at position %d: %w", x.Position, err)
	}
	s := m.state
	f := s.Apply(Point{Position: x.Position, Term: x.Term}, e)
	if x.Conf != nil {
		s.setConf(x.Conf)
	}
	if f.RoutingChanged {
		m.created = append(m.created, m.reporter.sync(s)...) // so that items which come later in the batch are theirs
	}
	m.steps = append(m.steps, step{at: x.Position, revision: s.revision})
	for _, it := range f.Items {
		id := ids.RangeID(it.GetRange())
		seq := s.ordered(id)
		if t := m.reporter.find(id); t != nil {
			m.reporter.ordered(id, seq)
			m.items = append(m.items, it)
		}
		if m.role.IsLeader {
			m.cutter.ordered(id, seq, s)
		}
	}
	m.outcomes = append(m.outcomes, f.Results...)
	for _, d := range f.Decisions {
		m.decided = append(m.decided, placedDecision{d, x.Position})
	}
	if m.role.IsLeader {
		m.proposer.applied(x.Term == m.role.Term, len(x.Data) > 0, f.Results)
	}
	return f, nil
}

// checkBootstrap compares the cluster's beginning with this node's flags: whoever wrote Init had its own.
func (m *Machine) checkBootstrap() {
	b := m.cfg.Bootstrap
	if b == nil {
		return
	}
	v := m.state.view(nil)
	same := b.GetClusterId() == v.ClusterID && len(b.GetRanges()) == len(v.Routing.Ranges())
	if same {
		for i, d := range NewRouting(b.GetRanges()).Ranges() {
			x := v.Routing.Ranges()[i]
			same = same && d.GetId() == x.GetId() && string(d.GetStart()) == string(x.GetStart())
		}
	}
	if !same {
		m.cfg.Logger.Warn("the cluster was initialised by a node with other flags",
			"cluster", v.ClusterID, "own-cluster", b.GetClusterId(), "ranges", len(v.Routing.Ranges()), "own-ranges", len(b.GetRanges()))
	}
}
