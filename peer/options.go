package peer

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Sizes of the connections' buffers and windows.
const (
	// windowBytes is what a sender may have under way that the receiver has not taken; also what a stopped
	// peer is sent at most. Static, so that gRPC does not probe for the bandwidth with pings; large, so that window
	// updates are rare (one for each quarter).
	windowBytes = 16 << 20
	// bufferBytes is how much goes into one write or comes out of one read of a socket, if there is that much.
	bufferBytes = 128 << 10
	// pingInterval is how soon a connection without a stream is found dead; streams have their heartbeats and echoes.
	pingInterval = 10 * time.Second
)

// helloTimeout bounds dialing and the exchange of hellos.
func helloTimeout(cfg *Config) time.Duration { return max(cfg.DeadAfter, 500*time.Millisecond) }

func dialOptions(cfg *Config, a address) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return cfg.Dial(ctx, a.network, a.addr)
		}),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		// One attempt for each ClientConn: link.run has the addresses and the pauses between attempts.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: time.Hour, MaxDelay: time.Hour}, MinConnectTimeout: helloTimeout(cfg),
		}),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxMessageBytes(cfg)), grpc.MaxCallRecvMsgSize(1<<20)),
	}
}

func serverOptions(cfg *Config, ticks *atomic.Uint64) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(newWatchfulCredentials(ticks)),
		grpc.ForceServerCodecV2(codec{}),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(windowBytes),
		grpc.ReadBufferSize(bufferBytes),
		grpc.MaxRecvMsgSize(maxMessageBytes(cfg)),
		grpc.MaxSendMsgSize(1 << 20),
		grpc.MaxConcurrentStreams(4),
		grpc.ConnectionTimeout(helloTimeout(cfg)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingInterval, Timeout: helloTimeout(cfg), MaxConnectionIdle: time.Minute,
		}),
	}
}

// maxMessageBytes is the largest message with one letter, or with several that fit one envelope.
func maxMessageBytes(cfg *Config) int {
	return max(cfg.MaxLetterBytes, 2*cfg.MaxEnvelopeBytes) + 1<<10
}
