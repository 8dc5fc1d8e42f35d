package ranges

import (
	"errors"

	"github.com/braidkv/braid/internal/ids"
)

// Replica is one replica of a range. See the package comment.
type Replica struct{}

// New loads a replica's durable state.
func New(c Config, h Host) (*Replica, StartInfo, error) {
	return nil, StartInfo{}, errors.ErrUnsupported
}

// Frontier is the replica's; anybody may use it.
func (r *Replica) Frontier() *Frontier { return nil }

// FlushMark is how far what the replica has committed to the data engine goes; anybody may call it. After the engine has flushed, the mark
// comes back as a Flushed event.
func (r *Replica) FlushMark() FlushMark { return FlushMark{} }

// Handle takes events; see event.go.
func (r *Replica) Handle(events []any) {}

// Deliver takes over committed entries, ascending, each once in the life of the process, from StartInfo.Applied+1 on.
func (r *Replica) Deliver(ents []Entry) {}

// Role tells of a change of leadership or term, before entries of it are delivered and events handled in it.
func (r *Replica) Role(role Role) {}

// Tick lets a tick pass.
func (r *Replica) Tick() {}

// Flush ends a pass: it applies what can be applied, in one data batch, and answers clients.
func (r *Replica) Flush() {}

// Idle tells that the replica needs no ticks until something comes for it.
func (r *Replica) Idle() bool { return false }

// SnapshotMeta describes a state that the replica can hand out to a follower that the log cannot help.
func (r *Replica) SnapshotMeta() (SnapMeta, bool) { return SnapMeta{}, false }

// Restore fetches and installs a state of the meta's index or a later one, then calls done with what it is, or
// with nil if it could not be had.
func (r *Replica) Restore(from ids.NodeID, meta SnapMeta, done func(*SnapMeta)) {}
