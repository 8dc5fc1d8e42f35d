package clientapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// fakeNode is a node's state as the checks see it.
type fakeNode struct {
	mu                    sync.Mutex
	leaderless, isLearner bool
	alarms                []pb.AlarmType
	serializable, linear  error
}

func (f *fakeNode) HasLeader() bool        { f.mu.Lock(); defer f.mu.Unlock(); return !f.leaderless }
func (f *fakeNode) IsLearner() bool        { f.mu.Lock(); defer f.mu.Unlock(); return f.isLearner }
func (f *fakeNode) Alarms() []pb.AlarmType { f.mu.Lock(); defer f.mu.Unlock(); return f.alarms }
func (f *fakeNode) ProbeRead(ctx context.Context, serializable bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if serializable {
		return f.serializable
	}
	return f.linear
}

// kv is a service with a call that ends and one that does not.
type kv struct{ pb.UnimplementedKVServer }

func (kv) Put(_ context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if len(r.Key) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no key")
	}
	return &pb.PutResponse{Header: &pb.ResponseHeader{Revision: int64(len(r.Value))}}, nil
}

func (kv) Range(ctx context.Context, _ *pb.RangeRequest) (*pb.RangeResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// rig is a server on in-memory sockets.
type rig struct {
	*Server
	t    *testing.T
	node fakeNode
	log  strings.Builder
	mu   sync.Mutex
	lis  map[string]*bufconn.Listener
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, lis: map[string]*bufconn.Listener{}}
	cfg := Config{
		ClientURLs: []string{"http://client:1"},
		Register:   func(g grpc.ServiceRegistrar) { pb.RegisterKVServer(g, kv{}) },
		Health:     &r.node,
		Listen: func(_, address string) (net.Listener, error) {
			if address == "taken:1" {
				return nil, errors.New("address already in use")
			}
			l := bufconn.Listen(1 << 16)
			r.mu.Lock()
			r.lis[address] = l
			r.mu.Unlock()
			return l, nil
		},
		Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.Server, err = Listen(cfg); err != nil {
		t.Fatal(err)
	}
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

func (r *rig) grpcClient(address string) *grpc.ClientConn {
	c, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(r.dial))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// get asks over HTTP and returns status and body.
func (r *rig) get(method, url string) (int, string) {
	r.t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, a string) (net.Conn, error) { return r.dial(ctx, a) }}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestBothProtocolsOnOnePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.ClusterVersion = func() string { return "3.7.0" } })
		defer r.Close()
		r.Serve()
		r.Serve()
		if n := strings.Count(r.log.String(), "ready to serve client requests"); n != 1 {
			t.Errorf("the ready line is printed %d times", n)
		}
		conn := r.grpcClient("client:1")
		defer conn.Close()
		resp, err := pb.NewKVClient(conn).Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 1<<20)})
		if err != nil || resp.Header.Revision != 1<<20 {
			t.Errorf("put: %v, %v", resp, err)
		}
		check, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || check.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("gRPC health: %v, %v", check, err)
		}
		code, body := r.get("GET", "http://client:1/version")
		if code != 200 || body != `{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}` {
			t.Errorf("/version: %d %s", code, body)
		}
		if code, _ := r.get("POST", "http://client:1/version"); code != 405 {
			t.Errorf("POST /version: %d", code)
		}
		if code, _ := r.get("GET", "http://client:1/debug/pprof/"); code != 404 {
			t.Errorf("pprof without its flag: %d", code)
		}
	})
}

func TestSplitHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) {
			c.HTTPURLs, c.MetricsURLs = []string{"http://http:1"}, []string{"http://metrics:1"}
			c.Pprof = true
		})
		defer r.Close()
		// Metrics and health answer before the node is ready.
		r.node.leaderless = true
		if code, body := r.get("GET", "http://metrics:1/health"); code != 503 || !strings.Contains(body, "RAFT NO LEADER") {
			t.Errorf("health of a node that is not ready: %d %s", code, body)
		}
		r.Serve()
		r.node.mu.Lock()
		r.node.leaderless = false
		r.node.mu.Unlock()
		for url, want := range map[string]int{
			"http://http:1/health": 200, "http://http:1/version": 200, "http://http:1/metrics": 200, "http://http:1/debug/pprof/cmdline": 200,
			"http://metrics:1/metrics": 200, "http://metrics:1/readyz": 200, "http://metrics:1/version": 404,
		} {
			if code, body := r.get("GET", url); code != want {
				t.Errorf("%s: %d %s, want %d", url, code, body, want)
			}
		}
		if code, _ := r.get("GET", "http://client:1/health"); code != 0 {
			t.Errorf("HTTP on the gRPC port: %d", code)
		}
		conn := r.grpcClient("client:1")
		defer conn.Close()
		if _, err := pb.NewKVClient(conn).Put(t.Context(), &pb.PutRequest{Key: []byte("k")}); err != nil {
			t.Error(err)
		}
	})
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer r.Close()
		r.Serve()
		failed := errors.New("etcdserver: request timed out")
		for _, test := range []struct {
			name string
			node *fakeNode
			path string
			code int
			body string
		}{
			{"healthy", &fakeNode{}, "/health", 200, `{"health":"true","reason":""}`},
			{"no leader", &fakeNode{leaderless: true, linear: failed}, "/health", 503, `{"health":"false","reason":"RAFT NO LEADER"}` + "\n"},
			{"no leader, local", &fakeNode{leaderless: true, linear: failed}, "/health?serializable=true", 200, `{"health":"true","reason":""}`},
			{"no read", &fakeNode{linear: failed}, "/health", 503, `{"health":"false","reason":"RANGE ERROR:etcdserver: request timed out"}` + "\n"},
			{"no space", &fakeNode{alarms: []pb.AlarmType{pb.AlarmType_NOSPACE}}, "/health", 503, `{"health":"false","reason":"ALARM NOSPACE"}` + "\n"},
			{"no space, excluded", &fakeNode{alarms: []pb.AlarmType{pb.AlarmType_NOSPACE}}, "/health?exclude=NOSPACE", 200, `{"health":"true","reason":""}`},
			{"live", &fakeNode{leaderless: true, linear: failed}, "/livez", 200, "ok\n"},
			{"live, verbose", &fakeNode{}, "/livez?verbose", 200, "[+]serializable_read ok\nok\n"},
			{"not live", &fakeNode{serializable: failed}, "/livez", 503, "[-]serializable_read failed: etcdserver: request timed out\n\n"},
			{"ready", &fakeNode{}, "/readyz?verbose", 200, "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n"},
			{"not ready", &fakeNode{linear: failed}, "/readyz", 503, "[+]data_corruption ok\n[+]serializable_read ok\n[-]linearizable_read failed: etcdserver: request timed out\n[+]non_learner ok\n\n"},
			{"excluded", &fakeNode{linear: failed}, "/readyz?exclude=linearizable_read&exclude=nonsense", 200, "ok\n"},
			{"one check", &fakeNode{linear: failed}, "/readyz/serializable_read", 200, "ok\n"},
			{"one failing check", &fakeNode{linear: failed}, "/readyz/linearizable_read", 503, "[-]linearizable_read failed: etcdserver: request timed out\n\n"},
			{"learner", &fakeNode{isLearner: true}, "/readyz/non_learner", 503, "[-]non_learner failed: not supported for learner\n\n"},
			{"corrupt", &fakeNode{alarms: []pb.AlarmType{pb.AlarmType_CORRUPT}}, "/readyz/data_corruption", 503, "[-]data_corruption failed: alarm activated: CORRUPT\n\n"},
		} {
			r.node.mu.Lock()
			r.node.leaderless, r.node.isLearner, r.node.alarms = test.node.leaderless, test.node.isLearner, test.node.alarms
			r.node.serializable, r.node.linear = test.node.serializable, test.node.linear
			r.node.mu.Unlock()
			code, body := r.get("GET", "http://client:1"+test.path)
			if code != test.code || body != test.body {
				t.Errorf("%s: %s answers %d %q, want %d %q", test.name, test.path, code, body, test.code, test.body)
			}
		}
		if code, _ := r.get("POST", "http://client:1/readyz"); code != 405 {
			t.Errorf("POST /readyz: %d", code)
		}
		_, body := r.get("GET", "http://client:1/metrics")
		for _, want := range []string{
			"etcd_server_health_success 3", "etcd_server_health_failures 3",
			`etcd_server_healthcheck{name="non_learner",type="readyz"} 0`,
			`etcd_server_healthchecks_total{name="serializable_read",status="error",type="livez"} 1`,
		} {
			if !strings.Contains(body, want+"\n") {
				t.Errorf("/metrics has no line %q", want)
			}
		}
		if !strings.Contains(r.log.String(), "nonsense") {
			t.Error("the log does not name the check that does not exist")
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := prometheus.NewRegistry()
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "etcd_mvcc_put_total", Help: "x"})
		c.Add(3)
		own.MustRegister(c)
		r := newRig(t, func(c *Config) { c.Gatherer = own })
		defer r.Close()
		r.Serve()
		conn := r.grpcClient("client:1")
		defer conn.Close()
		for _, key := range []string{"a", "b", ""} {
			_, err := pb.NewKVClient(conn).Put(t.Context(), &pb.PutRequest{Key: []byte(key)})
			if (err != nil) != (key == "") {
				t.Errorf("put %q: %v", key, err)
			}
		}
		_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "x"})
		if status.Code(err) != codes.NotFound {
			t.Error(err)
		}
		_, body := r.get("GET", "http://client:1/metrics")
		for _, want := range []string{
			"etcd_mvcc_put_total 3",
			`grpc_server_started_total{grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 3`,
			`grpc_server_handled_total{grpc_code="OK",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 2`,
			`grpc_server_handled_total{grpc_code="InvalidArgument",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1`,
			`grpc_server_msg_sent_total{grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"} 2`,
			`grpc_server_msg_received_total{grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 0`,
		} {
			if !strings.Contains(body, want+"\n") {
				t.Errorf("/metrics has no line %q", want)
			}
		}
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.MaxRequestBytes = 1000 })
		defer r.Close()
		r.Serve()
		conn := r.grpcClient("client:1")
		defer conn.Close()
		if _, err := pb.NewKVClient(conn).Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, grpcOverhead)}); err != nil {
			t.Errorf("gRPC refuses what only the server itself may refuse: %v", err)
		}
		_, err := pb.NewKVClient(conn).Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: make([]byte, grpcOverhead+1000)})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a message above the limit: %v", err)
		}
	})
}

// TestClose: Drain waits for calls and leaves them alone when its time is up; Close ends them; nothing is left.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.Serve()
		conn := r.grpcClient("client:1")
		defer conn.Close()
		ended := make(chan error, 1)
		go func() {
			_, err := pb.NewKVClient(conn).Range(context.Background(), &pb.RangeRequest{})
			ended <- err
		}()
		silent, err := r.dial(t.Context(), "client:1") // says nothing
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		r.Drain(ctx)
		if d := time.Since(began); d != 100*time.Millisecond {
			t.Errorf("Drain took %v", d)
		}
		select {
		case err := <-ended:
			t.Errorf("the call ended by itself: %v", err)
		default:
		}
		if c, err := r.dial(t.Context(), "client:1"); err == nil {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a draining server takes connections")
			}
			c.Close()
		}
		r.Close()
		if err := <-ended; status.Code(err) != codes.Unavailable {
			t.Errorf("the call ended with %v", err)
		}
		r.Close()
		r.Serve() // after Close: nothing
		select {
		case err := <-r.Err():
			t.Errorf("closing is reported as a failure: %v", err)
		default:
		}
	})
}

func TestDrainWithoutCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.Serve()
		conn := r.grpcClient("client:1")
		defer conn.Close()
		if _, err := pb.NewKVClient(conn).Put(t.Context(), &pb.PutRequest{Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		r.Drain(ctx)
		if d := time.Since(began); d >= time.Second {
			t.Errorf("Drain of an idle server took %v", d)
		}
		r.Close()
	})
}

func TestSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer r.Close()
		r.Serve()
		for _, begin := range []string{"", "P", "PRI"} {
			c, err := r.dial(t.Context(), "client:1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, begin); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("an answer to nothing")
			}
			if d := time.Since(began); d < lookTimeout || d > 2*lookTimeout {
				t.Errorf("a connection that stops after %q is closed after %v", begin, d)
			}
			c.Close()
		}
		// In pieces it is still a request.
		c, err := r.dial(t.Context(), "client:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, piece := range []string{"G", "ET /version HTTP/1.0\r\n", "\r\n"} {
			io.WriteString(c, piece)
			synctest.Wait()
		}
		b, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(b), "HTTP/1.0 200") {
			t.Errorf("the answer to a request in pieces is %q, error %v", b, err)
		}
	})
}

func TestListenFaults(t *testing.T) {
	listen := func(_, address string) (net.Listener, error) {
		if address == "taken:1" {
			return nil, errors.New("address already in use")
		}
		return bufconn.Listen(1), nil
	}
	_, err := Listen(Config{
		ClientURLs: []string{"http://ok:1", "https://tls:1", "http://taken:1"}, MetricsURLs: []string{"ftp://x:1"},
		Health: &fakeNode{}, Listen: listen,
	})
	for _, want := range []string{"https://tls:1: TLS is not supported", "http://taken:1: address already in use", `unknown scheme "ftp"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the faults do not name %q: %v", want, err)
		}
	}
	if _, err := Listen(Config{Listen: listen}); err == nil {
		t.Error("a server without anybody to ask for health")
	}
}

// brokenListener fails after a passing error.
type brokenListener struct {
	net.Listener
	errs []error
}

type passing struct{ error }

func (passing) Temporary() bool { return true }

func (b *brokenListener) Accept() (net.Conn, error) {
	err := b.errs[0]
	b.errs = b.errs[1:]
	return nil, err
}

func TestAcceptErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) {
			c.Listen = func(string, string) (net.Listener, error) {
				return &brokenListener{bufconn.Listen(1), []error{passing{errors.New("too many open files")}, errors.New("device gone")}}, nil
			}
		})
		defer r.Close()
		r.Serve()
		if err := <-r.Err(); err == nil || !strings.Contains(err.Error(), "http://client:1: device gone") {
			t.Errorf("the failure is %v", err)
		}
	})
}

func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	url := "unix://" + dir + "/braid.sock"
	for range 2 { // the second time over the file that the first leaves behind
		s, err := Listen(Config{ClientURLs: []string{url}, Health: &fakeNode{}})
		if err != nil {
			t.Fatal(err)
		}
		s.client[0].lis.(*net.UnixListener).SetUnlinkOnClose(false)
		s.Serve()
		c, err := net.Dial("unix", dir+"/braid.sock")
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "GET /version HTTP/1.0\r\n\r\n")
		if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.0 200") {
			t.Errorf("%q, %v", b, err)
		}
		c.Close()
		s.Close()
	}
}
