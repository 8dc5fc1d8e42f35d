package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/braidkv/braid/internal/ids"
)

// metrics makes the node's own registry: etcd's names where they mean the same, braid_ for the rest. All are read when
// asked for.
func (c *Core) metrics() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	gauge := func(name, help string, read func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
	}
	counter := func(name, help string, read func() float64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read))
	}
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	gauge("etcd_server_has_leader", "Whether or not a leader exists. 1 is existence, 0 is not.", func() float64 { return flag(c.View().Leader != 0) })
	gauge("etcd_server_is_leader", "Whether or not this member is a leader. 1 if is, 0 otherwise.", func() float64 { return flag(c.View().Leader == c.cfg.Self) })
	gauge("etcd_debugging_mvcc_current_revision", "The current revision of store.", func() float64 { return float64(c.View().Revision) })
	gauge("etcd_debugging_mvcc_compact_revision", "The revision of the last compaction in store.", func() float64 { return float64(c.View().CompactRevision) })
	gauge("etcd_mvcc_db_total_size_in_bytes", "Total size of the underlying database physically allocated in bytes.", func() float64 {
		log, data := c.engines.DiskUsage()
		return float64(log + data)
	})
	gauge("braid_order_position", "The position of the order log that this node has applied.", func() float64 { return float64(c.View().Position) })
	gauge("braid_ranges", "Ranges with a replica on this node.", func() float64 { return float64(len(c.locals())) })
	gauge("braid_ranges_led", "Ranges that this node leads.", func() float64 {
		n := 0
		for _, l := range c.locals() {
			if role, ok := c.store.Role(ids.GroupOf(l.id)); ok && role.IsLeader {
				n++
			}
		}
		return float64(n)
	})
	gauge("braid_raft_log_bytes", "Size of the Raft logs of all groups.", func() float64 { return float64(c.log.TotalBytes()) })
	counter("braid_raft_proposals_total", "Entries that this node has proposed.", func() float64 { return float64(c.store.Counters().Proposals) })
	counter("braid_raft_entries_delivered_total", "Committed entries handed to the state machines.", func() float64 { return float64(c.store.Counters().EntriesDelivered) })
	counter("braid_raft_messages_sent_total", "Raft messages sent to other nodes.", func() float64 { return float64(c.store.Counters().MessagesSent) })
	return r
}
