package order

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/internal/invariant"
	braidpb "github.com/braidkv/braid/proto"
)

// Machine is the order group's actor on one node. Its methods are called one at a time, on the worker of group 0, except View,
// WaitApplied and RevisionAt, which anybody may call.
//
// What happens in a pass: Handle and Deliver only take over; Flush then applies what was delivered (one batch), tells
// what is news to the order leader, or proposes if this node leads, and sees to the reads. So whatever arrives in a pass leaves in
// the same pass.
type Machine struct {
	cfg  Config
	host Host
	dead bool // Fatal or Stop was called

	state     *State
	delivered []Entry
	role      Role
	now       uint64 // ticks

	reporter  reporter
	cutter    cutter
	proposer  proposer
	proposals proposals
	reads     reads
	published publisher

	truncated ids.Position

	// Scratch.
	steps    []step
	created  []*rangeState // since the last publication
	items    []*braidpb.Items
	outcomes []Result
	decided  []placedDecision // since the last publication
	mem      segments
	report   braidpb.Report
}

// placedDecision is a decision with the position at which it was taken.
type placedDecision struct {
	Decision
	at ids.Position
}

// StartInfo is what the durable state says about the order group's log (raftgroup.GroupConfig).
type StartInfo struct {
	// Applied is the last entry that the state contains; zero for a new node.
	Applied     ids.Position
	AppliedTerm ids.Term
	// Conf is the newest configuration that the state knows; without members for a new node.
	Conf ConfState
}

// New loads the state from the data engine. The machine does nothing before Start.
func New(cfg Config) (*Machine, StartInfo, error) {
	if err := cfg.Validate(); err != nil {
		return nil, StartInfo{}, err
	}
	cfg.setDefaults()
	s, err := Load(cfg.Data)
	if err != nil {
		return nil, StartInfo{}, err
	}
	s.mutation = cfg.Mutation
	m := &Machine{
		cfg: cfg, state: s,
		reporter: reporter{node: cfg.Node, timing: cfg.Timing, mutation: cfg.Mutation},
		cutter:   cutter{mutation: cfg.Mutation},
	}
	m.proposals.init(&m.cfg)
	m.reads.init(&m.cfg)
	m.published.init(s.view(nil), cfg.Limits.History)
	return m, StartInfo{Applied: s.at.Position, AppliedTerm: s.at.Term, Conf: s.conf.clone()}, nil
}

// Start creates the ranges which have a replica here and dispatches their stored items. Those which a replica has applied come
// again.
func (m *Machine) Start(h Host) {
	m.host = h
	m.createRanges()
}

// createRanges creates ranges that are new here, and dispatches their stored items.
func (m *Machine) createRanges() {
	for _, r := range m.reporter.sync(m.state) {
		m.host.CreateRange(r.descriptor)
		m.refill(r, 0)
	}
}

// refill hands a local replica the items above a position that the state still has, and says if some are gone.
func (m *Machine) refill(r *rangeState, above ids.Position) {
	if r.newestDropped > above {
		m.host.Refill(r.id, r.newestDropped)
	}
	for _, it := range m.state.itemsOf(r, above) {
		m.host.Dispatch(r.id, it)
	}
}

// View is the state as last published. Never nil.
func (m *Machine) View() *View { return m.published.view.Load() }

// WaitApplied calls fn with the first position at or past p that is published, and its revision: at once, or on the worker.
// fn must not block. There is no way to call it off: who stops waiting ignores the call.
func (m *Machine) WaitApplied(p ids.Position, fn func(ids.Position, ids.Revision)) {
	m.published.wait(p, fn)
}

// RevisionAt is the revision after a published position; not known for positions long past (Limits.History).
func (m *Machine) RevisionAt(p ids.Position) (ids.Revision, bool) { return m.published.revisionAt(p) }

// Handle takes events. The slice is the caller's again after the call.
func (m *Machine) Handle(events []any) {
	for _, e := range events {
		if m.dead {
			m.refuse(e)
			continue
		}
		switch e := e.(type) {
		case Progress:
			m.reporter.progress(&e)
		case ProgressReset:
			if t := m.reporter.find(e.Range); t != nil {
				m.reporter.reset(t)
			}
		case Read:
			m.reads.add(e, m.now)
		case Propose:
			m.proposals.add(e, m)
		case Letter:
			m.letter(&e)
		case Flushed:
			m.flushed(&e)
		default:
			invariant.Fail("event", "order machine got a %T", e)
		}
	}
}

// refuse answers what comes after the end.
func (m *Machine) refuse(e any) {
	switch e := e.(type) {
	case Read:
		e.Done(0, ErrStopped)
	case Propose:
		if e.Done != nil {
			e.Done(Result{Err: ErrStopped})
		}
	}
}

func (m *Machine) letter(l *Letter) {
	var err error
	switch l.Kind {
	case LetterReport:
		r := new(braidpb.Report)
		if err = proto.Unmarshal(l.Body, r); err == nil && m.role.IsLeader {
			for _, g := range r.GetSegments() {
				m.cutter.report(g, m.state)
			}
			for _, f := range r.GetFlushed() {
				m.cutter.mark(ids.RangeID(f.GetRange()), flushMark{node: ids.NodeID(f.GetNode()), at: ids.Position(f.GetPosition())}, m.state)
			}
		}
	case LetterReadIndex:
		r := new(braidpb.ReadIndexRequest)
		if err = proto.Unmarshal(l.Body, r); err == nil && m.role.IsLeader {
			m.reads.remote(l.From, r.GetId())
		}
	case LetterReadPosition:
		r := new(braidpb.ReadIndexResponse)
		if err = proto.Unmarshal(l.Body, r); err == nil {
			m.reads.answered(r.GetId(), ids.Position(r.GetPosition()))
		}
	case LetterProposal:
		p := new(braidpb.OrderProposal)
		if err = proto.Unmarshal(l.Body, p); err == nil && m.role.IsLeader {
			for _, c := range p.GetCommands() {
				m.proposer.enqueue(c, m.cfg.Limits.MaxProposals)
			}
		}
	default:
		err = fmt.Errorf("unknown kind %d", l.Kind)
	}
	if err != nil {
		m.cfg.Logger.Warn("order letter dropped", "from", l.From.String(), "err", err)
	}
}

// flushed takes what is durable: the replicas' marks are reported, the log is shortened.
func (m *Machine) flushed(f *Flushed) {
	for _, r := range f.Ranges {
		m.reporter.flushed(r, m.now)
	}
	keep := ids.Position(m.cfg.Limits.KeepEntries)
	if through := min(f.Order, m.state.at.Position); through > keep && through-keep > m.truncated {
		m.truncated = through - keep
		m.host.Truncate(m.truncated)
	}
}

// Deliver takes committed entries: ascending, without gaps, from StartInfo.Applied on. The slice is the caller's again
// after the call, the data is not.
func (m *Machine) Deliver(ents []Entry) {
	if m.dead {
		return
	}
	next := m.state.at.Position + 1
	if n := len(m.delivered); n > 0 {
		next = m.delivered[n-1].Position + 1
	}
	for i := range ents {
		if ents[i].Position != next {
			invariant.Fail("O2", "order entry %d delivered, %d is next", ents[i].Position, next)
		}
		next++
	}
	m.delivered = append(m.delivered, ents...)
}

// Role takes a change of the node's part in the group, before entries of the new term are delivered.
func (m *Machine) Role(r Role) {
	if m.dead || r == m.role {
		return
	}
	m.role = r
	m.cutter.reset()
	m.proposer.reset()
	m.reporter.leaderChanged(m.now)
	m.proposals.leaderChanged()
	m.reads.leaderChanged()
	v := *m.View()
	v.Term, v.Leader = r.Term, r.Leader
	m.published.publish(&v, nil)
}

// ReadState takes the answer to Host.ReadIndex.
func (m *Machine) ReadState(ctx uint64, index ids.Position) {
	if !m.dead {
		m.reads.readState(ctx, index, m.host)
	}
}

// Tick counts time.
func (m *Machine) Tick() {
	if m.dead {
		return
	}
	m.now++
	m.reporter.tick(m.now)
	m.proposer.tick(&m.cutter)
	m.proposals.tick(m)
	m.reads.tick(m.now, m.role, m.host)
}

// Flush ends a pass.
func (m *Machine) Flush() {
	if m.dead {
		return
	}
	m.apply()
	if m.dead {
		return
	}
	m.sendReports()
	m.proposals.send(m)
	if m.role.IsLeader {
		m.proposer.propose(m)
	}
	m.reads.send(m.now, m.role, m.host)
}

// sendReports tells the order leader what is due; if that is this node, it is told at once.
func (m *Machine) sendReports() {
	switch {
	case m.role.IsLeader:
		m.reporter.collect(m.now, m.state,
			func(id ids.RangeID, base ids.Seq, list []run) { m.cutter.local(id, base, list, m.state) },
			func(id ids.RangeID, at ids.Position) {
				m.cutter.mark(id, flushMark{node: m.cfg.Node, at: at}, m.state)
			})
	case m.role.Leader != 0:
		r := &m.report
		m.mem.reset()
		r.Node, r.Flushed = uint64(m.cfg.Node), r.Flushed[:0]
		m.reporter.collect(m.now, m.state,
			func(id ids.RangeID, base ids.Seq, list []run) {
				m.mem.add(id, base, list[len(list)-1].through, list)
			},
			func(id ids.RangeID, at ids.Position) {
				r.Flushed = append(r.Flushed, &braidpb.Flushed{Range: uint64(id), Node: uint64(m.cfg.Node), Position: uint64(at)})
			})
		if r.Segments = m.mem.list(); len(r.Segments)+len(r.Flushed) > 0 {
			m.host.Send(m.role.Leader, LetterReport, r)
		}
	}
}

// SnapshotMeta is the state for a follower that the log cannot help. Not within other methods.
func (m *Machine) SnapshotMeta() (SnapMeta, bool) {
	s := m.state
	if m.dead || s.at.Position == 0 || ids.Position(s.conf.Index) > s.at.Position {
		return SnapMeta{}, false // with a later configuration than the position's it would be wrong
	}
	data, err := proto.Marshal(s.Snapshot())
	if err != nil {
		m.fatal(fmt.Errorf("encoding the order state: %w", err))
		return SnapMeta{}, false
	}
	return SnapMeta{Position: s.at.Position, Term: s.at.Term, Conf: s.conf.clone(), Data: data}, true
}

// Restore replaces the state by a snapshot's. done is called with what was installed once that is durable, from any goroutine; or at
// once with nil if the snapshot is of no use.
func (m *Machine) Restore(_ ids.NodeID, meta SnapMeta, done func(*SnapMeta)) {
	if m.dead {
		return
	}
	m.apply()
	if m.dead {
		return
	}
	s, err := decodeSnapshot(&meta)
	if err == nil && meta.Position <= m.state.at.Position {
		err = fmt.Errorf("it is of position %d, the state of %d", meta.Position, m.state.at.Position)
	}
	if err != nil {
		m.cfg.Logger.Error("order snapshot refused", "err", err)
		done(nil)
		return
	}
	before := m.state.at.Position
	m.cutter.reset() // if it leads, then in a term that is over, and will learn of it
	s.mutation = m.cfg.Mutation
	m.state = s
	if err := m.commit(); err != nil {
		m.fatal(err)
		return
	}
	for _, t := range m.reporter.tracks {
		r := s.find(t.id)
		m.reporter.ordered(t.id, r.ordered)
		m.refill(r, before)
	}
	m.createRanges()
	m.steps = append(m.steps[:0], step{at: s.at.Position, revision: s.revision})
	m.publish(nil)
	m.proposals.skipped(m)
	installed := SnapMeta{Position: meta.Position, Term: meta.Term, Conf: meta.Conf}
	m.host.FlushData(func() { done(&installed) })
}

// Stop answers everything that waits. Later calls do nothing.
func (m *Machine) Stop() {
	if m.dead {
		return
	}
	m.dead = true
	m.proposals.fail(ErrStopped)
	m.reads.fail(ErrStopped)
}

// fatal ends the machine because the node cannot go on.
func (m *Machine) fatal(err error) {
	m.Stop()
	m.host.Fatal(err)
}

// commit persists what has changed.
func (m *Machine) commit() (err error) {
	b := m.cfg.Data.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := m.state.Persist(b); err != nil {
		return err
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("committing order state: %w", err)
	}
	return nil
}

func (m *Machine) publish(routing *Routing) {
	v := m.state.view(routing)
	v.Term, v.Leader = m.role.Term, m.role.Leader
	m.published.publish(v, m.steps)
	m.steps = m.steps[:0]
}
