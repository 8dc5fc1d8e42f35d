package watchfanout

import (
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/braidkv/braid/internal/ids"
)

// allWatches is the ID of a progress response that is about every watch of a stream; etcd also names watches by it that were not created.
const allWatches = -1

// What etcd says when a watch cannot be created.
var (
	ErrEmptyRange  = errors.New("mvcc: watcher range is empty")
	ErrDuplicateID = errors.New("mvcc: duplicate watch ID provided on the WatchStream")
)

// Create describes a watch.
type Create struct {
	ID              int64 // zero: the stream chooses
	Start, End      []byte
	Revision        ids.Revision // first one wanted; zero: what comes after the store's
	NoPut, NoDelete bool
	PrevKV          bool
	Progress        bool // periodic progress responses
	Fragment        bool
}

type watch struct {
	stream          *Stream
	group           *group
	id              int64
	start           ids.Revision // below it, progress is not told
	next            ids.Revision // behind: the first revision it lacks; synced: nothing below is wanted
	noPut, noDelete bool
	prev, notify    bool
	fragment        bool
	idle            bool
}

// Response is one to be sent. Its header has a revision and nothing else.
type Response struct {
	*pb.WatchResponse
	// MayFragment says that the client takes it in parts.
	MayFragment bool
	size        int
	w           *watch
}

func response(rev ids.Revision, id int64) *pb.WatchResponse {
	return &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: int64(rev)}, WatchId: id}
}

// Stream is one client's watches and what waits to be sent to it.
type Stream struct {
	h      *Hub
	notify func()
	// RequireLeader is the caller's, for its Breaker.
	RequireLeader bool

	// guarded by h.mu
	watches map[int64]*watch
	nextID  int64
	queue   []Response
	bytes   int
	stuck   bool // the next part of history does not fit before something was taken
	err     error
	closed  bool
}

// NewStream makes a stream. notify is called with the hub locked when there is something to take; it must not block.
func (h *Hub) NewStream(requireLeader bool, notify func()) *Stream {
	st := &Stream{h: h, notify: notify, RequireLeader: requireLeader, watches: map[int64]*watch{}}
	h.mu.Lock()
	h.streams[st] = struct{}{}
	h.mu.Unlock()
	return st
}

// Create adds a watch, and queues the response that says so or, in etcd's words, why not. shown is the highest revision that the node has told any client.
func (st *Stream) Create(c Create, shown ids.Revision) {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if st.closed {
		return
	}
	rev, _ := h.src.Now()
	rev = max(rev, shown)
	if len(c.End) > 0 && string(c.Start) >= string(c.End) {
		st.refuseLocked(rev, ErrEmptyRange.Error())
		return
	}
	id, err := st.chooseID(c.ID)
	if err != nil {
		st.refuseLocked(rev, err.Error())
		return
	}
	w := &watch{
		stream: st, id: id, next: c.Revision, noPut: c.NoPut, noDelete: c.NoDelete, prev: c.PrevKV, notify: c.Progress,
		fragment: c.Fragment, idle: true, start: c.Revision,
	}
	if w.next == 0 {
		w.next, w.start = rev+1, rev // what `created` says is progress, whether or not anything is written after it
	}
	w.group = h.joinLocked(c.Start, c.End, w.prev)
	st.watches[id] = w
	resp := response(rev, id)
	resp.Created = true
	st.pushLocked(resp, 0)
	if w.next > w.group.done {
		w.group.synced[w] = struct{}{}
	} else {
		h.behind[w] = struct{}{}
	}
	h.wake()
}

// Refuse queues etcd's answer to a request for a watch that cannot be.
func (st *Stream) Refuse(reason string) {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	rev, _ := st.h.src.Now()
	st.refuseLocked(rev, reason)
}

func (st *Stream) refuseLocked(rev ids.Revision, reason string) {
	resp := response(rev, allWatches)
	resp.Created, resp.Canceled, resp.CancelReason = true, true, reason
	st.pushLocked(resp, 0)
}

func (st *Stream) chooseID(id int64) (int64, error) {
	if id != 0 {
		if st.watches[id] != nil {
			return 0, ErrDuplicateID
		}
		return id, nil
	}
	for st.watches[st.nextID] != nil {
		st.nextID++
	}
	id = st.nextID
	st.nextID++
	return id, nil
}

// joinLocked finds or makes the group of a span.
func (h *Hub) joinLocked(start, end []byte, prev bool) *group {
	k := spanKey{string(start), string(end)}
	g := h.groups[k]
	if g == nil {
		g = &group{start: []byte(k.start), end: []byte(k.end), synced: map[*watch]struct{}{}}
		// Below the mark is history: if the span's replicas cannot tell how far they are, all of it, and Pump brings the mark on.
		g.done = h.src.Through(start, end)
		g.to = g.done
		h.groups[k] = g
		h.active.Store(true)
		h.index = nil
	}
	g.members++
	if prev {
		g.prev++
	}
	return g
}

// Cancel ends a watch; an unknown one is ignored, as in etcd.
func (st *Stream) Cancel(id int64) {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	w := st.watches[id]
	if w == nil {
		return
	}
	st.removeLocked(w)
	kept := st.queue[:0]
	for _, r := range st.queue {
		if r.w == w {
			st.bytes -= r.size
			continue
		}
		kept = append(kept, r)
	}
	clear(st.queue[len(kept):])
	st.queue = kept
	rev, _ := h.src.Now()
	resp := response(rev, id)
	resp.Canceled = true
	st.pushLocked(resp, 0)
}

func (st *Stream) removeLocked(w *watch) {
	delete(st.watches, w.id)
	delete(st.h.behind, w)
	g := w.group
	delete(g.synced, w)
	g.members--
	if w.prev {
		g.prev--
	}
	if g.members == 0 {
		delete(st.h.groups, spanKey{string(g.start), string(g.end)})
		st.h.index = nil
	}
}

// Progress asks for a response that says how far all watches of the stream are. It comes when all are synced through a revision that is
// neither below least nor below the node's own.
func (st *Stream) Progress(least ids.Revision) {
	st.h.mu.Lock()
	if !st.closed {
		rev, _ := st.h.src.Now()
		st.h.asking[st] = max(least, rev, st.h.asking[st])
	}
	st.h.mu.Unlock()
	st.h.wake()
}

// syncedLocked is the revision through which every watch has been sent everything. ok says that none is behind, nor waits for its start revision:
// as in etcd, progress is not told from before it. Without watches the revision is zero.
func (st *Stream) syncedLocked() (rev ids.Revision, ok bool) {
	for _, w := range st.watches {
		if _, behind := st.h.behind[w]; behind || w.group.done == 0 {
			return 0, false
		}
		if rev == 0 || w.group.done < rev {
			rev = w.group.done
		}
	}
	for _, w := range st.watches {
		if rev < w.start {
			return 0, false
		}
	}
	return rev, true
}

func (st *Stream) pushLocked(r *pb.WatchResponse, size int) {
	st.push(Response{WatchResponse: r, size: size})
}

func (st *Stream) push(r Response) {
	r.size += eventOverhead
	st.queue = append(st.queue, r)
	st.bytes += r.size
	st.notify()
}

// deliverLocked queues what of a batch a watch wants, in one response, and reports whether there was room.
func (w *watch) deliverLocked(batch []*event, size int) bool {
	st := w.stream
	if st.bytes > 0 && st.bytes+size > streamBytes {
		return false
	}
	var out []*mvccpb.Event
	for _, e := range batch {
		del := e.full.Type == mvccpb.Event_DELETE
		if e.rev() < w.next || del && w.noDelete || !del && w.noPut {
			continue
		}
		if w.prev {
			out = append(out, e.full)
		} else {
			out = append(out, e.bare)
		}
	}
	if len(out) == 0 {
		return true
	}
	w.idle = false
	resp := response(batch[len(batch)-1].rev(), w.id)
	resp.Events = out
	st.push(Response{WatchResponse: resp, MayFragment: w.fragment, size: size, w: w})
	return true
}

// Take takes what is to be sent, and the error with which the stream has to end after it.
func (st *Stream) Take() ([]Response, error) {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	out := st.queue
	st.queue, st.bytes, st.stuck = nil, 0, false
	if len(h.behind) > 0 {
		h.wake()
	}
	return out, st.err
}

// Full tells whether the stream should take no further requests until something was sent.
func (st *Stream) Full() bool {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	return st.bytes > streamBytes
}

// Close ends all watches of the stream.
func (st *Stream) Close() {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	st.closed = true
	for _, w := range st.watches {
		st.removeLocked(w)
	}
	delete(st.h.streams, st)
	delete(st.h.asking, st)
	st.queue, st.bytes = nil, 0
}
