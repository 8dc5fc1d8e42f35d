package peertest

import (
	"sync"
	"testing"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// Recorder is a Handler that keeps what it is told and fails the test when calls come in an order that they must not have.
type Recorder struct {
	t    *testing.T
	self ids.NodeID

	mu      sync.Mutex
	up      map[ids.NodeID]uint64
	letters map[ids.NodeID][]*braidpb.Letter
	busy    map[ids.NodeID]bool
	changes int
	blocked chan struct{}
}

// NewRecorder makes the handler of a node.
func NewRecorder(t *testing.T, self ids.NodeID) *Recorder {
	return &Recorder{
		t: t, self: self,
		up: map[ids.NodeID]uint64{}, letters: map[ids.NodeID][]*braidpb.Letter{}, busy: map[ids.NodeID]bool{},
	}
}

// enter checks that one call at a time concerns a peer.
func (r *Recorder) enter(node ids.NodeID) {
	if r.busy[node] {
		r.t.Errorf("node %s: two calls at a time concern node %s", r.self, node)
	}
	r.busy[node] = true
}

// Receive keeps a letter.
func (r *Recorder) Receive(from ids.NodeID, l *braidpb.Letter) {
	r.mu.Lock()
	r.enter(from)
	if r.up[from] == 0 {
		r.t.Errorf("node %s: a letter of node %s, which is not up", r.self, from)
	}
	wait := r.blocked
	r.mu.Unlock()
	if wait != nil {
		<-wait
	}
	r.mu.Lock()
	r.letters[from] = append(r.letters[from], l)
	r.busy[from] = false
	r.mu.Unlock()
}

// Up notes a node's incarnation.
func (r *Recorder) Up(node ids.NodeID, incarnation uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enter(node)
	if r.up[node] != 0 {
		r.t.Errorf("node %s: node %s is up twice", r.self, node)
	}
	if incarnation == 0 {
		r.t.Errorf("node %s: node %s is up without an incarnation", r.self, node)
	}
	r.up[node] = incarnation
	r.changes++
	r.busy[node] = false
}

// Down notes that a node is gone.
func (r *Recorder) Down(node ids.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enter(node)
	if r.up[node] == 0 {
		r.t.Errorf("node %s: node %s is down without having been up", r.self, node)
	}
	r.up[node] = 0
	r.changes++
	r.busy[node] = false
}

// Incarnation is that of a node that is up; 0 if it is down.
func (r *Recorder) Incarnation(node ids.NodeID) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.up[node]
}

// Changes counts calls of Up and Down.
func (r *Recorder) Changes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changes
}

// Count is the number of letters of a node.
func (r *Recorder) Count(from ids.NodeID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.letters[from])
}

// Letters returns those of a node so far.
func (r *Recorder) Letters(from ids.NodeID) []*braidpb.Letter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*braidpb.Letter(nil), r.letters[from]...)
}

// Block makes Receive wait until the returned function is called, which may be called several times.
func (r *Recorder) Block() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{})
	r.blocked = c
	return sync.OnceFunc(func() {
		r.mu.Lock()
		r.blocked = nil
		r.mu.Unlock()
		close(c)
	})
}
