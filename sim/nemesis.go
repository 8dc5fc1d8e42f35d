package sim

import (
	"fmt"

	"github.com/braidkv/braid/internal/ids"
)

// startNemesis injects faults, one after the other and sometimes two at once, until the run's time is over.
func (r *run) startNemesis() {
	c := r.c
	w := c.World
	r.c.World.Go(func(p *Proc) {
		for {
			p.Sleep(w.Between(50*Millisecond, 1200*Millisecond))
			if w.Now >= r.until || c.err != nil {
				return
			}
			r.fault()
		}
	})
}

func (r *run) note(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf("%d:", r.c.World.Now/1000)+fmt.Sprintf(format, args...))
	if r.o.Log != nil {
		fmt.Fprintln(r.o.Log, "fault", r.faults[len(r.faults)-1])
	}
}

// fault injects one fault and plans its end.
func (r *run) fault() {
	c, w := r.c, r.c.World
	m := c.members[w.Rand.IntN(len(c.members))]
	if w.Chance(0.4) { // aim at the order leader
		if up := c.nodeAt(); up != nil {
			if l := up.core.View().Leader; l != 0 {
				m = c.members[l-1]
			}
		}
	}
	lasts := w.Between(20*Millisecond, 2500*Millisecond)
	switch w.Rand.IntN(9) {
	case 0, 1:
		r.note("crash %v", m.id)
		c.Crash(m)
		w.After(lasts, "restart", func() { c.Restart(m) })
	case 2:
		r.note("crash and restart %v", m.id)
		c.Crash(m)
		c.Restart(m)
	case 3:
		r.note("crash all")
		for _, x := range c.members {
			c.Crash(x)
		}
		for _, x := range c.members {
			w.After(w.Between(0, 300*Millisecond), "restart", func() { c.Restart(x) })
		}
	case 4:
		r.note("freeze %v", m.id)
		c.setFrozen(m, true)
		w.After(lasts, "thaw", func() { c.setFrozen(m, false) })
	case 5:
		r.note("isolate %v", m.id)
		r.cutOff(lasts, func(a, b ids.NodeID) bool { return a == m.id || b == m.id })
	case 6:
		in := w.Chance(0.5)
		r.note("half-open %v in %v", m.id, in)
		r.cutOff(lasts, func(a, b ids.NodeID) bool { return in && b == m.id || !in && a == m.id })
	case 7:
		side := w.Rand.Uint64()
		r.note("partition %x", side&0x1f)
		r.cutOff(lasts, func(a, b ids.NodeID) bool { return side>>a&1 != side>>b&1 })
	case 8:
		r.note("slow disk %v", m.id)
		c.slow[m.id] = true
		w.After(lasts, "fast disk", func() { delete(c.slow, m.id) })
	}
}

// cutOff cuts the links that which names, for a while.
func (r *run) cutOff(lasts Time, which func(from, to ids.NodeID) bool) {
	c := r.c
	var links [][2]ids.NodeID
	for _, a := range c.members {
		for _, b := range c.members {
			if a != b && which(a.id, b.id) {
				links = append(links, [2]ids.NodeID{a.id, b.id})
			}
		}
	}
	for _, l := range links {
		c.cut[l] = true
		if x := c.members[l[1]-1]; x.core != nil && c.World.Chance(0.5) {
			x.core.PeerDown(l[0]) // the transport notices, or not yet
			c.wake(x)
		}
	}
	c.World.After(lasts, "rejoin", func() {
		for _, l := range links {
			delete(c.cut, l)
			from, to := c.members[l[0]-1], c.members[l[1]-1]
			if from.core != nil && to.core != nil {
				to.core.PeerUp(from.id, from.incarnation)
				c.wake(to)
			}
		}
	})
}
