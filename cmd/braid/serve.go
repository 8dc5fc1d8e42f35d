package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/braidkv/braid/clientapi"
	"github.com/braidkv/braid/node"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
)

// server is what the process needs of a node.
type server interface {
	clientapi.Health
	// ClusterVersion is "" until it is decided.
	ClusterVersion() string
	// Metrics are the node's; nil if it has none.
	Metrics() prometheus.Gatherer
	RegisterServices(grpc.ServiceRegistrar)
	// Ready is closed when clients can be served; for a new cluster, after there is a leader.
	Ready() <-chan struct{}
	// Err gives the error that the node cannot go on with.
	Err() <-chan error
	// Stop hands over what the node leads and ends it.
	Stop(context.Context) error
}

// How long stopping may take.
const (
	// drainTimeout is for calls under way before leaderships are handed over. Watches never end by themselves.
	drainTimeout = 100 * time.Millisecond
	// stopTimeout is for the node.
	stopTimeout = 5 * time.Second
)

// process is a server process with what it takes from its surroundings.
type process struct {
	start   func(context.Context, node.Config) (server, error)
	listen  func(network, address string) (net.Listener, error) // nil: package net
	signals <-chan os.Signal
	log     *slog.Logger
}

// run serves until a signal (nil) or a failure.
func (p *process) run(o *options) error {
	cfg := o.node
	cfg.Logger = p.log
	p.log.Info("starting a braid server", "name", cfg.Name, "data-dir", cfg.DataDir,
		"initial-cluster-state", cfg.InitialClusterState, "initial-cluster-token", cfg.InitialClusterToken,
		"listen-peer-urls", cfg.ListenPeerURLs, "listen-client-urls", cfg.ListenClientURLs, "advertise-client-urls", cfg.AdvertiseClientURLs,
		"heartbeat-interval", cfg.HeartbeatInterval, "election-timeout", cfg.ElectionTimeout, "initial-split-keys", len(cfg.InitialSplitKeys))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n, err := p.start(ctx, cfg)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	api, err := clientapi.Listen(p.clientConfig(o, n))
	if err != nil {
		return errors.Join(err, p.stop(n))
	}
	defer api.Close()
	err = p.wait(n, api)
	drain, cancelDrain := context.WithTimeout(ctx, drainTimeout)
	api.Drain(drain)
	cancelDrain()
	return errors.Join(err, p.stop(n))
}

func (p *process) clientConfig(o *options, n server) clientapi.Config {
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	gatherers := prometheus.Gatherers{process}
	if m := n.Metrics(); m != nil {
		gatherers = append(gatherers, m)
	}
	return clientapi.Config{
		ClientURLs: o.node.ListenClientURLs, HTTPURLs: o.httpURLs, MetricsURLs: o.metricsURLs,
		MaxRequestBytes: o.node.MaxRequestBytes, MaxConcurrentStreams: o.maxConcurrentStreams,
		KeepAliveMinTime: o.keepAliveMinTime, KeepAliveInterval: o.keepAliveInterval, KeepAliveTimeout: o.keepAliveTimeout,
		RequestTimeout: 5*time.Second + 2*o.node.ElectionTimeout, // etcd's
		Pprof:          o.pprof,
		Register:       n.RegisterServices, Health: n, ClusterVersion: n.ClusterVersion, Gatherer: gatherers,
		Listen: p.listen, Logger: p.log,
	}
}

// wait serves once the node is ready, until something ends it.
func (p *process) wait(n server, api *clientapi.Server) error {
	ready := n.Ready()
	for {
		select {
		case <-ready:
			api.Serve()
			ready = nil
		case s := <-p.signals:
			p.log.Info("received signal; shutting down", "signal", s.String())
			return nil
		case err := <-n.Err():
			return fmt.Errorf("the node has failed: %w", err)
		case err := <-api.Err():
			return err
		}
	}
}

func (p *process) stop(n server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	return nil
}
