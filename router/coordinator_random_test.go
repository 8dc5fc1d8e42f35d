package router

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/mvcc"
)

var (
	coordSeed  = flag.Uint64("coord.seed", 0, "run one seed of TestTxnRandom only")
	coordSeeds = flag.Int("coord.seeds", 60, "how many seeds TestTxnRandom runs")
)

// The bank: accounts in all ranges, whose sum never changes, and a mark for every transfer, which is made once or not at all.
const (
	accounts = 6
	initial  = 100
)

func account(i int) []byte { return fmt.Appendf(nil, "%c/account", 'a'+4*i) }

func mark(range_ int, client, n int) []byte {
	return fmt.Appendf(nil, "%c/mark/%d/%03d", 'a'+4*range_, client, n)
}

type transfer struct {
	marks [][]byte
	blind bool
	rev   int64 // answered: done at this revision
	known bool  // answered
}

type client struct {
	c      *chaos
	id     int
	done   []*transfer
	ended  bool
	failed int
}

// run makes transfers: most of them compare-and-swap on two accounts, some only blind marks in two ranges.
func (k *client) run(n int) {
	for i := range n {
		a := k.c.rng.IntN(accounts)
		b := (a + 1 + k.c.rng.IntN(accounts-1)) % accounts
		x := &transfer{marks: [][]byte{mark(a, k.id, i), mark(b, k.id, i)}, blind: k.c.rng.IntN(4) == 0}
		req := &pb.TxnRequest{Success: []*pb.RequestOp{opPut(string(x.marks[0]), "x"), opPut(string(x.marks[1]), "x")}}
		if !x.blind {
			balances := k.balances()
			if balances == nil {
				continue
			}
			for j, acct := range []int{a, b} {
				kv := balances[acct]
				req.Compare = append(req.Compare, modIs(string(kv.Key), kv.ModRevision))
				v, err := strconv.Atoi(string(kv.Value))
				if err != nil {
					k.c.t.Fatal(err)
				}
				req.Success = append(req.Success, opPut(string(kv.Key), strconv.Itoa(v+7-14*j)))
			}
		}
		k.done = append(k.done, x)
		resp, err := k.c.s.Txn(context.Background(), req)
		if err != nil {
			k.failed++
			continue
		}
		if x.known = true; resp.Succeeded {
			x.rev = resp.Header.Revision
		}
	}
	k.ended = true
}

// balances reads all accounts at one revision and checks their sum.
func (k *client) balances() (kvs []*mvccpb.KeyValue) {
	req := &pb.TxnRequest{}
	for i := range accounts {
		req.Success = append(req.Success, opGet(&pb.RangeRequest{Key: account(i)}))
	}
	resp, err := k.c.s.Txn(context.Background(), req)
	if err != nil {
		k.failed++
		return nil
	}
	sum := 0
	for _, r := range resp.Responses {
		kv := r.GetResponseRange().Kvs[0]
		kvs = append(kvs, kv)
		v, err := strconv.Atoi(string(kv.Value))
		if err != nil {
			k.c.t.Fatal(err)
		}
		sum += v
	}
	if sum != accounts*initial {
		k.c.t.Fatalf("revision %d: the accounts hold %d, not %d", resp.Header.Revision, sum, accounts*initial)
	}
	return kvs
}

// TestTxnRandom has clients move money between ranges that fail in every way they may. The sum never changes, what was answered is so, what was not
// is done once or not at all, and in the end nothing is locked.
func TestTxnRandom(t *testing.T) {
	seen := map[string]int{}
	seeds := make([]uint64, 0, *coordSeeds)
	for i := range *coordSeeds {
		seeds = append(seeds, uint64(i)+1)
	}
	if *coordSeed != 0 {
		seeds = []uint64{*coordSeed}
	}
	for _, seed := range seeds {
		if ok := t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { runBank(t, seed, seen) }); !ok {
			t.Fatalf("repeat with: go test ./router -run TestTxnRandom -coord.seed=%d", seed)
		}
	}
	if len(seeds) > 10 {
		for _, what := range []string{
			"election", "answer lost", "commit lost", "abort lost", "commit unknown", "abort was first", "token lapsed", "lock lapsed", "done", "refused", "failed",
			"failed and done",
		} {
			if seen[what] == 0 {
				t.Errorf("never seen: %s", what)
			}
		}
	}
	t.Log(seen)
}

func runBank(t *testing.T, seed uint64, seen map[string]int) {
	c := newChaos(t, seed, "d", "h", "p")
	for i := range accounts {
		c.put(string(account(i)), strconv.Itoa(initial))
	}
	var clients []*client
	for i := range 5 {
		k := &client{c: c, id: i}
		clients = append(clients, k)
		c.w.spawn(func() { k.run(12) })
	}
	steps := 0
	for slices.ContainsFunc(clients, func(k *client) bool { return !k.ended }) {
		if steps++; steps > 200_000 {
			t.Fatal("the clients do not come to an end")
		}
		c.step()
	}
	c.calm = true
	for range 100 { // what is left lapses, and what is undecided is aborted
		for len(c.events) > 0 {
			c.step()
		}
		c.passTick()
		c.w.run()
	}
	for _, r := range c.order {
		if s := c.shards[r]; len(s.locks)+len(s.txns)+s.latches.Len() > 0 {
			t.Errorf("range %d is left with %d locks, %d prepares, %d latches", r, len(s.locks), len(s.txns), s.latches.Len())
		}
	}
	checker := &client{c: c, id: 99}
	k := c.w.spawn(func() {
		if checker.balances() == nil {
			t.Error("no balances in the end")
		}
	})
	for !k.ended {
		c.step()
	}
	for _, k := range clients {
		for _, x := range k.done {
			checkTransfer(t, c, x, seen)
		}
	}
	for what, n := range c.seen {
		seen[what] += n
	}
}

func checkTransfer(t *testing.T, c *chaos, x *transfer, seen map[string]int) {
	var revs []int64
	for _, m := range x.marks {
		kv, err := mvcc.Get(c.engines.Data, m, mvcc.Latest)
		if err != nil {
			t.Fatal(err)
		}
		if kv == nil {
			revs = append(revs, 0)
			continue
		}
		revs = append(revs, kv.ModRevision)
		if kv.Version != 1 {
			t.Errorf("%s was made %d times", m, kv.Version)
		}
	}
	done := revs[0] != 0
	if revs[0] != revs[1] {
		t.Errorf("%s and %s are of revisions %v", x.marks[0], x.marks[1], revs)
	}
	switch {
	case x.known && x.rev != revs[0]:
		t.Errorf("%s was answered as revision %d (0: not done), and is of %d", x.marks[0], x.rev, revs[0])
	case x.known && done:
		seen["done"]++
	case x.known:
		seen["refused"]++
	case done:
		seen["failed and done"]++
	default:
		seen["failed"]++
	}
}
