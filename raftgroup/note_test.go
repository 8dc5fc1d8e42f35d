package raftgroup

import "testing"

// TestCommitNotes shows that followers which have an entry learn of its commit among the heartbeats: one letter for it to each, none back.
func TestCommitNotes(t *testing.T) {
	w := quietSim(t, simParams{groups: 1})
	w.mustConverge(10 * second)
	w.run(second, nil)
	before := w.counters()
	const proposals = 50
	for range proposals {
		w.propose(0)
		w.run(20*ms, nil)
	}
	w.mustConverge(10 * second)
	var sent, notes, answered uint64
	for i, c := range w.counters() {
		sent += c.MessagesSent - before[i].MessagesSent
		notes += c.NotesSent - before[i].NotesSent
		answered += c.BeatsSent - before[i].BeatsSent
	}
	// The second follower usually has not answered yet when its turn comes, and gets an append.
	if notes < proposals {
		t.Errorf("%d notes for %d commits", notes, proposals)
	}
	// An append and its answer for each follower, then a note for one and two letters for the other; and the heartbeats of a second.
	if most := uint64(proposals*7 + 4*15); sent > most {
		t.Errorf("%d letters for %d proposals, want at most %d", sent, proposals, most)
	}
	if most := uint64(4 * 15); answered > most {
		t.Errorf("%d heartbeats and answers in a second: notes are answered", answered)
	}
}
