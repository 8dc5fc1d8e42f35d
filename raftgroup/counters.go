package raftgroup

import "sync/atomic"

type counters struct {
	Passes, Readies, EntriesDelivered, Proposals, ProposalsDropped atomic.Uint64
	MessagesSent, MessagesReceived, MessagesDropped                atomic.Uint64
	BeatsSent                                                      atomic.Uint64
	NotesSent                                                      atomic.Uint64
	SnapshotsSent, SnapshotsRestored                               atomic.Uint64
	RoleChanges, Quiesced, Woken                                   atomic.Uint64
}

// Counters returns the totals since the store was made. Any goroutine may ask.
func (s *Store) Counters() Counters {
	c := &s.counters
	return Counters{
		Passes: c.Passes.Load(), Readies: c.Readies.Load(), EntriesDelivered: c.EntriesDelivered.Load(),
		Proposals: c.Proposals.Load(), ProposalsDropped: c.ProposalsDropped.Load(),
		MessagesSent: c.MessagesSent.Load(), MessagesReceived: c.MessagesReceived.Load(), MessagesDropped: c.MessagesDropped.Load(),
		BeatsSent: c.BeatsSent.Load(), NotesSent: c.NotesSent.Load(), SnapshotsSent: c.SnapshotsSent.Load(), SnapshotsRestored: c.SnapshotsRestored.Load(),
		RoleChanges: c.RoleChanges.Load(), Quiesced: c.Quiesced.Load(), Woken: c.Woken.Load(),
	}
}
