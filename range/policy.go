package ranges

import "github.com/braidkv/braid/internal/ids"

// policy keeps the leadership of the range where the order leader is, for there a write takes the fewest
// hops, and away from nodes which the order leader does not hear.
type policy struct {
	ledOnce bool // some leader was known in the life of the process
	apart   int  // ticks for which we lead and another node leads the order group
	lost    int  // ticks for which we lead and cannot get anything ordered
	seq     ids.Seq
	next    int // which follower gets the next hand-over
}

// tickPolicy decides where the leadership belongs. It only moves it to a follower that is heard of and has all that is
// applied here.
func (r *Replica) tickPolicy() {
	v := r.host.OrderView()
	p, t := &r.policy, &r.cfg.Timing
	if !r.role.IsLeader {
		// A range is born without a leader: instead of waiting for election time-outs, the order leader's node runs, until
		// enough of the others have made their replicas.
		if r.now%3 == 1 {
			r.campaignAtBirth(v)
		}
		return
	}
	if v.Leader == r.cfg.Node {
		p.apart, p.lost = 0, 0
		return
	}
	p.apart++
	if stuck := r.window.delivered > r.cursor.seq && r.cursor.seq == p.seq; v.Leader != 0 && !stuck {
		p.lost = 0
	} else {
		p.lost++
	}
	p.seq = r.cursor.seq
	limit := t.ElectionTicks
	if v.Leader != 0 {
		p.next = 0
		limit *= 3 // a leader that is known may just be slow
	}
	switch {
	case p.lost >= limit:
		r.handOver(v.Leader)
		p.lost = 0
	case v.Leader == 0:
		p.apart = 0
	case p.apart >= t.FollowTicks:
		r.handOverTo(v.Leader)
		p.apart = 0
	}
}

func (r *Replica) campaignAtBirth(v OrderView) {
	if v.Leader == r.cfg.Node && !r.policy.ledOnce && r.role.Leader == 0 && r.cursor.index <= 1 {
		r.host.Campaign()
	}
}

// poked looks at the order view again.
func (r *Replica) poked() {
	if !r.role.IsLeader {
		r.campaignAtBirth(r.host.OrderView())
	}
}

// fit tells whether a follower can take over.
func (r *Replica) fit(f Follower) bool {
	return f.Active && !f.Learner && f.Node != 0 && f.Match >= r.cursor.index
}

func (r *Replica) handOverTo(n ids.NodeID) {
	found := false
	r.host.Followers(func(f Follower) { found = found || f.Node == n && r.fit(f) })
	if found {
		r.logger.Info("leadership follows the order leader", "to", n.String())
		r.host.TransferLeader(n)
	}
}

// handOver gives the leadership to some node, best to the one given: this one gets nothing ordered.
func (r *Replica) handOver(best ids.NodeID) {
	var fit []ids.NodeID
	r.host.Followers(func(f Follower) {
		if r.fit(f) {
			fit = append(fit, f.Node)
			if f.Node == best {
				fit[0], fit[len(fit)-1] = fit[len(fit)-1], fit[0]
			}
		}
	})
	if len(fit) == 0 {
		return
	}
	to := fit[r.policy.next%len(fit)]
	r.policy.next++
	r.logger.Warn("the order leader is out of reach, handing leadership over", "to", to.String())
	r.host.TransferLeader(to)
}

// policyIdle tells that no tick is needed to move the leadership.
func (r *Replica) policyIdle() bool {
	if !r.role.IsLeader {
		return true
	}
	v := r.host.OrderView()
	if v.Leader == r.cfg.Node {
		return true
	}
	movable := v.Leader == 0
	r.host.Followers(func(f Follower) { movable = movable || f.Node == v.Leader && !f.Learner })
	return !movable
}
