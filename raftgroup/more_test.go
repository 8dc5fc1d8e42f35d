package raftgroup

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/cryptotest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/braidkv/braid/internal/ids"
	"github.com/braidkv/braid/storage/raftlog"
)

// TestRefusedQuiesce shows that a follower that stays awake wakes its leader at once, so that there is no election, and that the leader does
// not try again soon.
func TestRefusedQuiesce(t *testing.T) {
	w := quietSim(t, simParams{groups: 2, quiesce: true})
	w.mustConverge(10 * second)
	l := w.leader(1)
	f := w.node(1 + l.node%3).machines[1]
	f.g.idler = nil // has not been told that this group may quiesce
	term := l.role.Term
	w.run(10*second, nil)
	if l.g.quiet.quiesced || f.g.quiet.quiesced {
		t.Error("quiesced against the will of a follower")
	}
	if l.role.Term != term || !l.role.IsLeader {
		t.Errorf("election: term %d became %d", term, l.role.Term)
	}
	if n := w.node(l.node).store.Counters().Woken; n == 0 || n > 4 {
		t.Errorf("woken %d times", n)
	}
}

// TestQueries covers what a machine can ask its group.
func TestQueries(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 3, workers: 1})
	w.mustConverge(10 * second)
	l := w.leader(0)
	f := w.node(1 + l.node%3).machines[0]
	if !l.g.FollowersCaughtUp() || f.g.FollowersCaughtUp() {
		t.Error("FollowersCaughtUp")
	}
	if l.g.Role() != l.role || f.g.Role() != f.role || f.role.Leader != l.node {
		t.Errorf("%+v, %+v", l.role, f.role)
	}
	w.node(f.node).crash()
	w.propose(0)
	w.run(200*ms, nil)
	if l.g.FollowersCaughtUp() {
		t.Error("a dead follower is caught up")
	}
	// A transfer to it is begun, drops proposals, and is given up.
	w.node(l.node).store.Enqueue(0, transferEvent{f.node})
	w.run(100*ms, nil)
	if !l.g.Transferring() {
		t.Error("not transferring")
	}
	w.propose(0)
	w.run(100*ms, nil)
	if l.dropped != 1 {
		t.Errorf("%d proposals dropped", l.dropped)
	}
	w.run(3*second, nil)
	if l.g.Transferring() || !l.role.IsLeader {
		t.Errorf("transferring %v, %+v", l.g.Transferring(), l.role)
	}
	last := l.g.Delivered()
	w.propose(0)
	w.run(100*ms, nil)
	if l.g.Delivered() != last+1 || l.g.Committed() != last+1 || l.g.FirstIndex() != 2 {
		t.Errorf("delivered %d, committed %d, first %d", l.g.Delivered(), l.g.Committed(), l.g.FirstIndex())
	}
	s := w.node(l.node).store
	if s.Workers() != 1 || fmt.Sprint(s.Groups()) != "[0]" {
		t.Errorf("%d workers, groups %v", s.Workers(), s.Groups())
	}
	if s.Enqueue(7, nil) || s.Campaign(7) || s.Remove(7, nil) {
		t.Error("a group that is not there")
	}
	if _, ok := s.Role(7); ok {
		t.Error("role in a group that is not there")
	}
}

func TestValidate(t *testing.T) {
	err := Config{Workers: -1, QuiesceTicks: -2, ElectionTicks: 1, MaxMessageBytes: 64 << 20}.Validate()
	for _, want := range []string{"the node has no ID", "Workers", "QuiesceTicks", "ElectionTicks", "MaxInflightBytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing in %v", want, err)
		}
	}
	if err := (Config{Node: 1}).Validate(); err != nil {
		t.Error(err)
	}
	if _, err := New(Config{}, nil, nil); err == nil {
		t.Error("New takes a bad configuration")
	}
}

// TestAddRefusals shows which groups are not started.
func TestAddRefusals(t *testing.T) {
	w := quietSim(t, simParams{groups: 1, nodes: 3, workers: 1})
	s := w.node(1).store
	machine := func(*Group) Machine { return nil }
	for _, c := range []struct {
		c    GroupConfig
		want string
	}{
		{GroupConfig{ID: 0, Replica: 1, Peers: w.peers, New: machine}, "exists"},
		{GroupConfig{ID: 1, Peers: w.peers, New: machine}, "replica ID 0"},
		{GroupConfig{ID: 1, Replica: math.MaxUint64 - 1, Peers: w.peers, New: machine}, "out of range"},
		{GroupConfig{ID: 1, Replica: 1, New: machine}, "must be given"},
		{GroupConfig{ID: 1, Replica: 1, Peers: w.peers, New: machine, Applied: 5}, "no term"},
	} {
		if err := s.Add(c.c); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.c, err)
		}
	}
}

// TestUnreadableLog shows that a node that cannot read its log reports it and does not go on with the group.
func TestUnreadableLog(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	var broken errorfs.Toggle
	broken.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".sst") && op.Kind == errorfs.OpFileReadAt {
			return errors.New("injected")
		}
		return nil
	})
	fs := errorfs.Wrap(vfs.NewMem(), &broken)
	open := func(fatal func(error)) (*pebble.DB, *raftlog.Log, *Store) {
		cache := pebble.NewCache(1)
		defer cache.Unref()
		db, err := pebble.Open("log", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: panicLogger{}, Cache: cache})
		if err != nil {
			t.Fatal(err)
		}
		log, err := raftlog.Open(db, fatal, raftlog.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{Node: 1, Workers: 1}, log, nil)
		if err != nil {
			t.Fatal(err)
		}
		return db, log, s
	}
	var m *testMachine
	tr := newTruth()
	add := func(s *Store) {
		err := s.Add(GroupConfig{
			ID: 3, Replica: 1, Peers: func(ids.ReplicaID) ids.NodeID { return 0 }, Initial: ConfState{Voters: []ids.ReplicaID{1}},
			New: func(g *Group) Machine {
				m = &testMachine{g: g, node: 1, truth: tr, failf: t.Fatalf, trace: func(string, ...any) {}}
				return m
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	pump := func(s *Store, log *raftlog.Log) {
		for range 10 {
			s.Pump(0)
			_, _ = log.Pump()
		}
	}
	db, log, s := open(func(err error) { t.Error(err) })
	add(s)
	pump(s, log)
	for i := range 10 {
		s.Enqueue(3, proposeEvent{fmt.Sprint(i)})
	}
	pump(s, log)
	if m.st.index != 12 {
		t.Fatalf("%+v", m.st)
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	db.Close()

	var fatal []error
	db, log, s = open(func(err error) { fatal = append(fatal, err) })
	add(s)
	broken.On()
	pump(s, log)
	broken.Off()
	pump(s, log)
	if len(fatal) != 1 || !strings.Contains(fatal[0].Error(), "injected") || m.st.index > 1 {
		t.Errorf("%v, state %+v", fatal, m.st)
	}
	db.Close()
}
