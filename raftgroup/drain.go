package raftgroup

import (
	"context"
)

// drainState is a group's part in a hand-over before the node stops.
type drainState struct {
	on, done bool
	gave     bool // a transfer was started
	waited   int  // ticks without a leader since
}

// BeginHandOver makes the node give away every leadership it has, and take no new one by transfer. HandedOver tells when that is done. It
// cannot be undone.
func (s *Store) BeginHandOver() {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return
	}
	s.draining = true
	list := s.groups.Load().list
	s.mu.Unlock()
	// One more than there are groups, so that it does not end before all have been told.
	s.drainLeft.Store(int64(len(list)) + 1)
	for _, g := range list {
		g.control(func(g *Group) {
			g.drain.on = true
			if g.dead {
				g.finishDrain()
			}
		})
	}
	s.drainedOne()
}

// HandedOver tells whether every group that the node led has a new leader, or nobody who could lead it.
func (s *Store) HandedOver() bool {
	select {
	case <-s.drained:
		return true
	default:
		return false
	}
}

func (s *Store) drainedOne() {
	if s.drainLeft.Add(-1) == 0 {
		close(s.drained)
	}
}

func (g *Group) finishDrain() {
	if g.drain.on && !g.drain.done {
		g.drain.done = true
		g.s.drainedOne()
	}
}

// checkDrain moves the hand-over on at the end of a pass. The new leader needs our vote, so we are done only when we
// know it.
func (g *Group) checkDrain() {
	d := &g.drain
	switch {
	case !d.on || d.done:
	case g.role.IsLeader:
		if g.transferee != 0 {
			return
		}
		target := g.successor()
		if target == 0 {
			g.finishDrain()
			return
		}
		d.gave, d.waited = true, 0
		g.transfer(target)
		g.work()
	case g.role.LeaderReplica != 0 || !d.gave:
		g.finishDrain()
	}
}

// tickDrain keeps a group that has lost its leadership and not yet found a new leader from waiting for ever.
func (g *Group) tickDrain() {
	d := &g.drain
	if !d.on || d.done || g.role.IsLeader {
		return
	}
	if d.waited++; d.waited > g.s.cfg.ElectionTicks {
		g.finishDrain()
	}
}

// successor is the voter to hand leadership to: connected, heard of lately, and with the most of the log; zero if
// there is none.
func (g *Group) successor() uint64 {
	var best FollowerStatus
	cs, _ := g.log.Conf()
	g.Progress(func(f FollowerStatus) {
		st, known := g.s.peer(f.Node)
		if f.Learner || !f.Active || f.State != stateReplicate || known && !st.up || !isVoter(cs.GetVoters(), uint64(f.Replica)) {
			return
		}
		if best.Replica == 0 || f.Match > best.Match {
			best = f
		}
	})
	return uint64(best.Replica)
}

func isVoter(voters []uint64, id uint64) bool {
	for _, v := range voters {
		if v == id {
			return true
		}
	}
	return false
}

// Stop hands all leaderships over, for at most Config.HandOverTimeout and no longer than ctx, then ends Run and waits for it. What the log
// was given is written before.
func (s *Store) Stop(ctx context.Context) error {
	s.BeginHandOver()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.HandOverTimeout)
	defer cancel()
	s.mu.Lock()
	run := s.run
	s.stopped = true
	s.mu.Unlock()
	if run == nil {
		return nil
	}
	select {
	case <-s.drained:
	case <-ctx.Done():
	case <-run.done:
	}
	run.cancel()
	<-run.done
	return run.err
}
