// Package clientapi is the port that clients talk to: gRPC and HTTP/1.1 on the same listeners, told apart by the first
// bytes of each connection. Over HTTP it answers /version, /health, /livez, /readyz and /metrics as etcd does. It knows no
// etcd service itself: Config.Register adds them.
//
// The life of a Server: Listen binds all sockets (a port in use is found at once; clients that connect wait in the kernel's queue),
// Serve starts to answer, Drain stops taking new work, Close ends everything. Listeners for metrics answer
// from Listen on, so that probes see a node that is not ready.
//
// Goroutines, all gone when Close returns: one accepting on each listener, one for each connection until its kind is
// known, and those of package grpc and net/http.
package clientapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// Config says where to listen and what to serve. Zero values of limits and times stand for etcd's defaults.
type Config struct {
	// ClientURLs serve gRPC, and HTTP too unless HTTPURLs are given. MetricsURLs serve /metrics and the health checks only.
	ClientURLs, HTTPURLs, MetricsURLs []string

	// MaxRequestBytes bounds a request; gRPC takes 512 KiB more, for what is around it (default 1.5 MiB).
	MaxRequestBytes uint
	// MaxConcurrentStreams bounds the calls under way on one connection (default: no bound).
	MaxConcurrentStreams uint32
	// KeepAliveMinTime is how often a client may ping (default 5 s). After KeepAliveInterval without activity (default 2 h) the
	// server pings a client, which has KeepAliveTimeout (default 20 s) to answer.
	KeepAliveMinTime, KeepAliveInterval, KeepAliveTimeout time.Duration
	// RequestTimeout bounds the read of a /health check (default 7 s).
	RequestTimeout time.Duration
	// Pprof serves /debug/pprof/ over HTTP.
	Pprof bool

	// Register adds the gRPC services.
	Register func(grpc.ServiceRegistrar)
	// Health is asked by /health, /livez and /readyz, from any goroutine, also before the node is ready.
	Health Health
	// ClusterVersion is asked by /version; "" says that it is not decided yet.
	ClusterVersion func() string
	// Gatherer is what /metrics prints, beside the server's own metrics. It may be nil.
	Gatherer prometheus.Gatherer

	// Listen binds a socket (default: package net).
	Listen func(network, address string) (net.Listener, error)
	Logger *slog.Logger
}

// grpcOverhead is what a gRPC message may have beyond the largest request, as in etcd.
const grpcOverhead = 512 * 1024

func (c *Config) setDefaults() {
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = 1.5 * 1024 * 1024
	}
	if c.MaxConcurrentStreams == 0 {
		c.MaxConcurrentStreams = math.MaxUint32
	}
	for p, d := range map[*time.Duration]time.Duration{
		&c.KeepAliveMinTime: 5 * time.Second, &c.KeepAliveInterval: 2 * time.Hour,
		&c.KeepAliveTimeout: 20 * time.Second, &c.RequestTimeout: 7 * time.Second,
	} {
		if *p == 0 {
			*p = d
		}
	}
	if c.ClusterVersion == nil {
		c.ClusterVersion = func() string { return "" }
	}
	if c.Register == nil {
		c.Register = func(grpc.ServiceRegistrar) {}
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Server serves clients. Its methods may be called from any goroutine.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	grpc    *grpc.Server
	health  *health.Server
	http    *http.Server // the client API over HTTP
	probes  *http.Server // the part of it for MetricsURLs

	client, web, metricsOnly []bound
	errc                     chan error
	wg                       sync.WaitGroup

	mu        sync.Mutex
	serving   bool
	draining  bool
	splitters []*splitter
	closers   []net.Listener // of client and web
}

// Listen binds all sockets. The metrics listeners answer from now on, the others after Serve.
func Listen(cfg Config) (*Server, error) {
	cfg.setDefaults()
	s := &Server{cfg: cfg, log: cfg.Logger, metrics: newMetrics(), errc: make(chan error, 1)}
	if cfg.Health == nil {
		return nil, errors.New("clientapi: nobody to ask for health")
	}
	var errs []error
	for _, set := range []struct {
		urls []string
		to   *[]bound
	}{{cfg.ClientURLs, &s.client}, {cfg.HTTPURLs, &s.web}, {cfg.MetricsURLs, &s.metricsOnly}} {
		for _, u := range set.urls {
			b, err := bind(cfg.Listen, u)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			*set.to = append(*set.to, b)
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, b := range s.all() {
			b.lis.Close()
		}
		return nil, err
	}
	for _, b := range append(s.client[:len(s.client):len(s.client)], s.web...) {
		s.closers = append(s.closers, b.lis)
	}
	s.grpc = s.newGRPC()
	s.http = newHTTPServer(s.mux(true))
	s.probes = newHTTPServer(s.mux(false))
	for _, b := range s.metricsOnly {
		s.log.Info("serving metrics", "address", b.url)
		s.wg.Go(func() { s.fail(b.url, s.probes.Serve(b.lis)) })
	}
	return s, nil
}

func (s *Server) all() []bound {
	return append(append(append([]bound(nil), s.client...), s.web...), s.metricsOnly...)
}

// Connection parameters of the client port.
const (
	// windowBytes is what a client may send of one stream before it is read. Static, so that gRPC does not probe for the bandwidth
	// with pings; a request of the usual limit fits.
	windowBytes = 2 << 20
	// connWindowBytes is the same for all streams of a connection.
	connWindowBytes = 8 << 20
	// callWorkers goroutines run calls one after the other, which saves growing a new stack for each call (about a tenth of what
	// gRPC costs); further calls, and those that a long stream keeps from a worker, get goroutines of their own. Many more
	// workers cost more than they save: they take turns, and their stacks fall out of the processor's cache.
	callWorkers = 64
)

func (s *Server) newGRPC() *grpc.Server {
	c := &s.cfg
	g := grpc.NewServer(
		grpc.MaxRecvMsgSize(int(min(uint64(c.MaxRequestBytes)+grpcOverhead, math.MaxInt32))),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(c.MaxConcurrentStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: c.KeepAliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: c.KeepAliveInterval, Timeout: c.KeepAliveTimeout}),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(connWindowBytes),
		grpc.NumStreamWorkers(callWorkers),
		grpc.UnaryInterceptor(s.metrics.unary),
		grpc.StreamInterceptor(s.metrics.stream),
	)
	c.Register(g)
	s.health = health.NewServer()
	healthpb.RegisterHealthServer(g, s.health)
	s.metrics.addServices(g.GetServiceInfo())
	return g
}

// Serve starts to answer on the client listeners and prints etcd's ready line for each. It returns at once; a second
// call does nothing.
func (s *Server) Serve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving || s.draining {
		return
	}
	s.serving = true
	split := len(s.web) > 0
	traffic := "grpc+http"
	if split {
		traffic = "grpc"
	}
	for _, b := range s.client {
		s.announce(b, traffic)
		if split {
			s.wg.Go(func() { s.fail(b.url, s.grpc.Serve(b.lis)) })
			continue
		}
		sp := newSplitter(b.lis)
		s.splitters = append(s.splitters, sp)
		s.wg.Go(func() { s.fail(b.url, sp.run()) })
		s.wg.Go(func() { s.fail(b.url, s.grpc.Serve(sp.grpc)) })
		s.wg.Go(func() { s.fail(b.url, s.http.Serve(sp.http)) })
	}
	for _, b := range s.web {
		s.announce(b, "http")
		s.wg.Go(func() { s.fail(b.url, s.http.Serve(b.lis)) })
	}
}

func (s *Server) announce(b bound, traffic string) {
	s.log.Info("ready to serve client requests")
	s.log.Info("serving client traffic insecurely; this is strongly discouraged!", "traffic", traffic, "address", b.lis.Addr().String())
}

// fail reports that serving ended, unless it was meant to.
func (s *Server) fail(url string, err error) {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if err == nil || draining || errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return
	}
	select {
	case s.errc <- fmt.Errorf("serving clients on %s: %w", url, err):
	default: // one is enough to stop the process
	}
}

// Err gives the first error that ended a listener other than by Drain or Close.
func (s *Server) Err() <-chan error { return s.errc }

// Addrs are the addresses of the client listeners.
func (s *Server) Addrs() []net.Addr {
	var out []net.Addr
	for _, b := range s.client {
		out = append(out, b.lis.Addr())
	}
	return out
}

// Drain takes no more connections, tells gRPC clients to go elsewhere and waits for calls to end, until the context does.
// Calls under way go on then: Close ends them. The metrics listeners still answer.
func (s *Server) Drain(ctx context.Context) {
	s.mu.Lock()
	first := !s.draining
	s.draining = true
	splitters := s.splitters
	s.mu.Unlock()
	if !first {
		return
	}
	s.health.Shutdown()
	for _, l := range s.closers {
		l.Close()
	}
	for _, sp := range splitters {
		sp.close()
	}
	done := make(chan struct{})
	s.wg.Go(func() { // ended by Close at the latest: Stop ends GracefulStop
		defer close(done)
		s.grpc.GracefulStop()
	})
	s.http.Shutdown(ctx)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Close ends all connections and returns when nothing of the server runs any more.
func (s *Server) Close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Drain(ctx)
	s.grpc.Stop()
	s.http.Close()
	s.probes.Close()
	for _, b := range s.metricsOnly {
		b.lis.Close()
	}
	s.mu.Lock()
	splitters := s.splitters
	s.mu.Unlock()
	for _, sp := range splitters {
		sp.wait()
	}
	s.wg.Wait()
}
