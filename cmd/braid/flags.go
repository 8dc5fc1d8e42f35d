package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/braidkv/braid/internal/cluster"
	"github.com/braidkv/braid/internal/logjson"
	"github.com/braidkv/braid/node"
)

// Defaults, as etcd's but for the data directory's name.
const (
	defaultName      = "default"
	defaultPeerURL   = "http://localhost:2380"
	defaultClientURL = "http://localhost:2379"
	defaultToken     = "etcd-cluster"
	envPrefix        = "ETCD_"
)

// options is a command line, with the environment, made into configuration.
type options struct {
	node node.Config

	httpURLs, metricsURLs                                 []string
	maxConcurrentStreams                                  uint32
	keepAliveMinTime, keepAliveInterval, keepAliveTimeout time.Duration
	pprof                                                 bool
	logLevel                                              slog.Level

	version bool
	// notices are what is to be logged about the flags, once there is a log.
	notices []notice
}

type notice struct {
	level slog.Level
	msg   string
	args  []any
}

func (o *options) note(level slog.Level, msg string, args ...any) {
	o.notices = append(o.notices, notice{level, msg, args})
}

// usageError is an error in the form of the command line, for which etcd exits with status 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// raw holds values as the flags give them, before they depend on each other.
type raw struct {
	name, dataDir                                       string
	listenClient, advertiseClient                       string
	listenPeer, advertisePeer                           string
	listenHTTP, listenMetrics                           string
	initialCluster, clusterState, token                 string
	heartbeatMs, electionMs                             uint
	splitKeys, ranges, logLevel                         string
	snapshotCount, quotaBackendBytes, maxConcurrent     string
	maxTxnOps, maxRequestBytes                          uint
	unsafeNoFsync, pprof, version                       bool
	keepAliveMin, keepAliveInterval, keepAliveTimeoutIn time.Duration
	watchProgress                                       time.Duration
}

// newFlagSet declares every flag. Those without effect report their use to accepted.
func newFlagSet(r *raw, accepted func(name, value string)) *flag.FlagSet {
	fs := flag.NewFlagSet("braid", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&r.name, "name", defaultName, "Name of this member.")
	fs.StringVar(&r.dataDir, "data-dir", "", "Data `directory` (default: the name with .braid).")
	fs.StringVar(&r.listenClient, "listen-client-urls", defaultClientURL, "Comma-separated `URLs` to listen on for clients: http://IP:port or unix://path.")
	fs.StringVar(&r.advertiseClient, "advertise-client-urls", defaultClientURL, "Comma-separated client `URLs` of this member for the rest of the world.")
	fs.StringVar(&r.listenPeer, "listen-peer-urls", defaultPeerURL, "Comma-separated `URLs` to listen on for other members.")
	fs.StringVar(&r.advertisePeer, "initial-advertise-peer-urls", defaultPeerURL, "Comma-separated peer `URLs` of this member for the rest of the cluster.")
	fs.StringVar(&r.listenHTTP, "listen-client-http-urls", "", "Comma-separated `URLs` for clients that use HTTP; takes HTTP off --listen-client-urls.")
	fs.StringVar(&r.listenMetrics, "listen-metrics-urls", "", "Comma-separated `URLs` for metrics and health checks only.")
	fs.StringVar(&r.initialCluster, "initial-cluster", "", "Members of a new cluster: `name=URL,...` (default: this member alone).")
	fs.StringVar(&r.clusterState, "initial-cluster-state", "new", "The `state`: new or existing.")
	fs.StringVar(&r.token, "initial-cluster-token", defaultToken, "A `text` that goes into the IDs of members and cluster.")
	fs.StringVar(&r.splitKeys, "initial-split-keys", "", "Comma-separated `keys` at which the key space of a new cluster is cut into ranges; \\xNN, \\\\ and \\, are escapes.")
	fs.StringVar(&r.ranges, "initial-ranges", "", "A `name` of ready-made split keys for a new cluster: kubernetes.")
	fs.UintVar(&r.heartbeatMs, "heartbeat-interval", 100, "Time between heartbeats, in `milliseconds`.")
	fs.UintVar(&r.electionMs, "election-timeout", 1000, "Time without a leader until an election, in `milliseconds`.")
	fs.StringVar(&r.snapshotCount, "snapshot-count", strconv.Itoa(node.DefaultSnapshotCount), "Number of `entries` of a range's log that are kept for followers that lag.")
	fs.UintVar(&r.maxTxnOps, "max-txn-ops", node.DefaultMaxTxnOps, "Largest `number` of operations in a transaction.")
	fs.UintVar(&r.maxRequestBytes, "max-request-bytes", node.DefaultMaxRequestBytes, "Largest request, in `bytes`.")
	fs.StringVar(&r.quotaBackendBytes, "quota-backend-bytes", "0", "Alarm and refuse writes when the data takes so many `bytes` (0: a default, negative: never).")
	fs.BoolVar(&r.unsafeNoFsync, "unsafe-no-fsync", false, "Leave out every fsync: loses data on power failure.")
	fs.StringVar(&r.maxConcurrent, "max-concurrent-streams", "4294967295", "The largest `number` of calls at a time on one client connection.")
	fs.DurationVar(&r.keepAliveMin, "grpc-keepalive-min-time", 5*time.Second, "Shortest `time` between two pings of a client.")
	fs.DurationVar(&r.keepAliveInterval, "grpc-keepalive-interval", 2*time.Hour, "The `time` without activity after which a client is pinged.")
	fs.DurationVar(&r.keepAliveTimeoutIn, "grpc-keepalive-timeout", 20*time.Second, "The `time` that a pinged client has to answer.")
	fs.DurationVar(&r.watchProgress, "watch-progress-notify-interval", 10*time.Minute, "The `time` between progress responses of watches that asked for them.")
	fs.BoolVar(&r.pprof, "enable-pprof", false, "Serve profiles at /debug/pprof/ on the client URLs.")
	fs.StringVar(&r.logLevel, "log-level", "info", "The `level` of the log: debug, info, warn, error, panic or fatal.")
	fs.BoolVar(&r.version, "version", false, "Print the version and exit.")
	for _, f := range withoutEffect {
		fs.Var(&acceptedFlag{f, accepted}, f.name, "Accepted, without effect in this version.")
	}
	return fs
}

// parse reads the command line and the environment ("NAME=value" strings). A flag given on the command line wins.
func parse(args, environ []string) (*options, error) {
	o, r := &options{}, &raw{}
	fs := newFlagSet(r, func(name, value string) {
		o.note(levelOfAccepted(name), "accepted, without effect in this version", "flag", name, "value", value)
		if text, ok := deprecated[name]; ok {
			o.note(slog.LevelWarn, text)
		}
	})
	if err := fs.Parse(args); err != nil {
		return nil, usageError{err}
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("%q is not a valid flag", fs.Arg(0))
	}
	if r.version {
		return &options{version: true}, nil
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if err := o.readEnvironment(fs, set, environ); err != nil {
		return nil, err
	}
	if err := o.fill(r, set); err != nil {
		return nil, err
	}
	return o, nil
}

// ignoredVariables are set by etcd's tests and mean nothing to braid.
var ignoredVariables = []string{"ETCD_UNSUPPORTED_ARCH", "ETCD_VERIFY", "ETCD_VERSION"}

// readEnvironment sets flags that the command line does not give from variables: --data-dir from ETCD_DATA_DIR.
func (o *options) readEnvironment(fs *flag.FlagSet, set map[string]bool, environ []string) error {
	flags := map[string]string{}
	fs.VisitAll(func(f *flag.Flag) { flags[variable(f.Name)] = f.Name })
	for _, kv := range slices.Sorted(slices.Values(environ)) {
		key, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(key, envPrefix) || value == "" || slices.Contains(ignoredVariables, key) {
			continue
		}
		name, ok := flags[key]
		switch {
		case !ok:
			o.note(slog.LevelWarn, "unrecognized environment variable", "environment-variable", kv)
		case name == "version":
		case set[name]:
			o.note(slog.LevelInfo, "environment variable is shadowed by a command-line flag", "variable-name", key)
		default:
			if err := fs.Set(name, value); err != nil {
				return fmt.Errorf("invalid value %q for %s: %w", value, key, err)
			}
			set[name] = true
			o.note(slog.LevelInfo, "recognized and used environment variable", "variable-name", key, "variable-value", value)
		}
	}
	return nil
}

// variable is the environment variable of a flag.
func variable(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// fill makes the configuration of the values, checks what package node cannot, and returns all faults.
func (o *options) fill(r *raw, set map[string]bool) error {
	var errs []error
	keep := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", name, err))
		}
	}
	urls := func(to *[]string, name, value string, check func(string) error) {
		list, err := cluster.ParseURLs(value)
		keep(name, err)
		for _, u := range list {
			keep(name, check(u))
		}
		*to = list
	}
	c := &o.node
	c.Name, c.DataDir = r.name, r.dataDir
	if c.DataDir == "" {
		c.DataDir = c.Name + ".braid"
	}
	urls(&c.ListenClientURLs, "listen-client-urls", r.listenClient, checkBind)
	urls(&c.ListenPeerURLs, "listen-peer-urls", r.listenPeer, checkBind)
	urls(&o.httpURLs, "listen-client-http-urls", r.listenHTTP, checkBind)
	urls(&o.metricsURLs, "listen-metrics-urls", r.listenMetrics, checkBind)
	urls(&c.AdvertiseClientURLs, "advertise-client-urls", r.advertiseClient, checkAdvertised)
	urls(&c.InitialAdvertisePeerURLs, "initial-advertise-peer-urls", r.advertisePeer, checkAdvertised)
	if set["listen-client-urls"] && !set["advertise-client-urls"] {
		errs = append(errs, errors.New("--advertise-client-urls is required when --listen-client-urls is set explicitly"))
	}

	c.InitialClusterToken, c.InitialClusterState = r.token, r.clusterState
	if c.InitialClusterState != "new" && c.InitialClusterState != "existing" {
		keep("initial-cluster-state", fmt.Errorf("invalid value %q", r.clusterState))
	}
	initial, err := cluster.ParseInitial(r.initialCluster)
	keep("initial-cluster", err)
	if len(initial) == 0 && err == nil {
		initial = map[string][]string{c.Name: c.InitialAdvertisePeerURLs}
	}
	c.InitialCluster = initial
	if own := initial[c.Name]; len(own) > 0 && !slices.Equal(own, c.InitialAdvertisePeerURLs) {
		o.note(slog.LevelWarn, "the peer URLs of this member differ between two flags; those of --initial-cluster count",
			"initial-cluster", own, "initial-advertise-peer-urls", c.InitialAdvertisePeerURLs)
	}

	if r.heartbeatMs == 0 {
		keep("heartbeat-interval", errors.New("must be >0 (set to 0ms)"))
	}
	if r.electionMs == 0 {
		keep("election-timeout", errors.New("must be >0 (set to 0ms)"))
	}
	c.HeartbeatInterval, c.ElectionTimeout = time.Duration(r.heartbeatMs)*time.Millisecond, time.Duration(r.electionMs)*time.Millisecond
	c.SnapshotCount, err = strconv.ParseUint(r.snapshotCount, 0, 64)
	keep("snapshot-count", err)
	c.QuotaBackendBytes, err = strconv.ParseInt(r.quotaBackendBytes, 0, 64)
	keep("quota-backend-bytes", err)
	c.MaxTxnOps, c.MaxRequestBytes, c.UnsafeNoFsync = r.maxTxnOps, r.maxRequestBytes, r.unsafeNoFsync
	c.InitialSplitKeys, err = splitKeys(r.splitKeys, r.ranges)
	errs = append(errs, err)

	streams, err := strconv.ParseUint(r.maxConcurrent, 0, 32)
	keep("max-concurrent-streams", err)
	o.maxConcurrentStreams, o.pprof = uint32(streams), r.pprof
	c.WatchProgressNotifyInterval = r.watchProgress
	o.keepAliveMinTime, o.keepAliveInterval, o.keepAliveTimeout = r.keepAliveMin, r.keepAliveInterval, r.keepAliveTimeoutIn
	o.logLevel, err = logjson.ParseLevel(r.logLevel)
	keep("log-level", err)
	return errors.Join(errs...)
}
