package node

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config is what a node needs to know; the field names follow etcd's flags.
type Config struct {
	Name    string
	DataDir string

	ListenClientURLs, AdvertiseClientURLs    []string
	ListenPeerURLs, InitialAdvertisePeerURLs []string
	InitialCluster                           map[string][]string // member name -> peer URLs
	InitialClusterState, InitialClusterToken string
	HeartbeatInterval, ElectionTimeout       time.Duration
	// SnapshotCount is how many entries of a range's log are kept for followers that lag, beyond what is flushed.
	SnapshotCount     uint64
	MaxTxnOps         uint
	MaxRequestBytes   uint
	QuotaBackendBytes int64
	// UnsafeNoFsync leaves out every fsync: a power loss loses acknowledged writes.
	UnsafeNoFsync bool
	// InitialSplitKeys cut the key space of a new cluster into ranges.
	InitialSplitKeys [][]byte
	// WatchProgressNotifyInterval is the time between periodic progress responses (default: etcd's 10 minutes).
	WatchProgressNotifyInterval time.Duration

	Logger *slog.Logger
	FS     vfs.FS
}

// Default limits, as etcd's.
const (
	DefaultMaxTxnOps       = 128
	DefaultMaxRequestBytes = 1.5 * 1024 * 1024
	DefaultSnapshotCount   = 10000
)

// Validate reports all faults of the configuration and fills in defaults.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.HeartbeatInterval == 0 {
		c.HeartbeatInterval = 100 * time.Millisecond
	}
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = 10 * c.HeartbeatInterval
	}
	if c.MaxTxnOps == 0 {
		c.MaxTxnOps = DefaultMaxTxnOps
	}
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if c.SnapshotCount == 0 {
		c.SnapshotCount = DefaultSnapshotCount
	}
	need(c.Name != "", "the member has no name")
	need(c.DataDir != "", "no data directory is named")
	need(len(c.ListenClientURLs) > 0, "no client URL to listen on")
	need(len(c.ListenPeerURLs) > 0, "no peer URL to listen on")
	need(c.ElectionTimeout >= 5*c.HeartbeatInterval, "--election-timeout[%vms] should be at least as 5 times as --heartbeat-interval[%vms]",
		c.ElectionTimeout.Milliseconds(), c.HeartbeatInterval.Milliseconds())
	need(c.ElectionTimeout <= 50*time.Second, "--election-timeout[%vms] is too long, and should be set less than 50000ms", c.ElectionTimeout.Milliseconds())
	if len(c.InitialCluster) > 0 {
		_, ok := c.InitialCluster[c.Name]
		need(ok, "couldn't find local name %q in the initial cluster configuration", c.Name)
	}
	for i := 1; i < len(c.InitialSplitKeys); i++ {
		need(string(c.InitialSplitKeys[i-1]) < string(c.InitialSplitKeys[i]), "split keys must ascend: %q is not above %q", c.InitialSplitKeys[i], c.InitialSplitKeys[i-1])
	}
	for _, k := range c.InitialSplitKeys {
		need(len(k) > 0, "a split key is empty")
	}
	return errors.Join(errs...)
}

// electionTicks is the election time-out in heartbeat intervals.
func (c *Config) electionTicks() int {
	return max(2, int(c.ElectionTimeout/c.HeartbeatInterval))
}
