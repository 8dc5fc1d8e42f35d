package router

import (
	"math/rand/v2"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/mvcc"
	"github.com/braidkv/braid/order"
	braidpb "github.com/braidkv/braid/proto"
	ranges "github.com/braidkv/braid/range"
	"github.com/braidkv/braid/range/eval"
	"github.com/braidkv/braid/range/latch"
)

// chaos stands for ranges and order log behind a fake: locks that lock, elections, time-outs, and answers that are late, lost or
// unknown.
type chaos struct {
	*rig
	rng     *rand.Rand
	calm    bool // nothing fails any more
	tick    int
	events  []func()
	shards  map[ids.RangeID]*shard
	order   []ids.RangeID // of shards
	decided map[ids.TxnID]bool
	seen    map[string]int
}

// shard is the leader of a range, whoever that is.
type shard struct {
	term    uint64
	token   uint64
	latches *latch.Set
	waiting map[latch.ID]func()
	locks   []*chaosLock
	txns    []*chaosTxn
}

type chaosLock struct {
	txn     ids.TxnID
	token   uint64
	latch   latch.ID
	held    bool
	expires int
	req     *braidpb.LockRequest
	refuse  func(ranges.Code) // while it waits
}

// chaosTxn is a Prepare in a range's log.
type chaosTxn struct {
	id    ids.TxnID
	prep  *braidpb.PrepareRequest
	req   *braidpb.LockRequest
	latch latch.ID
	since int
}

func newChaos(t *testing.T, seed uint64, splits ...string) *chaos {
	c := &chaos{
		rig: newRig(t, splits...), rng: rand.New(rand.NewPCG(seed, 7)), shards: map[ids.RangeID]*shard{}, decided: map[ids.TxnID]bool{}, seen: map[string]int{},
	}
	for _, d := range c.view.Routing.Ranges() {
		c.shards[ids.RangeID(d.Id)] = &shard{term: 1, latches: latch.New(), waiting: map[latch.ID]func(){}}
		c.order = append(c.order, ids.RangeID(d.Id))
	}
	c.submit = c.chaosSubmit
	c.propose = c.chaosPropose
	c.read = func(done func(ids.Position, error)) bool {
		c.later(func() { p := c.view.Position; c.later(func() { done(p, nil) }) })
		return true
	}
	return c
}

func (c *chaos) one(in int) bool { return !c.calm && c.rng.IntN(in) == 0 }

// later has something happen at some time; what happens in between is chance.
func (c *chaos) later(fn func()) { c.events = append(c.events, fn) }

// atTick is later, but not before a tick.
func (c *chaos) atTick(when int, fn func()) {
	c.later(func() {
		if c.tick < when {
			c.atTick(when, fn)
			return
		}
		fn()
	})
}

// step lets one thing happen, or a tick pass.
func (c *chaos) step() {
	if len(c.events) == 0 || c.rng.IntN(25) == 0 {
		c.passTick()
	} else {
		i := c.rng.IntN(len(c.events))
		fn := c.events[i]
		c.events = slices.Delete(c.events, i, i+1)
		fn()
	}
	c.w.run()
}

func (c *chaos) passTick() {
	c.tick++
	c.s.Tick()
	for _, r := range c.order {
		s := c.shards[r]
		for _, l := range slices.Clone(s.locks) {
			if l.held && l.expires <= c.tick {
				c.seen["lock lapsed"]++
				s.dropLock(l)
			}
		}
		for _, x := range s.txns {
			if c.tick-x.since >= 15 {
				x.since = c.tick
				c.later(func() { c.decide(x.id, false, x.prep.Deadline) })
			}
		}
		if c.one(150) {
			c.elect(s)
		}
	}
}

// elect makes somebody else the leader of a range: locks are gone, what is prepared stays locked.
func (c *chaos) elect(s *shard) {
	c.seen["election"]++
	s.term++
	old := s.locks
	s.locks, s.latches, s.waiting = nil, latch.New(), map[latch.ID]func(){}
	for _, l := range old {
		if !l.held {
			l.refuse(ranges.CodeNotLeader)
		}
	}
	for _, x := range s.txns {
		x.latch = s.latches.Inherit(chaosLatches(x.req))
	}
}

func chaosLatches(m *braidpb.LockRequest) latch.Request {
	spans := func(in []*braidpb.Span) (out []latch.Span) {
		for _, s := range in {
			x := latch.Span{Start: s.Start, End: s.End}
			if s.ToEnd {
				x.End = []byte{}
			} else if len(s.End) == 0 {
				x.End = nil
			}
			out = append(out, x)
		}
		return out
	}
	return latch.Request{Reads: spans(m.Reads), Writes: spans(m.Writes), Kind: latch.Lock}
}

func (s *shard) release(id latch.ID) {
	delete(s.waiting, id)
	for _, g := range s.latches.Release(id) {
		if fn := s.waiting[g]; fn != nil {
			delete(s.waiting, g)
			fn()
		}
	}
}

func (s *shard) dropLock(l *chaosLock) {
	s.locks = slices.DeleteFunc(s.locks, func(o *chaosLock) bool { return o == l })
	s.release(l.latch)
}

// acquire takes latches and then does something, which may be much later or, after an election, never.
func (s *shard) acquire(req latch.Request, fn func(latch.ID)) latch.ID {
	id, granted := s.latches.Acquire(req)
	if granted {
		fn(id)
	} else {
		s.waiting[id] = func() { fn(id) }
	}
	return id
}

func (c *chaos) chaosSubmit(r ids.RangeID, req *ranges.Request) bool {
	done, answered := req.Done, false
	answer := func(resp *ranges.Response) {
		if answered {
			return
		}
		answered = true
		if c.one(40) && req.Unlock == nil {
			c.seen["answer lost"]++
			resp = &ranges.Response{Code: ranges.CodeAmbiguous}
		}
		c.later(func() { done(resp) })
	}
	s := c.shards[r]
	c.later(func() {
		switch {
		case c.one(40):
			answer(&ranges.Response{Code: ranges.CodeNotLeader})
		case req.Lock != nil:
			c.lockShard(s, req, answer)
		case req.Prepare != nil:
			answer(&ranges.Response{Code: c.prepareShard(s, req.Prepare)})
		case req.Unlock != nil:
			for _, l := range slices.Clone(s.locks) {
				if l.txn == txnOf(req.Unlock.Txn) && (req.Unlock.Token == 0 || l.token == req.Unlock.Token) {
					s.dropLock(l)
				}
			}
		default:
			c.singleShard(s, req, answer)
		}
	})
	return true
}

func (c *chaos) lockShard(s *shard, req *ranges.Request, answer func(*ranges.Response)) {
	l := &chaosLock{txn: txnOf(req.Lock.Txn), req: req.Lock, refuse: func(code ranges.Code) { answer(&ranges.Response{Code: code}) }}
	s.locks = append(s.locks, l)
	l.latch = s.acquire(chaosLatches(req.Lock), func(latch.ID) {
		s.token++
		l.held, l.token, l.expires = true, s.token, c.tick+20
		answer(&ranges.Response{Lock: &braidpb.LockResponse{Token: l.token, Term: s.term, Kvs: c.readAll(req.Lock.Reads)}})
	})
}

func (c *chaos) readAll(spans []*braidpb.Span) (out [][]byte) {
	found := map[string]*mvccpb.KeyValue{}
	for _, sp := range spans {
		end := sp.End
		if len(end) == 0 && !sp.ToEnd {
			end = append(slices.Clone(sp.Start), 0)
		}
		res, err := mvcc.Range(c.engines.Data, mvcc.RangeOptions{Start: sp.Start, End: end, Rev: c.view.Revision})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, kv := range res.KVs {
			if found[string(kv.Key)] == nil {
				found[string(kv.Key)] = kv
				b, err := proto.Marshal(kv)
				if err != nil {
					c.t.Fatal(err)
				}
				out = append(out, b)
			}
		}
	}
	return out
}

func (c *chaos) prepareShard(s *shard, m *braidpb.PrepareRequest) ranges.Code {
	t := txnOf(m.Txn)
	if _, decided := c.decided[t]; decided {
		return ranges.CodeTokenLapsed
	}
	i := slices.IndexFunc(s.locks, func(l *chaosLock) bool { return l.txn == t && l.held && l.token == m.Token && s.term == m.Term })
	if i < 0 {
		c.seen["token lapsed"]++
		return ranges.CodeTokenLapsed
	}
	l := s.locks[i]
	s.locks = slices.Delete(s.locks, i, i+1)
	s.txns = append(s.txns, &chaosTxn{id: t, prep: m, req: l.req, latch: l.latch, since: c.tick})
	return ranges.CodeOK
}

// singleShard carries a request out that one range can do alone: evaluated, ordered and applied at once.
func (c *chaos) singleShard(s *shard, req *ranges.Request, answer func(*ranges.Response)) {
	w := &write{put: req.Put, del: req.Delete, txn: req.Txn}
	sp := w.spans()
	s.acquire(latch.Request{Reads: sp.Reads, Writes: sp.Writes, Kind: latch.Single}, func(id latch.ID) {
		res := w.evaluate(leaderView{c.fake, c.view})
		if res.Err != nil || len(res.Writes) == 0 {
			answer(&ranges.Response{Code: ranges.CodeReadInstead})
		} else {
			rev := c.apply(res.Writes...)
			res.SetRevision(rev)
			answer(&ranges.Response{Revision: rev, Put: res.Put, Delete: res.Delete, Txn: res.Txn})
		}
		s.release(id)
	})
}

func (c *chaos) chaosPropose(cmd *braidpb.OrderCommand, done func(order.Result)) bool {
	lost, told := c.one(30), c.one(30)
	when := c.tick
	if c.one(25) && cmd.GetCommit() != nil {
		when += 20 // the participants will have lost patience
	}
	c.atTick(when, func() {
		var res order.Result
		switch k := cmd.Kind.(type) {
		case *braidpb.OrderCommand_Commit:
			if lost {
				c.seen["commit lost"]++
				return // and nobody ever answers
			}
			res = c.commit(k.Commit)
		case *braidpb.OrderCommand_Abort:
			if lost {
				c.seen["abort lost"]++
				return
			}
			c.decide(txnOf(k.Abort.Txn), false, k.Abort.Deadline)
		}
		if told && cmd.GetCommit() != nil {
			c.seen["commit unknown"]++
			res = order.Result{Err: order.ErrAmbiguous}
		}
		c.later(func() { done(res) })
	})
	return true
}

func (c *chaos) commit(m *braidpb.TxnCommit) order.Result {
	t := txnOf(m.Txn)
	if _, decided := c.decided[t]; !decided {
		for _, r := range m.Participants {
			if !slices.ContainsFunc(c.shards[ids.RangeID(r)].txns, func(x *chaosTxn) bool { return x.id == t }) {
				c.t.Fatalf("commit of %v is proposed and range %d has not prepared it", t, r)
			}
		}
		rev := c.decide(t, true, m.Deadline)
		return order.Result{Committed: true, Revision: rev}
	} else if c.decided[t] {
		c.t.Fatalf("%v is committed twice", t)
	}
	c.seen["abort was first"]++
	return order.Result{Err: order.ErrTxnAborted}
}

// decide makes a decision, unless there is one, and carries it out everywhere at once.
func (c *chaos) decide(t ids.TxnID, commit bool, _ uint64) (rev ids.Revision) {
	if _, decided := c.decided[t]; decided {
		return 0
	}
	c.decided[t] = commit
	var writes []eval.Write
	var release []func()
	for _, r := range c.order {
		s := c.shards[r]
		i := slices.IndexFunc(s.txns, func(x *chaosTxn) bool { return x.id == t })
		if i < 0 {
			continue
		}
		x := s.txns[i]
		s.txns = slices.Delete(s.txns, i, i+1)
		for _, w := range x.prep.Writes {
			writes = append(writes, eval.Write{Key: w.Key, Value: w.Value, Delete: w.Delete, Sub: uint32(w.Sub)})
		}
		release = append(release, func() { s.release(x.latch) })
	}
	if commit {
		rev = c.apply(writes...)
	}
	for _, fn := range release {
		fn()
	}
	return rev
}
