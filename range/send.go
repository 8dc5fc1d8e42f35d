package ranges

import (
	"google.golang.org/protobuf/proto"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// export is a state of this replica on its way to another node: the engine as of one moment between two apply batches. The
// receiver pulls chunk after chunk; it may ask again for the last one.
type export struct {
	to     ids.NodeID
	id     uint64
	x      Exporter
	chunk  uint64              // the one made last, or being made
	made   *braidpb.StateChunk // nil while it is being made
	busy   bool                // a job has x
	gone   bool                // to be closed as soon as x is free
	idle   int                 // ticks since the receiver was heard of
	cursor *braidpb.Cursor
	conf   *braidpb.ConfRecord
}

// begun names an export that was begun: there is only one for an ID.
type begun struct {
	to ids.NodeID
	id uint64
}

// maxBegun is how many are remembered.
const maxBegun = 64

// exported is what a job has read.
type exported struct {
	x            *export
	keys, values [][]byte
	done         bool
	err          error
}

// Why a state cannot be had; the receiver tries again, or elsewhere.
const (
	refuseBehind  = "the replica is not that far"
	refuseBusy    = "the replica cannot hand out its state now"
	refuseUnknown = "the transfer is not known"
)

// SnapshotMeta describes a state that the replica can hand out to a follower that the log cannot help. Its index is the ordered
// cursor, its configuration the one in force there: while a change of it lies between ordered and delivered there is none.
func (r *Replica) SnapshotMeta() (SnapMeta, bool) {
	if !r.presentable() {
		return SnapMeta{}, false
	}
	data, err := proto.Marshal(r.cursor.proto())
	if err != nil {
		return SnapMeta{}, false
	}
	return SnapMeta{Index: r.cursor.index, Term: r.cursor.term, Conf: r.conf, Data: data}, true
}

// presentable tells whether the state may be handed out.
func (r *Replica) presentable() bool {
	return !r.failed && !r.stalled() && r.conf.Index > 0 && r.conf.Index <= r.cursor.index
}

func (c *cursor) proto() *braidpb.Cursor {
	return &braidpb.Cursor{
		OrderedIndex: uint64(c.index), OrderedTerm: uint64(c.term), Seq: uint64(c.seq), Frontier: uint64(c.frontier),
		Compacted: int64(c.compacted), CompactTarget: int64(c.target),
	}
}

func cursorOf(m *braidpb.Cursor) cursor {
	return cursor{
		index: ids.Index(m.GetOrderedIndex()), term: ids.Term(m.GetOrderedTerm()), seq: ids.Seq(m.GetSeq()), frontier: ids.Position(m.GetFrontier()),
		compacted: ids.Revision(m.GetCompacted()), target: ids.Revision(m.GetCompactTarget()),
	}
}

// serveState answers a request for a chunk.
func (r *Replica) serveState(e StateRequest) {
	x := r.findExport(e.From, e.M.Id)
	switch {
	case x != nil && e.M.Chunk == x.chunk && !x.busy:
		x.idle = 0
		r.host.SendStateChunk(x.to, x.made)
	case x != nil && e.M.Chunk == x.chunk+1 && !x.busy && !x.made.Last:
		x.idle, x.chunk, x.made = 0, e.M.Chunk, nil
		r.readChunk(x)
	case x != nil && e.M.Chunk <= x.chunk+1: // being made, or a letter that comes late
	case x == nil && e.M.Chunk == 0:
		if why := r.beginExport(e); why != "" {
			r.refuseState(e, why)
		}
	default:
		r.refuseState(e, refuseUnknown)
	}
}

func (r *Replica) refuseState(e StateRequest, why string) {
	r.host.SendStateChunk(e.From, &braidpb.StateChunk{Id: e.M.Id, Chunk: e.M.Chunk, Error: why})
}

func (r *Replica) findExport(to ids.NodeID, id uint64) *export {
	for _, x := range r.export {
		if x.to == to && x.id == id && !x.gone {
			return x
		}
	}
	return nil
}

// beginExport fixes the state as of now and reads the first chunk. It returns why not, if not.
func (r *Replica) beginExport(e StateRequest) string {
	if r.cursor.frontier < ids.Position(e.M.MinFrontier) {
		return refuseBehind
	}
	for _, b := range r.begun {
		if b == (begun{e.From, e.M.Id}) {
			return refuseUnknown // a letter that came twice
		}
	}
	for _, x := range r.export {
		if x.to != e.From || x.gone {
			continue
		}
		if x.chunk == 0 && x.cursor.Frontier >= e.M.MinFrontier {
			r.noteBegun(e)
			r.renameExport(x, e.M.Id)
			return ""
		}
		r.endExport(x) // the receiver has begun anew
	}
	if !r.presentable() || len(r.export) >= r.cfg.Limits.MaxExports {
		return refuseBusy
	}
	src, err := r.host.Export(r.start, r.end, r.id)
	if err != nil {
		r.fail("exporting the state", err)
		return refuseBusy
	}
	r.noteBegun(e)
	x := &export{to: e.From, id: e.M.Id, x: src, cursor: r.cursor.proto(), conf: confRecord(&r.conf, r.confTerm)}
	r.export = append(r.export, x)
	r.readChunk(x)
	return ""
}

func (r *Replica) noteBegun(e StateRequest) {
	if r.begun = append(r.begun, begun{e.From, e.M.Id}); len(r.begun) > maxBegun {
		r.begun = r.begun[1:]
	}
}

// renameExport goes on under another ID with an export of which the receiver has not taken the first chunk: it was not quick enough.
func (r *Replica) renameExport(x *export, id uint64) {
	x.id, x.idle = id, 0
	if x.busy {
		return
	}
	x.made = &braidpb.StateChunk{Id: id, Keys: x.made.Keys, Values: x.made.Values, Last: x.made.Last, Cursor: x.cursor, Conf: x.conf}
	r.host.SendStateChunk(x.to, x.made)
}

func (r *Replica) readChunk(x *export) {
	x.busy = true
	size := r.cfg.Limits.ChunkBytes
	r.host.Background(func() any {
		ev := exported{x: x}
		ev.keys, ev.values, ev.done, ev.err = x.x.Next(size)
		return ev
	})
}

// hasExported sends a chunk that a job has read.
func (r *Replica) hasExported(e exported) {
	x := e.x
	x.busy = false
	if e.err != nil {
		r.fail("exporting the state", e.err)
		return
	}
	if x.gone {
		r.endExport(x)
		return
	}
	x.made = &braidpb.StateChunk{
		Id: x.id, Chunk: x.chunk, Keys: e.keys, Values: e.values, Last: e.done, Cursor: x.cursor, Conf: x.conf,
	}
	r.host.SendStateChunk(x.to, x.made)
}

// endExport gives an export up, now or as soon as the job that has it comes back.
func (r *Replica) endExport(x *export) {
	x.gone = true
	if x.busy {
		return
	}
	if err := x.x.Close(); err != nil {
		r.fail("closing an exported state", err)
	}
	kept := make([]*export, 0, len(r.export))
	for _, y := range r.export {
		if y != x {
			kept = append(kept, y)
		}
	}
	r.export = kept
}

// tickExports gives up what nobody asks for any more.
func (r *Replica) tickExports() {
	for _, x := range r.export {
		if x.idle++; x.idle > 4*r.cfg.Timing.TransferTicks && !x.gone {
			r.endExport(x)
			return // the slice has changed; the others come with the next tick
		}
	}
}
