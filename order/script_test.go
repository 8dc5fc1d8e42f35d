package order

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// script runs machines by hand. Everything that a machine does to its host is printed.
//
//	start nodes=3 ranges=2 [bootstrap] [node=N: restart one]   machines 1..n; each range has a replica on each
//	role node=N term=T [leader=N]                              no leader: none known
//	progress node=N range=R term=T from=S through=S [gen=G] [auth=A] [leases=seq:lease,...]
//	reset node=N range=R
//	flushed node=N [order=P] [ranges=range:position,...]
//	read node=N id=X
//	propose node=N id=X [timeout=TICKS] and a command as in apply
//	tick node=N [n=1]
//	pass node=N                                                Handle what was enqueued, Flush
//	letters [drop|keep]                                        hand all letters over; nothing is handled before the next pass
//	log term=T and a command: append to the order log by hand; without command: an entry of Raft
//	deliver node=N [through=P] [term]                          entries of the order log: those proposed by the last leader
//	readstate node=N ctx=C index=P                             contexts are counted from 1
//	snapshot from=N to=N                                       Restore
//	view node=N
//	apply                                                      a State alone: one entry, a command a line
//	state [node=N]                                             what the state (alone, or of a node) is
//
// Commands: init R..., cut R:base-through[,gen=G][,auth=A][,lease=S:L] ... [flushed=R:N:P], commit TXN deadline=P on=R,R [gen=G] [auth=A] [lease=L],
// abort TXN deadline=P on=R,R, compact REV, member ID NAME.
type script struct {
	t       *testing.T
	nodes   []*scriptNode
	log     []Entry
	letters []scriptLetter
	state   *State
	out     strings.Builder
	init    *braidpb.Init
}

type scriptLetter struct {
	to int
	Letter
}

type scriptNode struct {
	s        *script
	id       int
	db       *pebble.DB
	m        *Machine
	events   []any
	contexts []uint64
	flush    func()
}

func (s *script) printf(format string, a ...any) { fmt.Fprintf(&s.out, format+"\n", a...) }

func (n *scriptNode) printf(format string, a ...any) {
	n.s.printf("%d: "+format, append([]any{n.id}, a...)...)
}

func (n *scriptNode) Propose(data []byte) error {
	e, err := DecodeEntry(data)
	if err != nil {
		return err
	}
	n.s.log = append(n.s.log, Entry{Position: ids.Position(len(n.s.log) + 1), Term: n.m.role.Term, Data: slices.Clone(data)})
	n.printf("propose #%d %s", len(n.s.log), showEntry(e))
	return nil
}

func (n *scriptNode) ReadIndex(ctx uint64) {
	n.contexts = append(n.contexts, ctx)
	n.printf("readindex ctx=%d", len(n.contexts))
}
func (n *scriptNode) Truncate(p ids.Position) { n.printf("truncate %d", p) }
func (n *scriptNode) Send(to ids.NodeID, kind LetterKind, m proto.Message) {
	b, err := proto.Marshal(m)
	if err != nil {
		n.s.t.Fatal(err)
	}
	n.s.letters = append(n.s.letters, scriptLetter{int(to), Letter{From: ids.NodeID(n.id), Kind: kind, Body: b}})
	n.printf("to %d: %s", to, showLetter(m))
}
func (n *scriptNode) CreateRange(d *braidpb.RangeDescriptor) { n.printf("create range %d", d.Id) }
func (n *scriptNode) Refill(r ids.RangeID, min ids.Position) {
	n.printf("refill range %d to %d", r, min)
}
func (n *scriptNode) Dispatch(r ids.RangeID, it *braidpb.Items) {
	n.printf("dispatch %s (published %d)", showItems(it), n.m.View().Position)
}
func (n *scriptNode) FlushData(done func()) { n.flush = done; n.printf("flush data") }
func (n *scriptNode) Fatal(err error)       { n.printf("fatal: %v", err) }

func showItems(it *braidpb.Items) string {
	var l []string
	for _, x := range it.Items {
		l = append(l, describe(x))
	}
	return fmt.Sprintf("range %d @%d: %s", it.Range, it.Position, strings.Join(l, "; "))
}

func showSegment(g *braidpb.Segment) string {
	s := fmt.Sprintf("%d:%d-%d", g.Range, g.Base, g.Through)
	for _, r := range g.Runs {
		s += fmt.Sprintf("[..%d g%d a%d", r.Through, r.Generation, r.AuthRevision)
		for _, l := range r.Leases {
			s += fmt.Sprintf(" %d:L%d", l.Seq, l.Lease)
		}
		s += "]"
	}
	return s
}

func showCut(segments []*braidpb.Segment, flushed []*braidpb.Flushed) string {
	var l []string
	for _, g := range segments {
		l = append(l, showSegment(g))
	}
	for _, f := range flushed {
		l = append(l, fmt.Sprintf("flushed=%d:%d:%d", f.Range, f.Node, f.Position))
	}
	return strings.Join(l, " ")
}

func showEntry(e *braidpb.OrderEntry) string {
	var l []string
	for _, c := range e.Commands {
		switch k := c.Kind.(type) {
		case *braidpb.OrderCommand_Init:
			l = append(l, fmt.Sprintf("init of %d ranges", len(k.Init.Ranges)))
		case *braidpb.OrderCommand_Cut:
			l = append(l, "cut "+showCut(k.Cut.Segments, k.Cut.Flushed))
		case *braidpb.OrderCommand_Commit:
			l = append(l, fmt.Sprintf("commit %d", k.Commit.Txn.Counter))
		case *braidpb.OrderCommand_Abort:
			l = append(l, fmt.Sprintf("abort %d", k.Abort.Txn.Counter))
		case *braidpb.OrderCommand_Compact:
			l = append(l, fmt.Sprintf("compact %d", k.Compact.Revision))
		case *braidpb.OrderCommand_SetMember:
			l = append(l, fmt.Sprintf("member %d %s", k.SetMember.Member.Id, k.SetMember.Member.Name))
		}
	}
	return strings.Join(l, "; ")
}

func showLetter(m proto.Message) string {
	switch m := m.(type) {
	case *braidpb.Report:
		return "report " + showCut(m.Segments, m.Flushed)
	case *braidpb.ReadIndexRequest:
		return "read"
	case *braidpb.ReadIndexResponse:
		return fmt.Sprintf("read position %d", m.Position)
	case *braidpb.OrderProposal:
		return "proposal " + showEntry(&braidpb.OrderEntry{Commands: m.Commands})
	}
	return "?"
}

func numbers(s, sep string) []uint64 {
	var out []uint64
	for _, f := range strings.Split(s, sep) {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			panic(fmt.Sprintf("%q: %v", s, err))
		}
		out = append(out, n)
	}
	return out
}

// parseCommand reads a command of a script.
func (s *script) parseCommand(line string) *braidpb.OrderCommand {
	f := strings.Fields(line)
	opt := map[string]uint64{"gen": 1, "auth": 1}
	var on []uint64
	for _, x := range f[1:] {
		if k, v, ok := strings.Cut(x, "="); ok && k == "on" {
			on = numbers(v, ",")
		} else if ok && !strings.Contains(x, ":") {
			opt[k] = numbers(v, ",")[0]
		}
	}
	switch f[0] {
	case "init":
		return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Init{Init: s.init}}
	case "cut":
		c := &braidpb.Cut{}
		for _, x := range f[1:] {
			if v, ok := strings.CutPrefix(x, "flushed="); ok {
				n := numbers(v, ":")
				c.Flushed = append(c.Flushed, &braidpb.Flushed{Range: n[0], Node: n[1], Position: n[2]})
			} else {
				c.Segments = append(c.Segments, parseSegment(x))
			}
		}
		return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Cut{Cut: c}}
	case "compact":
		return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Compact{Compact: &braidpb.Compact{Revision: int64(numbers(f[1], ",")[0])}}}
	case "member":
		return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_SetMember{SetMember: &braidpb.SetMember{
			Member: &braidpb.Member{Id: numbers(f[1], ",")[0], Name: f[2], ClientUrls: []string{"http://" + f[2]}}}}}
	case "abort":
		return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Abort{Abort: &braidpb.TxnAbort{
			Txn: &braidpb.TxnID{Node: 9, Counter: numbers(f[1], ",")[0]}, Participants: on, Deadline: opt["deadline"]}}}
	case "commit":
		c := &braidpb.TxnCommit{Txn: &braidpb.TxnID{Node: 9, Counter: numbers(f[1], ",")[0]}, Participants: on, Deadline: opt["deadline"], AuthRevision: opt["auth"]}
		for range on {
			c.Generations = append(c.Generations, &braidpb.Generation{Generation: opt["gen"]})
		}
		if l := opt["lease"]; l != 0 {
			c.Leases = []int64{int64(l)}
		}
		return &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Commit{Commit: c}}
	}
	panic("unknown command " + line)
}

func parseSegment(x string) *braidpb.Segment {
	p := strings.Split(x, ",")
	id, span, _ := strings.Cut(p[0], ":")
	n := numbers(span, "-")
	g := &braidpb.Segment{Range: numbers(id, ",")[0], Base: n[0], Through: n[1]}
	r := &braidpb.Run{Through: n[1], Generation: 1, AuthRevision: 1}
	for _, o := range p[1:] {
		k, v, _ := strings.Cut(o, "=")
		switch k {
		case "gen":
			r.Generation = numbers(v, ",")[0]
		case "auth":
			r.AuthRevision = numbers(v, ",")[0]
		case "lease":
			l := numbers(v, ":")
			r.Leases = append(r.Leases, &braidpb.SeqLease{Seq: l[0], Lease: int64(l[1])})
		}
	}
	g.Runs = append(g.Runs, r)
	return g
}

func arg(d *datadriven.TestData, key string, def int) int {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return int(numbers(a.Vals[0], ",")[0])
		}
	}
	return def
}

func (s *script) node(d *datadriven.TestData) *scriptNode { return s.nodes[arg(d, "node", 1)-1] }

func (s *script) start(d *datadriven.TestData) {
	if d.HasArg("node") {
		n := s.node(d)
		if err := n.db.Flush(); err != nil {
			s.t.Fatal(err)
		}
		n.open(s.nodes[0].m.cfg.Bootstrap)
		return
	}
	s.nodes, s.log, s.letters = nil, nil, nil
	s.init = &braidpb.Init{ClusterId: 7}
	nodes := arg(d, "nodes", 3)
	for i := range nodes {
		s.init.Members = append(s.init.Members, &braidpb.Member{Id: uint64(i + 1)})
	}
	ranges := arg(d, "ranges", 2)
	for i := range ranges {
		r := &braidpb.RangeDescriptor{Id: uint64(i + 1), Generation: 1}
		if i > 0 {
			r.Start = []byte{byte('a' + i)}
		}
		if i < ranges-1 {
			r.End = []byte{byte('b' + i)}
		}
		for k := range nodes {
			r.Replicas = append(r.Replicas, &braidpb.Replica{Node: uint64(k + 1), ReplicaId: uint64(k + 1)})
		}
		s.init.Ranges = append(s.init.Ranges, r)
	}
	var bootstrap *braidpb.Init
	if d.HasArg("bootstrap") {
		bootstrap = s.init
	}
	for i := range nodes {
		n := &scriptNode{s: s, id: i + 1, db: openData(s.t, vfs.NewMem())}
		s.nodes = append(s.nodes, n)
		n.open(bootstrap)
	}
}

func (n *scriptNode) open(bootstrap *braidpb.Init) {
	m, info, err := New(Config{Node: ids.NodeID(n.id), Incarnation: 1, Data: n.db, Bootstrap: bootstrap, Limits: Limits{KeepEntries: 2}})
	if err != nil {
		n.s.t.Fatal(err)
	}
	n.m, n.contexts, n.events = m, nil, nil
	if info.Applied > 0 {
		n.printf("applied %d of term %d, conf %v", info.Applied, info.AppliedTerm, info.Conf.Voters)
	}
	m.Start(n)
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	s.out.Reset()
	switch d.Cmd {
	case "start":
		s.start(d)
	case "role":
		n := s.node(d)
		l := arg(d, "leader", 0)
		n.m.Role(Role{Term: ids.Term(arg(d, "term", 1)), Leader: ids.NodeID(l), LeaderReplica: ids.ReplicaID(l), IsLeader: l == n.id})
	case "tick":
		n := s.node(d)
		for range arg(d, "n", 1) {
			n.m.Handle(n.take())
			n.m.Tick()
			n.m.Flush()
		}
	case "pass":
		n := s.node(d)
		n.m.Handle(n.take())
		n.m.Flush()
	case "letters":
		for _, l := range s.letters {
			if !d.HasArg("drop") {
				s.nodes[l.to-1].events = append(s.nodes[l.to-1].events, l.Letter)
			}
		}
		if s.printf("%d", len(s.letters)); !d.HasArg("keep") {
			s.letters = nil
		}
	case "log":
		e := Entry{Position: ids.Position(len(s.log) + 1), Term: ids.Term(arg(d, "term", 1))}
		if d.Input != "" {
			e.Data = s.parse(d.Input)
		}
		s.log = append(s.log, e)
		s.printf("#%d", e.Position)
	case "deliver":
		n := s.node(d)
		n.m.Deliver(s.log[n.m.state.at.Position:min(len(s.log), arg(d, "through", len(s.log)))])
		n.m.Handle(n.take())
		n.m.Flush()
	case "readstate":
		n := s.node(d)
		n.m.ReadState(n.contexts[arg(d, "ctx", 1)-1], ids.Position(arg(d, "index", 0)))
		n.m.Flush()
	case "snapshot":
		s.snapshot(s.nodes[arg(d, "from", 1)-1], s.nodes[arg(d, "to", 1)-1])
	case "view":
		v := s.node(d).m.View()
		s.printf("position %d revision %d compacted %d, %d ranges, %d members, term %d leader %d", v.Position, v.Revision, v.CompactRevision,
			len(v.Routing.Ranges()), len(v.Members), v.Term, uint64(v.Leader))
	case "apply":
		s.apply(d)
	case "state":
		st := s.state
		if d.HasArg("node") {
			st = s.node(d).m.state
		}
		s.show(st)
	default:
		s.event(d)
	}
	return s.out.String()
}

func (n *scriptNode) take() []any {
	ev := n.events
	n.events = nil
	return ev
}

// event enqueues an event.
func (s *script) event(d *datadriven.TestData) {
	n := s.node(d)
	id := arg(d, "id", 0)
	switch d.Cmd {
	case "progress":
		e := Progress{
			Range: ids.RangeID(arg(d, "range", 1)), Term: ids.Term(arg(d, "term", 1)), From: ids.Seq(arg(d, "from", 0)), Through: ids.Seq(arg(d, "through", 0)),
			Generation: ids.Generation(arg(d, "gen", 1)), AuthRevision: ids.AuthRevision(arg(d, "auth", 1)),
		}
		for _, a := range d.CmdArgs {
			if a.Key == "lease" {
				l := numbers(a.Vals[0], ":")
				e.Leases = append(e.Leases, SeqLease{ids.Seq(l[0]), ids.LeaseID(l[1])})
			}
		}
		n.events = append(n.events, e)
	case "reset":
		n.events = append(n.events, ProgressReset{Range: ids.RangeID(arg(d, "range", 1))})
	case "flushed":
		f := Flushed{Order: ids.Position(arg(d, "order", 0))}
		for _, a := range d.CmdArgs {
			if a.Key == "range" {
				x := numbers(a.Vals[0], ":")
				f.Ranges = append(f.Ranges, RangeFlushed{ids.RangeID(x[0]), ids.Position(x[1])})
			}
		}
		n.events = append(n.events, f)
	case "read":
		n.events = append(n.events, Read{Done: func(p ids.Position, err error) { n.printf("read %d: position %d, %v", id, p, err) }})
	case "propose":
		n.events = append(n.events, Propose{Cmd: s.parseCommand(d.Input), TimeoutTicks: arg(d, "timeout", 0), Done: func(r Result) {
			n.printf("proposal %d: %s", id, showResult(r))
		}})
	default:
		s.t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
}

func showResult(r Result) string {
	if r.Position == 0 {
		return fmt.Sprintf("%v", r.Err)
	}
	return fmt.Sprintf("position %d, revision %d, committed %v, %v", r.Position, r.Revision, r.Committed, r.Err)
}

func (s *script) parse(input string) []byte {
	var cmds []*braidpb.OrderCommand
	for line := range strings.Lines(input) {
		cmds = append(cmds, s.parseCommand(strings.TrimSpace(line)))
	}
	b, err := EncodeEntry(cmds...)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *script) snapshot(from, to *scriptNode) {
	meta, ok := from.m.SnapshotMeta()
	if !ok {
		s.printf("no snapshot")
		return
	}
	to.m.Restore(ids.NodeID(from.id), meta, func(got *SnapMeta) {
		if got == nil {
			to.printf("snapshot refused")
		} else {
			to.printf("installed %d of term %d", got.Position, got.Term)
		}
	})
	if to.flush != nil {
		to.flush()
		to.flush = nil
	}
}

// apply applies one entry to the state alone; "new" begins a new one.
func (s *script) apply(d *datadriven.TestData) {
	if d.HasArg("new") {
		s.state = NewState()
		s.init = &braidpb.Init{ClusterId: 7, Members: []*braidpb.Member{{Id: 1}, {Id: 2}, {Id: 3}}}
		reps := []*braidpb.Replica{{Node: 1}, {Node: 2}, {Node: 3}}
		s.init.Ranges = []*braidpb.RangeDescriptor{{Id: 1, End: []byte("m"), Replicas: reps}, {Id: 2, Start: []byte("m"), Replicas: reps}}
	}
	e := &braidpb.OrderEntry{}
	if d.Input != "" {
		var err error
		if e, err = DecodeEntry(s.parse(d.Input)); err != nil {
			s.t.Fatal(err)
		}
	}
	f := s.state.Apply(Point{s.state.at.Position + 1, s.state.at.Term}, e)
	s.printf("position %d revision %d", s.state.at.Position, s.state.revision)
	for _, it := range f.Items {
		s.printf("%s", showItems(it))
	}
	for _, r := range f.Results {
		s.printf("result: %s", showResult(r))
		if errors.Is(r.Err, ErrTxnAborted) && r.Committed {
			s.t.Fatal("committed and aborted")
		}
	}
}

func (s *script) show(st *State) {
	s.printf("position %d revision %d compacted %d", st.at.Position, st.revision, st.compacted)
	for _, r := range st.ranges {
		first, last := r.queue.bounds()
		s.printf("range %d: ordered %d, items [%d, %d], newest %d, dropped %d, flushed %v", r.id, r.ordered, first, last, r.newestItem, r.newestDropped, r.flushed)
	}
	for _, d := range st.decisions.sorted() {
		s.printf("txn %d: commit %v revision %d deadline %d", d.Txn.Counter, d.Commit, d.Revision, d.Deadline)
	}
	for _, m := range st.members {
		s.printf("member %d %q %v", m.Id, m.Name, m.ClientUrls)
	}
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, s.run)
	})
}
