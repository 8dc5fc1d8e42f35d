package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/braidkv/braid/node"
	"github.com/braidkv/braid/order"
	ranges "github.com/braidkv/braid/range"
)

// mutants are rules switched off. The simulation must find each within so many seeds: a simulation that does not find them would not find the
// mistake either. What only leases, changes of generation or of the auth revision can show is not here: this version has none of them.
var mutants = []struct {
	name     string
	mutation node.Mutation
	seeds    int
}{
	{"a report is not repeated", node.Mutation{Order: order.ReportOnce}, 100},
	{"the order leader takes a report with a gap", node.Mutation{Order: order.AcceptGap | order.ReportOnce}, 400},
	{"a commit counts after an abort", node.Mutation{Order: order.CommitAfterAbort}, 2000},
	{"a new range leader evaluates at once", node.Mutation{Range: ranges.Mutation{NoO5: true}}, 400},
	{"a new range leader does not latch what is prepared", node.Mutation{Range: ranges.Mutation{NoRelatch: true}}, 4000},
	{"a prepare needs no lock", node.Mutation{Range: ranges.Mutation{PrepareWithoutToken: true}}, 4000},
	{"watches do not wait for replicas that lag", node.Mutation{NoFrontier: true}, 400},
	{"watches take what a compaction has left for the whole", node.Mutation{NoRemoved: true}, 4000},
	{"what is in flight when leadership is lost is said to be undone", node.Mutation{Range: ranges.Mutation{CertainTooEarly: true}}, 1000},
}

// TestMutants lets the simulation look for each mutant.
func TestMutants(t *testing.T) {
	if !*allMutants {
		t.Skip("takes minutes: run with -sim.mutants")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			begin := time.Now()
			for seed := uint64(1); seed <= uint64(m.seeds); seed++ {
				var res Result
				t.Run(fmt.Sprint(seed), func(t *testing.T) { res = runSeed(t, RunOptions{Seed: seed, Mutation: m.mutation}) })
				if res.Err != nil {
					text := res.Err.Error()
					t.Logf("found by seed %d after %v: %.300s", seed, time.Since(begin).Round(time.Millisecond), text)
					return
				}
			}
			t.Errorf("not found by %d seeds in %v", m.seeds, time.Since(begin).Round(time.Second))
		})
	}
}

// TestDeterminism runs seeds twice: the same things must happen at the same virtual times.
func TestDeterminism(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		var traces [2]uint64
		for i := range traces {
			t.Run(fmt.Sprintf("%d/%d", seed, i), func(t *testing.T) { traces[i] = runSeed(t, RunOptions{Seed: seed}).Trace })
		}
		if traces[0] != traces[1] {
			t.Errorf("seed %d: traces %x and %x differ", seed, traces[0], traces[1])
		}
	}
}
