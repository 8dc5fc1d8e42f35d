package main

import (
	"errors"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/braidkv/braid/node"
)

func TestDefaults(t *testing.T) {
	o, err := parse(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := node.Config{
		Name: "default", DataDir: "default.braid",
		ListenClientURLs: []string{"http://localhost:2379"}, AdvertiseClientURLs: []string{"http://localhost:2379"},
		ListenPeerURLs: []string{"http://localhost:2380"}, InitialAdvertisePeerURLs: []string{"http://localhost:2380"},
		InitialCluster:      map[string][]string{"default": {"http://localhost:2380"}},
		InitialClusterState: "new", InitialClusterToken: "etcd-cluster",
		HeartbeatInterval: 100 * time.Millisecond, ElectionTimeout: time.Second,
		SnapshotCount: 10000, MaxTxnOps: 128, MaxRequestBytes: 1572864, WatchProgressNotifyInterval: 10 * time.Minute,
	}
	if !reflect.DeepEqual(o.node, want) {
		t.Errorf("defaults are\n%+v\nwant\n%+v", o.node, want)
	}
	if o.maxConcurrentStreams != 1<<32-1 || o.keepAliveMinTime != 5*time.Second || o.pprof || len(o.notices) != 0 {
		t.Errorf("defaults are %+v", o)
	}
	if err := o.node.Validate(); err != nil {
		t.Error(err)
	}
}

func TestFlags(t *testing.T) {
	args := []string{
		"--name=n2", "--data-dir", "/tmp/d", "-listen-client-urls=http://0.0.0.0:20005,unix://localhost:20005",
		"--advertise-client-urls", "http://localhost:20005", "--listen-peer-urls=http://127.0.0.1:20006",
		"--initial-advertise-peer-urls=http://localhost:20008",
		"--initial-cluster", "n1=http://localhost:20003,n2=http://localhost:20008,n3=http://localhost:20013",
		"--initial-cluster-state=existing", "--initial-cluster-token=a", "--initial-cluster-token", "b",
		"--heartbeat-interval=10", "--election-timeout", "100", "--snapshot-count=10", "--snapshot-count", "20",
		"--max-txn-ops=5", "--max-request-bytes", "1000", "--quota-backend-bytes=-1", "--unsafe-no-fsync",
		`--initial-split-keys=b,a\x00\,,b`, "--listen-metrics-urls=http://127.0.0.1:20007", "--listen-client-http-urls=http://127.0.0.1:20009",
		"--max-concurrent-streams=7", "--grpc-keepalive-min-time=1s", "--grpc-keepalive-interval=2s", "--grpc-keepalive-timeout=3s",
		"--enable-pprof=true", "--log-level=warn", "--watch-progress-notify-interval=3s",
	}
	o, err := parse(args, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := node.Config{
		Name: "n2", DataDir: "/tmp/d",
		ListenClientURLs:    []string{"http://0.0.0.0:20005", "unix://localhost:20005"},
		AdvertiseClientURLs: []string{"http://localhost:20005"}, ListenPeerURLs: []string{"http://127.0.0.1:20006"},
		InitialAdvertisePeerURLs: []string{"http://localhost:20008"},
		InitialCluster: map[string][]string{
			"n1": {"http://localhost:20003"}, "n2": {"http://localhost:20008"}, "n3": {"http://localhost:20013"}},
		InitialClusterState: "existing", InitialClusterToken: "b",
		HeartbeatInterval: 10 * time.Millisecond, ElectionTimeout: 100 * time.Millisecond,
		SnapshotCount: 20, MaxTxnOps: 5, MaxRequestBytes: 1000, QuotaBackendBytes: -1, UnsafeNoFsync: true,
		InitialSplitKeys: [][]byte{[]byte("a\x00,"), []byte("b")}, WatchProgressNotifyInterval: 3 * time.Second,
	}
	if !reflect.DeepEqual(o.node, want) {
		t.Errorf("read\n%+v\nwant\n%+v", o.node, want)
	}
	if !slices.Equal(o.metricsURLs, []string{"http://127.0.0.1:20007"}) || !slices.Equal(o.httpURLs, []string{"http://127.0.0.1:20009"}) ||
		o.maxConcurrentStreams != 7 || o.keepAliveMinTime != time.Second || o.keepAliveInterval != 2*time.Second ||
		o.keepAliveTimeout != 3*time.Second || !o.pprof || o.logLevel != 4 || len(o.notices) != 0 {
		t.Errorf("read %+v", o)
	}
}

func messages(o *options) (out []string) {
	for _, n := range o.notices {
		out = append(out, fmt.Sprintf("%v %s %v", n.level, n.msg, n.args))
	}
	return out
}

func TestEnvironment(t *testing.T) {
	o, err := parse([]string{"--name=cli", "--max-txn-ops=3"}, []string{
		"ETCD_NAME=env", "ETCD_DATA_DIR=/env", "ETCD_MAX_REQUEST_BYTES=0x100", "ETCD_UNSAFE_NO_FSYNC=true", "ETCD_HEARTBEAT_INTERVAL=",
		"ETCD_UNSUPPORTED_ARCH=arm64", "ETCD_VERIFY=all", "ETCD_TYPO=1", "ETCDCTL_API=3", "PATH=/bin", "ETCD_VERSION=3", "ETCD_WAL_DIR=/wal",
		"ETCD_LISTEN_CLIENT_URLS=http://127.0.0.1:1", "ETCD_ADVERTISE_CLIENT_URLS=http://x:1",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := o.node
	if c.Name != "cli" || c.DataDir != "/env" || c.MaxRequestBytes != 256 || !c.UnsafeNoFsync || c.MaxTxnOps != 3 ||
		c.HeartbeatInterval != 100*time.Millisecond || c.ListenClientURLs[0] != "http://127.0.0.1:1" {
		t.Errorf("read %+v", c)
	}
	if own := c.InitialCluster["cli"]; len(own) != 1 {
		t.Errorf("the initial cluster is %v", c.InitialCluster)
	}
	got := strings.Join(messages(o), "\n")
	for _, want := range []string{
		"INFO environment variable is shadowed by a command-line flag [variable-name ETCD_NAME]",
		"WARN unrecognized environment variable [environment-variable ETCD_TYPO=1]",
		"INFO accepted, without effect in this version [flag wal-dir value /wal]",
		"INFO recognized and used environment variable [variable-name ETCD_DATA_DIR variable-value /env]",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no notice %q among\n%s", want, got)
		}
	}
	for _, unwanted := range []string{"UNSUPPORTED", "VERIFY", "ETCDCTL", "PATH", "VERSION", "HEARTBEAT"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("a notice names %s:\n%s", unwanted, got)
		}
	}
	if _, err := parse(nil, []string{"ETCD_MAX_TXN_OPS=many"}); err == nil || !strings.Contains(err.Error(), "ETCD_MAX_TXN_OPS") {
		t.Errorf("a faulty variable: %v", err)
	}
}

// TestFlagsWithoutEffect gives each of them a value that etcd would refuse: they are never an error.
func TestFlagsWithoutEffect(t *testing.T) {
	for _, f := range withoutEffect {
		forms := [][]string{{"--" + f.name + "=nonsense"}, {"--" + f.name, "nonsense"}}
		if f.boolean {
			forms[1] = forms[1][:1]
		}
		for _, args := range forms {
			o, err := parse(args, nil)
			if err != nil {
				t.Errorf("%v: %v", args, err)
				continue
			}
			var lines int
			for _, n := range o.notices {
				if n.msg == "accepted, without effect in this version" && n.args[1] == f.name {
					lines++
				}
			}
			if lines != 1 {
				t.Errorf("%v: %d log lines", args, lines)
			}
		}
	}
	o, err := parse([]string{"--strict-reconfig-check", "--max-snapshots=1", "--client-cert-auth", "--peer-auto-tls=false"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(messages(o), "\n")
	for _, want := range []string{
		"INFO accepted, without effect in this version [flag strict-reconfig-check value true]",
		"WARN --max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8.",
		"WARN accepted, without effect in this version [flag client-cert-auth value true]",
		"WARN accepted, without effect in this version [flag peer-auto-tls value false]",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no notice %q among\n%s", want, got)
		}
	}
}

// TestAllFlagsOfTheContract: the flags that etcd's test framework passes, and all others of etcd 3.7.
func TestAllFlagsOfTheContract(t *testing.T) {
	fs := newFlagSet(&raw{}, func(string, string) {})
	for _, name := range strings.Fields(`name listen-client-urls advertise-client-urls listen-peer-urls initial-advertise-peer-urls initial-cluster
		initial-cluster-state initial-cluster-token data-dir snapshot-count strict-reconfig-check quota-backend-bytes auth-token cert-file key-file
		trusted-ca-file client-cert-auth client-crl-file auto-tls cipher-suites tls-min-version tls-max-version peer-cert-file peer-key-file
		peer-trusted-ca-file peer-client-cert-auth peer-client-cert-file peer-client-key-file peer-cert-allowed-cn peer-cert-allowed-hostname
		peer-auto-tls listen-metrics-urls listen-client-http-urls force-new-cluster snapshot-catchup-entries watch-progress-notify-interval
		max-concurrent-streams metrics corrupt-check-time compact-hash-check-time compaction-batch-limit compaction-sleep-interval
		warning-unary-request-duration feature-gates discovery-token discovery-endpoints discovery-cert discovery-key discovery-cacert
		discovery-insecure-transport discovery-insecure-skip-tls-verify log-level config-file heartbeat-interval election-timeout max-snapshots
		v2-deprecation bootstrap-defrag-threshold-megabytes bcrypt-cost max-txn-ops max-request-bytes max-learners grpc-keepalive-min-time
		grpc-keepalive-interval grpc-keepalive-timeout unsafe-no-fsync initial-split-keys initial-ranges version
		auth-token-ttl auto-compaction-mode auto-compaction-retention backend-batch-interval backend-batch-limit backend-bbolt-freelist-type
		client-cert-file client-key-file client-cert-allowed-hostname cors discovery-dial-timeout discovery-fallback discovery-keepalive-time
		discovery-keepalive-timeout discovery-password discovery-request-timeout discovery-srv discovery-srv-name discovery-user
		distributed-tracing-address distributed-tracing-instance-id distributed-tracing-sampling-rate distributed-tracing-service-name
		downgrade-check-time enable-distributed-tracing enable-grpc-gateway enable-log-rotation enable-pprof host-whitelist
		initial-election-tick-advance log-format log-outputs log-rotation-config-json logger max-wals memory-mlock peer-crl-file
		peer-skip-client-san-verification pre-vote raft-read-timeout raft-write-timeout self-signed-cert-validity socket-reuse-address
		socket-reuse-port wal-dir warning-apply-duration`) {
		if fs.Lookup(name) == nil {
			t.Errorf("there is no --%s", name)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"--no-such-flag", []string{"flag provided but not defined: -no-such-flag"}},
		{"--max-txn-ops=x", []string{"invalid value"}},
		{"--name=a stray", []string{`"stray" is not a valid flag`}},
		{"--unsafe-no-fsync stray", []string{`"stray" is not a valid flag`}},
		{"--listen-client-urls=http://127.0.0.1:1", []string{"--advertise-client-urls is required"}},
		{"--listen-peer-urls=http://host:1 --initial-cluster=x,y=http://h:1 --initial-cluster-state=old --heartbeat-interval=0 --election-timeout=0",
			[]string{"--listen-peer-urls: expected IP in URL for binding (http://host:1)", `--initial-cluster: member "x"`,
				`--initial-cluster-state: invalid value "old"`, "--heartbeat-interval: must be >0", "--election-timeout: must be >0"}},
		{"--advertise-client-urls=http://:1", []string{"--advertise-client-urls: unexpected empty host"}},
		{"--listen-peer-urls=https://127.0.0.1:1", []string{"--listen-peer-urls: https://127.0.0.1:1: TLS is not supported"}},
		{"--initial-advertise-peer-urls=unixs://x", []string{"TLS is not supported"}},
		{"--snapshot-count=-1 --quota-backend-bytes=1G --max-concurrent-streams=-2 --log-level=loud",
			[]string{"--snapshot-count", "--quota-backend-bytes", "--max-concurrent-streams", `unrecognized level: "loud"`}},
		{"--initial-ranges=openshift", []string{`--initial-ranges: unknown value "openshift"`}},
		{`--initial-split-keys=a,\q`, []string{`--initial-split-keys: "\\q" is none of the escapes`}},
		{`--initial-split-keys=a\xzz`, []string{"hexadecimal"}},
		{`--initial-split-keys=a,,b`, []string{"an empty key"}},
		{`--initial-split-keys=a\`, []string{"none of the escapes"}},
	} {
		_, err := parse(strings.Fields(test.args), nil)
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", test.args, err, want)
			}
		}
	}
	if _, err := parse([]string{"--help"}, nil); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
	for _, args := range [][]string{{"--no-such-flag"}, {"--max-txn-ops=x"}} {
		if _, err := parse(args, nil); !errors.As(err, new(usageError)) {
			t.Errorf("%v is not a usage error: %v", args, err)
		}
	}
}

func TestAdvertisedDiffers(t *testing.T) {
	o, err := parse(strings.Fields("--name=a --initial-cluster=a=http://h:1 --initial-advertise-peer-urls=http://h:2"), nil)
	if err != nil || len(o.notices) != 1 || !strings.Contains(messages(o)[0], "differ between two flags") {
		t.Errorf("error %v, notices %v", err, messages(o))
	}
}

func TestKubernetesRanges(t *testing.T) {
	o, err := parse([]string{"--initial-ranges=kubernetes", "--initial-split-keys=/registry/services/,/registry/pods/"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := o.node.InitialSplitKeys
	if len(keys) != len(kubernetesKeys)+1 || string(keys[0]) != "/registry/events/" || string(keys[len(keys)-1]) != "/registry/services/" {
		t.Errorf("split keys %q", keys)
	}
	if err := o.node.Validate(); err != nil {
		t.Error(err)
	}
}
