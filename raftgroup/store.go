package raftgroup

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/raftlog"
)

// Store runs the groups of a node. See the package comment.
type Store struct {
	cfg     Config
	log     *raftlog.Log
	out     Sender
	workers []*worker

	groups atomic.Pointer[groupSet]                 // replaced as a whole under mu
	peers  atomic.Pointer[map[ids.NodeID]peerState] // likewise

	counters counters
	live     bool // in Run

	mu       sync.Mutex
	removing map[ids.GroupID]bool // destroyed, not yet durably
	run      *running
	draining bool
	stopped  bool
	err      error

	drainLeft atomic.Int64
	drained   chan struct{} // closed when every group is handed over
}

// groupSet is never changed once published.
type groupSet struct {
	byID map[ids.GroupID]*Group
	list []*Group // ascending by ID
}

type peerState struct {
	up          bool
	incarnation uint64
}

// New makes a store without groups on a log.
func New(cfg Config, log *raftlog.Log, out Sender) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s := &Store{cfg: cfg, log: log, out: out, removing: map[ids.GroupID]bool{}, drained: make(chan struct{})}
	s.groups.Store(&groupSet{})
	s.peers.Store(&map[ids.NodeID]peerState{})
	for range cfg.Workers {
		s.workers = append(s.workers, newWorker(s))
	}
	return s, nil
}

// Workers is the number of workers, for callers of Pump.
func (s *Store) Workers() int { return len(s.workers) }

// Add brings log and machine state of a group together, makes its machine and starts it.
func (s *Store) Add(c GroupConfig) error {
	s.mu.Lock()
	taken := s.groups.Load().byID[c.ID] != nil || s.removing[c.ID]
	stopped := s.stopped
	s.mu.Unlock()
	switch {
	case stopped:
		return ErrStopped
	case taken:
		return fmt.Errorf("%w: %d", ErrGroupExists, c.ID)
	case c.Replica == 0 || c.Replica >= maxReplica:
		return fmt.Errorf("raftgroup: group %d: replica ID %d is out of range", c.ID, c.Replica)
	case c.Peers == nil || c.New == nil:
		return fmt.Errorf("raftgroup: group %d: Peers and New must be given", c.ID)
	}
	g, err := s.newGroup(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.groups.Load()
	if s.draining {
		return ErrStopped
	}
	if old.byID[c.ID] != nil {
		return fmt.Errorf("%w: %d", ErrGroupExists, c.ID)
	}
	s.publish(append(slices.Clone(old.list), g))
	g.mu.Lock()
	g.scheduleLocked()
	return nil
}

// publish replaces the set of groups; s.mu is held.
func (s *Store) publish(list []*Group) {
	slices.SortFunc(list, func(a, b *Group) int { return int(int64(a.id) - int64(b.id)) })
	set := &groupSet{byID: make(map[ids.GroupID]*Group, len(list)), list: list}
	for _, g := range list {
		set.byID[g.id] = g
	}
	s.groups.Store(set)
}

func (s *Store) newGroup(c GroupConfig) (*Group, error) {
	log, err := s.log.Group(c.ID)
	if err != nil {
		return nil, err
	}
	applied, err := log.Reconcile(raftlog.Start{
		Applied: uint64(c.Applied), Term: uint64(c.AppliedTerm),
		Conf: c.Initial.toRaft(), ConfIndex: uint64(c.Initial.Index),
	})
	if err != nil {
		return nil, err
	}
	g := &Group{
		s: s, w: s.workers[uint64(c.ID)%uint64(len(s.workers))], id: c.ID, replica: uint64(c.Replica), peers: c.Peers,
		logger: s.cfg.Logger.With("group", uint64(c.ID)), log: log, offers: map[uint64]int{},
		committed: log.HardState().Commit, delivered: uint64(c.Applied), suspect: true,
		newborn: applied != uint64(c.Applied),
	}
	g.published.Store(&Role{})
	g.rn, err = raft.NewRawNode(&raft.Config{
		ID: g.replica, Applied: applied, Storage: groupStorage{log, g},
		ElectionTick: s.cfg.ElectionTicks, HeartbeatTick: s.cfg.HeartbeatTicks,
		AsyncStorageWrites: true, PreVote: true, CheckQuorum: true,
		DisableProposalForwarding: true, StepDownOnRemoval: true,
		MaxSizePerMsg: s.cfg.MaxMessageBytes, MaxCommittedSizePerReady: s.cfg.MaxDeliverBytes,
		MaxUncommittedEntriesSize: s.cfg.MaxUncommittedBytes,
		MaxInflightMsgs:           s.cfg.MaxInflightMessages, MaxInflightBytes: s.cfg.MaxInflightBytes,
		Logger: raftLogger{g.logger},
	})
	if err != nil {
		return nil, fmt.Errorf("raftgroup: group %d: %w", c.ID, err)
	}
	cs, _ := log.Conf()
	g.alone = len(cs.GetVoters()) == 1 && isVoter(cs.GetVoters(), g.replica) && len(cs.GetVotersOutgoing()) == 0
	g.machine = c.New(g)
	if c.Quiesce {
		g.idler, _ = g.machine.(Idler)
	}
	return g, nil
}

// Remove stops a group and deletes its log; done is called when that is durable, on the log's goroutine. It reports whether
// there was such a group.
func (s *Store) Remove(id ids.GroupID, done func()) bool {
	s.mu.Lock()
	set := s.groups.Load()
	g := set.byID[id]
	if g == nil {
		s.mu.Unlock()
		return false
	}
	s.removing[id] = true
	s.publish(slices.DeleteFunc(slices.Clone(set.list), func(x *Group) bool { return x == g }))
	s.mu.Unlock()
	g.control(func(g *Group) {
		g.dead = true
		g.finishDrain()
		g.log.Destroy(destroyed{s, id, done})
	})
	return true
}

type destroyed struct {
	s    *Store
	id   ids.GroupID
	done func()
}

func (d destroyed) Durable() {
	d.s.mu.Lock()
	delete(d.s.removing, d.id)
	d.s.mu.Unlock()
	if d.done != nil {
		d.done()
	}
}

func (s *Store) group(id ids.GroupID) *Group { return s.groups.Load().byID[id] }

// Groups lists the groups, ascending.
func (s *Store) Groups() []ids.GroupID {
	list := s.groups.Load().list
	out := make([]ids.GroupID, len(list))
	for i, g := range list {
		out[i] = g.id
	}
	return out
}

// Enqueue gives an event to a group's machine, which gets it in Handle on its worker. Any goroutine may call it. It reports whether
// there is such a group; a group that is removed at the same time may drop the event.
func (s *Store) Enqueue(id ids.GroupID, event any) bool {
	g := s.group(id)
	if g == nil {
		return false
	}
	g.mu.Lock()
	g.in.events = append(g.in.events, event)
	g.scheduleLocked()
	return true
}

// Receive takes a letter of another node. The body must not be reused: entries share its memory. Letters for groups that
// do not exist here are dropped (they create nothing), as are those that find the inbox full. ErrBadMessage says that the letter
// cannot be decoded. Any goroutine may call it.
func (s *Store) Receive(from ids.NodeID, id ids.GroupID, body []byte) error {
	if len(body) == 0 {
		return fmt.Errorf("%w: empty", ErrBadMessage)
	}
	switch body[0] {
	case kindMessage:
		m, err := decodeMessage(body[1:])
		if err != nil {
			return fmt.Errorf("from node %s to group %d: %w", from, id, err)
		}
		s.take(id, inMessage{m: m, node: from}, len(body))
	case kindBeats:
		err := decodeBeats(body[1:], func(id ids.GroupID, m *raftpb.Message, note bool) {
			s.take(id, inMessage{m: m, node: from, note: note}, beatBytes)
		})
		if err != nil {
			return fmt.Errorf("from node %s: %w", from, err)
		}
	case kindQuiesce:
		q, err := decodeQuiesce(body[1:])
		if err != nil {
			return fmt.Errorf("from node %s to group %d: %w", from, id, err)
		}
		s.take(id, inMessage{quiesce: q, node: from}, len(body))
	default:
		return fmt.Errorf("%w: kind %#x from node %s", ErrBadMessage, body[0], from)
	}
	return nil
}

// beatBytes is what a heartbeat counts for in an inbox.
const beatBytes = 64

func (s *Store) take(id ids.GroupID, in inMessage, size int) {
	g := s.group(id)
	if g == nil || in.m != nil && in.m.GetTo() != g.replica || in.quiesce != nil && in.quiesce.to != g.replica {
		s.counters.MessagesDropped.Add(1)
		return
	}
	s.counters.MessagesReceived.Add(1)
	g.mu.Lock()
	if g.in.bytes+size > s.cfg.MaxInboxBytes && len(g.in.messages) > 0 {
		g.mu.Unlock()
		s.counters.MessagesDropped.Add(1)
		return
	}
	g.in.bytes += size
	g.in.messages = append(g.in.messages, in)
	g.scheduleLocked()
}

// Tick lets a tick pass for every group that is not quiesced. A worker that lags sees one
// tick where there were several: a node that was busy does not call an election for it.
func (s *Store) Tick() {
	for _, g := range s.groups.Load().list {
		if g.skipTick.Load() {
			continue
		}
		g.mu.Lock()
		g.in.tick = true
		g.scheduleLocked()
	}
	s.log.FlushLazy()
}

// PeerUp tells that a node can be reached and which start of its process it is. Letters of that incarnation
// are received after this.
func (s *Store) PeerUp(node ids.NodeID, incarnation uint64) {
	s.setPeer(node, peerState{up: true, incarnation: incarnation})
}

// PeerDown tells that a node cannot be reached.
func (s *Store) PeerDown(node ids.NodeID) {
	st, _ := s.peer(node)
	s.setPeer(node, peerState{incarnation: st.incarnation})
}

func (s *Store) setPeer(node ids.NodeID, st peerState) {
	s.mu.Lock()
	peers := map[ids.NodeID]peerState{node: st}
	for n, old := range *s.peers.Load() {
		if n != node {
			peers[n] = old
		}
	}
	s.peers.Store(&peers)
	s.mu.Unlock()
	for _, g := range s.groups.Load().list {
		g.control(func(g *Group) { g.peerChanged(node, st) })
	}
}

func (s *Store) peer(node ids.NodeID) (peerState, bool) {
	st, ok := (*s.peers.Load())[node]
	return st, ok
}

// Role is a group's role as its machine was last told. Any goroutine may ask.
func (s *Store) Role(id ids.GroupID) (Role, bool) {
	g := s.group(id)
	if g == nil {
		return Role{}, false
	}
	return *g.published.Load(), true
}

// Status has done called with a group's state, on its worker, which done must not hold up. It reports whether there is such
// a group.
func (s *Store) Status(id ids.GroupID, done func(GroupStatus)) bool {
	g := s.group(id)
	if g == nil {
		return false
	}
	g.control(func(g *Group) { done(g.status()) })
	return true
}

// Campaign has this node's replica of a group start an election.
func (s *Store) Campaign(id ids.GroupID) bool {
	g := s.group(id)
	if g == nil {
		return false
	}
	g.control(func(g *Group) {
		if !g.dead {
			g.Campaign()
		}
	})
	return true
}

// fail notes a fatal error of a group; the log has told its owner.
func (s *Store) fail(err error) {
	s.mu.Lock()
	s.err = errors.Join(s.err, err)
	s.mu.Unlock()
}
