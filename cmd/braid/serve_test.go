package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/braidkv/braid/node"
	braidpb "github.com/braidkv/braid/proto"
	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// fakeNode is a node that is ready, fails and stops when the test says so.
type fakeNode struct {
	pb.UnimplementedKVServer
	braidpb.UnimplementedOperatorServer
	ready   chan struct{}
	failed  chan error
	stopped chan struct{}
	stopErr error
	cfg     node.Config
}

func newFakeNode() *fakeNode {
	return &fakeNode{ready: make(chan struct{}), failed: make(chan error, 1), stopped: make(chan struct{})}
}

func (f *fakeNode) HasLeader() bool                       { return true }
func (f *fakeNode) IsLearner() bool                       { return false }
func (f *fakeNode) Alarms() []pb.AlarmType                { return nil }
func (f *fakeNode) ProbeRead(context.Context, bool) error { return nil }
func (f *fakeNode) ClusterVersion() string                { return "3.7.0" }
func (f *fakeNode) Ready() <-chan struct{}                { return f.ready }
func (f *fakeNode) Err() <-chan error                     { return f.failed }
func (f *fakeNode) Stop(context.Context) error            { close(f.stopped); return f.stopErr }
func (f *fakeNode) RegisterServices(r grpc.ServiceRegistrar) {
	pb.RegisterKVServer(r, f)
	braidpb.RegisterOperatorServer(r, f)
}

func (f *fakeNode) Metrics() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "braid_test", Help: "x"}))
	return r
}

func (f *fakeNode) Ranges(_ context.Context, r *braidpb.RangesRequest) (*braidpb.RangesResponse, error) {
	return &braidpb.RangesResponse{
		ClusterId: 0xcdf818194e3a8c32, MemberId: 0x8e9e05c52164694d, Position: 17, Revision: 5, OrderLeader: 0x8e9e05c52164694d,
		Ranges: []*braidpb.RangeStatus{
			{Id: 1, End: []byte("/registry/events/"), Generation: 1, Leader: 0x8e9e05c52164694d, Replicas: []uint64{0x8e9e05c52164694d, 2}, Seq: 3,
				Local: &braidpb.LocalReplica{Frontier: 17, AppliedSeq: 3, SizeBytes: 1536, Keys: 4, KeysCounted: r.CountKeys}},
			{Id: 2, Start: []byte("/registry/events/"), Generation: 2, Replicas: []uint64{2}},
		},
	}, nil
}

// rig runs the process with a fake node on in-memory sockets.
type rig struct {
	node    *fakeNode
	signals chan os.Signal
	status  chan int
	out     bytes.Buffer
	log     syncBuffer
	mu      sync.Mutex
	lis     map[string]*bufconn.Listener
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *syncBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

func start(args ...string) *rig {
	r := &rig{node: newFakeNode(), signals: make(chan os.Signal, 1), status: make(chan int, 1), lis: map[string]*bufconn.Listener{}}
	p := &process{
		signals: r.signals,
		start: func(_ context.Context, cfg node.Config) (server, error) {
			if cfg.DataDir == "used" {
				return nil, errors.New(`the data directory "used" is in use by another process`)
			}
			r.node.cfg = cfg
			return r.node, nil
		},
		listen: func(_, address string) (net.Listener, error) {
			if address == "127.0.0.1:99" {
				return nil, errors.New("address already in use")
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.lis[address] = bufconn.Listen(1 << 16)
			return r.lis[address], nil
		},
	}
	go func() { r.status <- run(args, nil, &r.out, &r.log, p) }()
	return r
}

func (r *rig) dial(ctx context.Context, address string) (net.Conn, error) {
	r.mu.Lock()
	l := r.lis[address]
	r.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("nobody listens at %s", address)
	}
	return l.DialContext(ctx)
}

func (r *rig) get(url string) string {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, a string) (net.Conn, error) { return r.dial(ctx, a) }}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestServe: ready line only when the node is ready; metrics before; a signal ends it well.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start("--name=n1", "--wal-dir=/x", "--listen-metrics-urls=http://127.0.0.1:3")
		synctest.Wait()
		const readyLine = `"msg":"ready to serve client requests"`
		if strings.Contains(r.log.String(), readyLine) {
			t.Error("ready before the node is")
		}
		if got := r.get("http://127.0.0.1:3/metrics"); !strings.Contains(got, "braid_test 0") || !strings.Contains(got, "go_goroutines") ||
			!strings.Contains(got, "grpc_server_handled_total") {
			t.Errorf("metrics: %s", got)
		}
		close(r.node.ready)
		synctest.Wait()
		if !strings.Contains(r.log.String(), readyLine) {
			t.Errorf("no ready line:\n%s", r.log.String())
		}
		if got := r.get("http://localhost:2379/health"); got != `{"health":"true","reason":""}` {
			t.Errorf("health: %s", got)
		}
		if r.node.cfg.Name != "n1" || r.node.cfg.DataDir != "n1.braid" || r.node.cfg.Logger == nil {
			t.Errorf("the node was given %+v", r.node.cfg)
		}
		r.signals <- syscall.SIGTERM
		if s := <-r.status; s != exitOK {
			t.Errorf("status %d", s)
		}
		<-r.node.stopped
		for _, line := range strings.Split(strings.TrimSpace(r.log.String()), "\n") {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Errorf("%v: %s", err, line)
			}
			for _, key := range []string{"level", "ts", "caller", "msg"} {
				if m[key] == nil {
					t.Errorf("a line without %s: %s", key, line)
				}
			}
		}
		for _, want := range []string{`"accepted, without effect in this version","flag":"wal-dir","value":"/x"`, `"starting a braid server","name":"n1"`} {
			if !strings.Contains(r.log.String(), want) {
				t.Errorf("the log has no %s:\n%s", want, r.log.String())
			}
		}
	})
}

func TestStopBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start()
		synctest.Wait()
		r.signals <- syscall.SIGINT
		if s := <-r.status; s != exitOK {
			t.Errorf("status %d", s)
		}
		<-r.node.stopped
	})
}

// TestStopIsQuick: a client's endless call does not hold the hand-over of leaderships up.
func TestStopIsQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start()
		close(r.node.ready)
		synctest.Wait()
		c, err := r.dial(t.Context(), "localhost:2379") // a connection that says nothing
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		began := time.Now()
		r.signals <- syscall.SIGTERM
		<-r.node.stopped
		if d := time.Since(began); d > drainTimeout {
			t.Errorf("the node was told to stop after %v", d)
		}
		if s := <-r.status; s != exitOK {
			t.Errorf("status %d", s)
		}
	})
}

func TestFailures(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		fail error
		want string
	}{
		{"data directory", []string{"--data-dir=used"}, nil, `starting: the data directory \"used\" is in use by another process`},
		{"port", []string{"--listen-client-urls=http://127.0.0.1:99", "--advertise-client-urls=http://127.0.0.1:99"}, nil, "http://127.0.0.1:99: address already in use"},
		{"node", nil, errors.New("disk gone"), "the node has failed: disk gone"},
		{"flags", []string{"--initial-ranges=x"}, nil, `"msg":"failed to verify flags","error":"--initial-ranges: unknown value`},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(test.args...)
				if test.fail != nil {
					r.node.failed <- test.fail
				}
				if s := <-r.status; s != exitFailed {
					t.Errorf("status %d", s)
				}
				if !strings.Contains(r.log.String(), test.want) {
					t.Errorf("the log does not say %s:\n%s", test.want, r.log.String())
				}
			})
		})
	}
}

func TestCommands(t *testing.T) {
	for _, test := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{[]string{"--version"}, 0, "etcd Version: 3.7.3\nGit SHA: ", ""},
		{[]string{"--help"}, 0, "--initial-cluster", ""},
		{[]string{"-h"}, 0, "without effect in this version:\n  --", ""},
		{[]string{"--nope"}, 2, "", "flag provided but not defined: -nope"},
		{[]string{"gateway"}, 2, "", `unknown command "gateway"`},
		{[]string{"ranges", "--nope"}, 2, "", "flag provided but not defined: -nope"},
		{[]string{"ranges", "stray"}, 2, "", `"stray" is not a valid flag`},
		{[]string{"ranges", "--help"}, 0, "Usage: braid ranges", ""},
	} {
		var out, errs bytes.Buffer
		s := run(test.args, nil, &out, &errs, &process{})
		if s != test.status || !strings.Contains(out.String(), test.stdout) || !strings.Contains(errs.String(), test.stderr) ||
			test.stdout == "" && out.Len() > 0 || test.stderr == "" && errs.Len() > 0 {
			t.Errorf("%v: status %d, stdout %q, stderr %q", test.args, s, out.String(), errs.String())
		}
	}
	var out bytes.Buffer
	run([]string{"--version", "--name=x"}, nil, &out, io.Discard, &process{})
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[2], "Go Version: go") || !strings.HasPrefix(lines[3], "Go OS/Arch: ") || !strings.HasPrefix(lines[4], "braid Version: ") {
		t.Errorf("the version is printed as %q", out.String())
	}
}

func TestRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start()
		close(r.node.ready)
		synctest.Wait()
		var out bytes.Buffer
		err := runRanges([]string{"--endpoints", "localhost:2379,http://localhost:2379,nowhere:1", "--keys"}, &out, io.Discard, r.dial)
		if err == nil || !strings.Contains(err.Error(), "asking nowhere:1 for its ranges") {
			t.Errorf("the error is %v", err)
		}
		want := `# localhost:2379: cluster cdf818194e3a8c32, member 8e9e05c52164694d, position 17, revision 5, order leader 8e9e05c52164694d
ID  START                END                  GEN  LEADER            REPLICAS            SIZE     KEYS  SEQ  APPLIED  FRONTIER
1   (first)              "/registry/events/"  1    8e9e05c52164694d  8e9e05c52164694d,2  1.5 KiB  4     3    3        17
2   "/registry/events/"  (last)               2    -                 2                   -        -     0    -        -
`
		want += "\n" + strings.Replace(want, "# localhost", "# http://localhost", 1)
		if out.String() != want {
			t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
		}
		r.signals <- syscall.SIGTERM
		<-r.status
	})
}
