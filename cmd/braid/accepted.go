package main

import (
	"log/slog"
	"slices"
)

// acceptedName is a flag of etcd that braid takes and does not use.
type acceptedName struct {
	name    string
	boolean bool // may stand without a value
}

// acceptedFlag reports its use, whatever the value.
type acceptedFlag struct {
	acceptedName
	use func(name, value string)
}

func (f *acceptedFlag) String() string   { return "" }
func (f *acceptedFlag) IsBoolFlag() bool { return f.boolean }
func (f *acceptedFlag) Set(value string) error {
	f.use(f.name, value)
	return nil
}

// withoutEffect are all flags of etcd 3.7 that are not in newFlagSet.
var withoutEffect = func() (out []acceptedName) {
	for _, name := range []string{
		"wal-dir", "max-snapshots", "max-wals", "backend-bbolt-freelist-type", "backend-batch-interval", "backend-batch-limit",
		"raft-read-timeout", "raft-write-timeout",
		"discovery-endpoints", "discovery-token", "discovery-dial-timeout", "discovery-request-timeout", "discovery-keepalive-time",
		"discovery-keepalive-timeout", "discovery-cert", "discovery-key", "discovery-cacert", "discovery-user", "discovery-password",
		"discovery-srv", "discovery-srv-name", "discovery-fallback",
		"cert-file", "key-file", "client-cert-file", "client-key-file", "client-crl-file", "client-cert-allowed-hostname", "trusted-ca-file",
		"peer-cert-file", "peer-key-file", "peer-client-cert-file", "peer-client-key-file", "peer-trusted-ca-file", "peer-crl-file",
		"peer-cert-allowed-cn", "peer-cert-allowed-hostname", "self-signed-cert-validity", "cipher-suites", "tls-min-version", "tls-max-version",
		"cors", "host-whitelist", "logger", "log-outputs", "log-format", "log-rotation-config-json",
		"auto-compaction-retention", "auto-compaction-mode", "metrics", "distributed-tracing-address", "distributed-tracing-service-name",
		"distributed-tracing-instance-id", "distributed-tracing-sampling-rate", "auth-token", "bcrypt-cost", "auth-token-ttl",
		"corrupt-check-time", "compact-hash-check-time", "compaction-batch-limit", "compaction-sleep-interval",
		"downgrade-check-time", "warning-apply-duration", "warning-unary-request-duration", "bootstrap-defrag-threshold-megabytes", "max-learners",
		"snapshot-catchup-entries", "feature-gates", "config-file", "v2-deprecation",
	} {
		out = append(out, acceptedName{name, false})
	}
	for _, name := range []string{
		"initial-election-tick-advance", "socket-reuse-port", "socket-reuse-address", "discovery-insecure-transport", "discovery-insecure-skip-tls-verify",
		"strict-reconfig-check", "pre-vote", "client-cert-auth", "auto-tls", "peer-client-cert-auth", "peer-auto-tls", "peer-skip-client-san-verification",
		"enable-log-rotation", "enable-distributed-tracing", "enable-grpc-gateway", "memory-mlock", "force-new-cluster",
		// Those that etcd itself takes and ignores.
		"cluster-active-size", "cluster-remove-delay", "cluster-sync-interval", "config", "force", "max-result-buffer", "max-retry-attempts",
		"peer-heartbeat-interval", "peer-election-timeout", "retry-interval", "snapshot", "v", "vv", "test.coverprofile", "test.outputdir",
	} {
		out = append(out, acceptedName{name, true})
	}
	return out
}()

// missed are flags without which a server is not what its operator wanted: less protected, or another cluster.
var missed = []string{
	"config-file", "cert-file", "key-file", "client-cert-auth", "trusted-ca-file", "client-crl-file", "client-cert-allowed-hostname", "auto-tls",
	"peer-cert-file", "peer-key-file", "peer-client-cert-auth", "peer-trusted-ca-file", "peer-crl-file", "peer-cert-allowed-cn",
	"peer-cert-allowed-hostname", "peer-auto-tls", "force-new-cluster", "discovery-token", "discovery-endpoints", "discovery-srv",
	"auto-compaction-retention",
}

func levelOfAccepted(name string) slog.Level {
	if slices.Contains(missed, name) {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// deprecated are etcd's words for flags that it is about to drop.
var deprecated = map[string]string{
	"max-snapshots":  "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8.",
	"v2-deprecation": "--v2-deprecation is deprecated and scheduled for removal in v3.8. The default value is enforced, ignoring user input.",
}
