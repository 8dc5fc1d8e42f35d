package order

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// cluster is a number of order machines under a simulated order group, with simulated ranges: leaders change, tails of logs
// are lost, letters are lost, doubled and come in any order, nodes crash and lose what is not flushed, nodes are
// sent snapshots. What must come out is computed by a naive model from the facts of the range logs (not from what reports and cuts say about
// them).
type cluster struct {
	rnd      *rand.Rand
	mutation Mutation
	init     *braidpb.Init
	err      error

	nodes  []*hNode
	ranges []*hRange

	// The order group.
	log       []hEntry // position-1
	committed int
	term      ids.Term
	leader    int // index of a node
	leaders   map[ids.Term]int
	noop      int // position of the leader's first entry

	letters []hLetter

	model    *world
	modelled int // entries that the model has

	txns      []*worldTxn
	proposals int // open
	reads     int // open
	fair      bool
	slow      int // index of a node that gets few entries
	stats     map[string]int
}

type hEntry struct {
	term ids.Term
	data []byte
}

type hLetter struct {
	from, to ids.NodeID
	kind     LetterKind
	body     []byte
}

// hRange is the truth about a range's log. Its stamps are in the model.
type hRange struct {
	id        ids.RangeID
	facts     *worldRange
	committed int
	term      ids.Term
	leader    int
}

func newCluster(seed uint64, mutation Mutation, nodes, ranges int) *cluster {
	c := &cluster{
		rnd: rand.New(rand.NewPCG(seed, 1)), mutation: mutation, leaders: map[ids.Term]int{}, leader: -1,
		model: &world{rev: 1, known: map[uint64]bool{}}, stats: map[string]int{}, term: 1,
	}
	c.init = &braidpb.Init{ClusterId: 7}
	for i := range nodes {
		c.init.Members = append(c.init.Members, &braidpb.Member{Id: uint64(11 + i)})
	}
	for i := range ranges {
		d := &braidpb.RangeDescriptor{Id: uint64(i + 1), Generation: 1}
		if i > 0 {
			d.Start = []byte{byte('a' + i)}
		}
		if i < ranges-1 {
			d.End = []byte{byte('b' + i)}
		}
		for k := range min(3, nodes) { // a fourth node has the order log only
			d.Replicas = append(d.Replicas, &braidpb.Replica{Node: uint64(11 + (k+i)%nodes), ReplicaId: uint64(k + 1)})
		}
		c.init.Ranges = append(c.init.Ranges, d)
		w := &worldRange{id: d.Id, gen: 1, flushed: map[uint64]uint64{}}
		for _, x := range d.Replicas {
			w.nodes = append(w.nodes, x.Node)
		}
		r := &hRange{id: ids.RangeID(i + 1), facts: w, leader: -1}
		c.ranges = append(c.ranges, r)
	}
	c.log = []hEntry{{term: 1}}
	c.committed = 1
	for i := range nodes {
		n := &hNode{c: c, i: i, id: ids.NodeID(11 + i), fs: vfs.NewCrashableMem(), know: map[ids.RangeID]int{}}
		c.nodes = append(c.nodes, n)
		n.start()
	}
	return c
}

func (c *cluster) failf(format string, a ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, a...)
	}
}

func (c *cluster) chance(percent int) bool { return c.rnd.IntN(100) < percent }

// elect makes a node the leader of the order group. It has all that is committed, and some of what is not.
func (c *cluster) elect(i int) {
	if c.leader >= 0 {
		c.log = c.log[:c.committed+c.rnd.IntN(len(c.log)-c.committed+1)]
	}
	c.term++
	c.leader = i
	c.leaders[c.term] = i
	c.log = append(c.log, hEntry{term: c.term})
	c.noop = len(c.log)
	c.nodes[i].learn(c.term)
	c.stats["order elections"]++
}

// commit commits some of the order leader's log, which the model then applies.
func (c *cluster) commit() {
	lo := max(c.committed+1, c.noop)
	if c.leader < 0 || lo > len(c.log) {
		return
	}
	c.committed = lo + c.rnd.IntN(len(c.log)-lo+1)
	for c.modelled < c.committed {
		c.modelApply()
	}
}

func (c *cluster) modelApply() {
	w := c.model
	e, err := DecodeEntry(c.log[c.modelled].data)
	if err != nil {
		c.failf("decoding: %w", err)
	}
	c.modelled++
	w.pos = uint64(c.modelled)
	for _, cmd := range e.GetCommands() {
		switch k := cmd.Kind.(type) {
		case *braidpb.OrderCommand_Init:
			for _, r := range c.ranges {
				if len(w.ranges) < len(c.ranges) {
					w.ranges = append(w.ranges, r.facts)
				}
			}
		case *braidpb.OrderCommand_Cut:
			for _, g := range k.Cut.Segments {
				r := w.find(g.Range)
				if int(g.Through) > c.ranges[g.Range-1].committed {
					c.failf("O1: position %d orders range %d through seq %d of %d", w.pos, g.Range, g.Through, c.ranges[g.Range-1].committed)
					return
				}
				if g.Through > r.ordered {
					c.stats["segments"]++
				}
				w.order(r, g.Through)
			}
			for _, m := range k.Cut.Flushed {
				w.flushed(w.find(m.Range), m)
			}
		case *braidpb.OrderCommand_Compact:
			if rev := k.Compact.Revision; rev > w.comp && rev <= w.rev {
				w.comp = rev
				for _, r := range w.ranges {
					w.tell(r, "compact %d", rev)
				}
			}
		case *braidpb.OrderCommand_Commit:
			x := c.txns[k.Commit.Txn.Counter-1]
			late := w.pos > x.c.Deadline
			w.decide(x, !late, late)
			c.stats["commits"]++
		case *braidpb.OrderCommand_Abort:
			x := c.txns[k.Abort.Txn.Counter-1]
			w.decide(x, false, w.pos > x.c.Deadline)
			c.stats["aborts"]++
		}
	}
}

// told is what the model has told a range at a position.
func (c *cluster) told(id uint64, at uint64) string {
	r := c.model.find(id)
	if r == nil {
		return ""
	}
	i, _ := slices.BinarySearch(r.at, at)
	var s []string
	for ; i < len(r.at) && r.at[i] == at; i++ {
		s = append(s, r.items[i])
	}
	return strings.Join(s, "; ")
}

// checkCut holds a proposed cut against the facts: it describes every seq above what its proposer has applied, rightly, and
// only committed ones.
func (c *cluster) checkCut(n *hNode, cut *braidpb.Cut) {
	for _, g := range cut.GetSegments() {
		r := c.ranges[g.Range-1]
		if int(g.Through) > r.committed {
			c.failf("O1: a cut of range %d through seq %d, committed is %d", g.Range, g.Through, r.committed)
			return
		}
		if s := n.m.state.ordered(r.id); uint64(s) != g.Base {
			c.failf("a cut of range %d has base %d, the proposer has applied %d", g.Range, g.Base, s)
			return
		}
		want := r.facts.segment(g.Base, g.Through)
		if got := fmt.Sprint(g.Runs); got != fmt.Sprint(want.Runs) {
			c.failf("a cut of range %d says %v of seqs %d to %d; right is %v", g.Range, got, g.Base+1, g.Through, want.Runs)
			return
		}
	}
}

// step does one thing that may happen.
func (c *cluster) step() {
	n := c.nodes[c.rnd.IntN(len(c.nodes))]
	r := c.ranges[c.rnd.IntN(len(c.ranges))]
	faults := !c.fair
	switch x := c.rnd.IntN(100); {
	case x < 10:
		c.append(r)
	case x < 20:
		if len(r.facts.stamps) > r.committed {
			r.committed += 1 + c.rnd.IntN(len(r.facts.stamps)-r.committed)
		}
	case x < 30:
		n.hear(r)
	case x < 40:
		c.commit()
	case x < 60:
		n.pass(c.chance(20))
	case x < 72:
		c.deliverLetter(faults)
	case x < 76:
		n.replicate(r)
	case x < 80:
		n.read()
	case x < 83:
		c.propose(n)
	case x < 85:
		n.learn(c.term)
	case x < 88:
		n.flush()
	case x < 89 && faults && c.chance(70):
		c.electRange(r)
	case x < 90 && faults && c.chance(50):
		c.elect(c.rnd.IntN(len(c.nodes)))
	case x < 91 && faults && c.chance(20):
		n.crash()
	case x < 92 && faults:
		n.snapshot()
	case x < 93 && faults && c.chance(30):
		n.loseLeader()
	case x < 94 && c.chance(20):
		c.slow = c.rnd.IntN(2 * len(c.nodes))
	default:
		n.pass(false)
	}
}

// append adds writes to a range's log.
func (c *cluster) append(r *hRange) {
	if r.leader < 0 || len(r.facts.stamps) > r.committed+6 || c.model.find(uint64(r.id)) == nil {
		return
	}
	for range 1 + c.rnd.IntN(3) {
		s := stamp{gen: 1, auth: firstAuthRevision}
		switch c.rnd.IntN(12) {
		case 0:
			s.gen = 2
		case 1:
			s.auth = 2
		case 2, 3:
			s.leases = []int64{5}
		}
		r.facts.stamps = append(r.facts.stamps, s)
		c.stats["writes"]++
	}
}

// electRange gives a range another leader; some of what was not committed is lost.
func (c *cluster) electRange(r *hRange) {
	k := len(r.facts.stamps) - r.committed
	r.facts.stamps = r.facts.stamps[:r.committed+c.rnd.IntN(k+1)]
	r.term++
	i := int(r.facts.nodes[c.rnd.IntN(len(r.facts.nodes))]) - 11
	if c.nodes[i].replicas[r.id] == nil {
		r.leader = -1
		return
	}
	r.leader = i
	c.nodes[i].lead(r)
	c.stats["range elections"]++
}

func (c *cluster) deliverLetter(faults bool) {
	if len(c.letters) == 0 {
		return
	}
	i := c.rnd.IntN(len(c.letters))
	l := c.letters[i]
	switch {
	case faults && c.chance(20):
		c.letters = slices.Delete(c.letters, i, i+1)
		c.stats["letters lost"]++
		return
	case faults && c.chance(10) && len(c.letters) < 50:
		c.stats["letters doubled"]++
	default:
		c.letters = slices.Delete(c.letters, i, i+1)
	}
	to := c.nodes[int(l.to)-11]
	to.events = append(to.events, Letter{From: l.from, Kind: l.kind, Body: l.body})
	if c.chance(70) {
		to.pass(false)
	}
}

// propose has a node propose something.
func (c *cluster) propose(n *hNode) {
	if len(c.model.ranges) == 0 {
		return
	}
	var cmd *braidpb.OrderCommand
	var txn *worldTxn
	abort := false
	switch {
	case c.chance(30):
		cmd = &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Compact{Compact: &braidpb.Compact{Revision: c.model.comp + int64(c.rnd.IntN(5))}}}
	case c.chance(50) && len(c.txns) > 0:
		txn, abort = c.txns[len(c.txns)-1-c.rnd.IntN(min(3, len(c.txns)))], c.chance(70)
	default:
		txn = &worldTxn{c: &braidpb.TxnCommit{
			Txn: &braidpb.TxnID{Node: 1, Counter: uint64(len(c.txns) + 1)}, AuthRevision: firstAuthRevision,
			Deadline: uint64(n.m.View().Position) + 1 + c.rnd.Uint64N(20),
		}}
		for _, r := range c.ranges {
			if c.chance(60) {
				txn.c.Participants = append(txn.c.Participants, uint64(r.id))
				txn.c.Generations = append(txn.c.Generations, &braidpb.Generation{Generation: 1})
			}
		}
		c.txns = append(c.txns, txn)
	}
	if txn != nil {
		cmd = &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Commit{Commit: txn.c}}
		if abort {
			cmd = &braidpb.OrderCommand{Kind: &braidpb.OrderCommand_Abort{Abort: &braidpb.TxnAbort{Txn: txn.c.Txn, Participants: txn.c.Participants, Deadline: txn.c.Deadline}}}
		}
	}
	n.propose(cmd, txn, abort)
}

// settle lets everything happen that is still to happen, without faults, and says what is missing in the end.
func (c *cluster) settle() {
	c.fair = true
	if c.leader < 0 {
		c.elect(0)
	}
	for _, r := range c.ranges {
		if r.leader < 0 || c.nodes[r.leader].replicas[r.id] == nil || c.nodes[r.leader].leads[r.id] != r.term {
			r.leader = -1
		}
	}
	why := "nothing was done"
	for range 400 {
		if c.err != nil || why == "" {
			return
		}
		for _, n := range c.nodes {
			n.learn(c.term)
		}
		for _, r := range c.ranges {
			if r.leader < 0 {
				c.electRange(r)
			}
			r.committed = len(r.facts.stamps)
			for _, n := range c.nodes {
				n.know[r.id] = r.committed
				n.hear(r)
			}
		}
		for len(c.letters) > 0 {
			c.deliverLetter(false)
		}
		c.commit()
		for _, n := range c.nodes {
			n.finishRestore()
			n.pass(true)
			for _, r := range c.ranges {
				n.replicate(r)
			}
		}
		why = c.missing()
	}
	if why != "" {
		c.failf("liveness: %s", why)
	}
}

func (c *cluster) missing() string {
	if len(c.model.ranges) == 0 {
		return "not initialised"
	}
	if c.proposals > 0 || c.reads > 0 {
		return fmt.Sprintf("%d proposals and %d reads have no answer", c.proposals, c.reads)
	}
	for _, r := range c.ranges {
		if int(r.facts.ordered) != len(r.facts.stamps) {
			return fmt.Sprintf("range %d is ordered through seq %d of %d", r.id, r.facts.ordered, len(r.facts.stamps))
		}
		for _, x := range r.facts.nodes {
			p := c.nodes[int(x)-11].replicas[r.id]
			if p == nil || uint64(p.seq) != r.facts.ordered || len(p.queue) > 0 {
				return fmt.Sprintf("range %d on node %d has not applied all", r.id, x)
			}
		}
	}
	for _, n := range c.nodes {
		if n.m.View().Revision != ids.Revision(c.model.rev) {
			return fmt.Sprintf("node %d is at revision %d, the model at %d", n.i, n.m.View().Revision, c.model.rev)
		}
	}
	return ""
}

// finish flushes all nodes and wants the items to be dropped, and then silence.
func (c *cluster) finish() {
	round := func() {
		for _, n := range c.nodes {
			for _, r := range c.ranges {
				n.replicate(r)
			}
			n.flush()
			n.pass(true)
		}
		for len(c.letters) > 0 {
			c.deliverLetter(false)
		}
		c.commit()
	}
	for range 60 {
		round()
	}
	at := len(c.log)
	for range 100 {
		round()
	}
	if len(c.log) != at {
		c.failf("an idle cluster goes on writing: %d entries, then %d", at, len(c.log))
	}
	for _, n := range c.nodes {
		for _, r := range n.m.state.ranges {
			if r.newestDropped != r.newestItem {
				c.failf("range %d: all is flushed, and items of (%d, %d] are kept", r.id, r.newestDropped, r.newestItem)
			}
		}
	}
}

func (c *cluster) close() {
	for _, n := range c.nodes {
		n.db.Close()
	}
}

// runCluster runs one seed; broken invariants count as findings.
func runCluster(seed uint64, mutation Mutation, steps int) (stats map[string]int, err error) {
	nodes, ranges := 3, 2
	switch seed % 4 {
	case 0:
		nodes, ranges = 4, 3
	case 1:
		nodes, ranges = 1, 2
	}
	c := newCluster(seed, mutation, nodes, ranges)
	defer c.close()
	defer func() {
		stats = c.stats
		if p := recover(); p != nil && mutation != 0 {
			err = fmt.Errorf("panic: %v", p)
		} else if p != nil {
			panic(p)
		}
	}()
	c.elect(0)
	for range steps {
		if c.err != nil {
			return c.stats, c.err
		}
		c.step()
	}
	c.settle()
	if c.err == nil && mutation == 0 {
		c.finish()
	}
	return c.stats, c.err
}

var seedsFlag = flag.Uint64("seeds", 40, "number of seeds that TestCluster runs")

func TestCluster(t *testing.T) {
	seeds := *seedsFlag
	if testing.Short() {
		seeds = 10
	}
	total := map[string]int{}
	for seed := range seeds {
		stats, err := runCluster(seed, 0, 2000)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for k, v := range stats {
			total[k] += v
		}
	}
	for _, k := range []string{"segments", "commits", "aborts", "order elections", "range elections", "letters lost", "letters doubled", "crashes", "snapshots", "refills", "reads", "held", "ambiguous"} {
		if total[k] == 0 && !testing.Short() {
			t.Errorf("no run has exercised %q", k)
		}
	}
	t.Log(total)
}

// TestClusterDeterminism runs some seeds twice: the logs must be equal.
func TestClusterDeterminism(t *testing.T) {
	for seed := uint64(2); seed < 8; seed++ {
		var logs [2]string
		for i := range logs {
			c := newCluster(seed, 0, 3, 3)
			c.elect(1)
			for range 400 {
				c.step()
			}
			logs[i] = fmt.Sprint(c.log, c.letters, c.stats)
			c.close()
		}
		if logs[0] != logs[1] {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}

// TestMutants wants each rule that is switched off to be noticed.
func TestMutants(t *testing.T) {
	for _, m := range []struct {
		name string
		m    Mutation
	}{
		{"report once", ReportOnce},
		{"report once, gaps taken", ReportOnce | AcceptGap},
		{"no void", NoVoid},
		{"thin runs", ThinRuns},
		{"commit after abort", CommitAfterAbort},
		{"uncommitted in reports", reportUncommitted},
	} {
		t.Run(m.name, func(t *testing.T) {
			for seed := range uint64(200) {
				if _, err := runCluster(seed, m.m, 1000); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("not found")
		})
	}
}
