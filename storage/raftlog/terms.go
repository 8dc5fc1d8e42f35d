package raftlog

// termRun says that entries from index on have this term, up to the next run.
type termRun struct{ index, term uint64 }

// termRuns are the terms of a log from some index on, ascending in both fields. Terms change at elections only, so
// a log has few runs and the newest is asked for most.
type termRuns []termRun

// at is the term of the entry at index i, which must not lie before the first run.
func (t termRuns) at(i uint64) uint64 {
	for k := len(t) - 1; k >= 0; k-- {
		if t[k].index <= i {
			return t[k].term
		}
	}
	return 0
}

// put notes the term of the entry that becomes the last one.
func (t termRuns) put(i, term uint64) termRuns {
	for len(t) > 0 && t[len(t)-1].index >= i {
		t = t[:len(t)-1]
	}
	if n := len(t); n > 0 && t[n-1].term == term {
		return t
	}
	return append(t, termRun{i, term})
}

// dropBefore forgets what lies before index i, which stays answerable.
func (t termRuns) dropBefore(i uint64) termRuns {
	k := 0
	for k+1 < len(t) && t[k+1].index <= i {
		k++
	}
	if k == 0 {
		return t
	}
	return append(t[:0], t[k:]...)
}
