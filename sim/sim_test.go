package sim

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"testing/cryptotest"
	"time"
)

var (
	seeds      = flag.Int("sim.seeds", 20, "how many seeds to run")
	first      = flag.Uint64("sim.seed", 1, "the first seed")
	budget     = flag.Duration("sim.budget", 0, "run seeds until this much real time has passed, instead of a number of them")
	allMutants = flag.Bool("sim.mutants", false, "look for every mutant")
	trace      = flag.Bool("sim.log", false, "print everything that happens")
)

func runSeed(t *testing.T, o RunOptions) Result {
	t.Helper()
	cryptotest.SetGlobalRandom(t, o.Seed)
	if *trace {
		o.Log = os.Stdout
	}
	return Run(o)
}

// TestSeeds runs whole clusters under faults. A failure names its seed: repeat it with -sim.seed=N -sim.seeds=1.
func TestSeeds(t *testing.T) {
	begin := time.Now()
	n := 0
	for seed := *first; ; seed++ {
		if *budget > 0 && time.Since(begin) > *budget || *budget == 0 && n >= *seeds {
			break
		}
		n++
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if res := runSeed(t, RunOptions{Seed: seed}); res.Err != nil {
				t.Fatalf("seed %d: %v", seed, res.Err)
			}
		})
		if !ok && *budget == 0 {
			t.Logf("repeat with: go test ./sim -run TestSeeds -sim.seed=%d -sim.seeds=1", seed)
		}
	}
	t.Logf("%d seeds in %v", n, time.Since(begin).Round(time.Second))
}
