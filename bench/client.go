package main

import (
	"context"
	"fmt"
	"time"

	"github.com/braidkv/braid/test/servers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// connections are clients with one endpoint each, so that it is known where a request goes.
type connections struct {
	all []*clientv3.Client
}

func (c *connections) close() {
	for _, cl := range c.all {
		_ = cl.Close() // nothing is in flight any more
	}
}

// nth deals the connections out in turn, nodes first.
func (c *connections) nth(n int) *clientv3.Client { return c.all[n%len(c.all)] }

func dial(endpoint string) (*clientv3.Client, error) {
	const most = 512 << 20
	cl, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		MaxCallSendMsgSize: most, MaxCallRecvMsgSize: most,
		DialOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most))},
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", endpoint, err)
	}
	return cl, nil
}

// connect opens the connections that --target and --conns ask for.
func (c *config) connect(ctx context.Context, cl *servers.Cluster) (*connections, error) {
	endpoints := cl.Endpoints()
	switch c.target {
	case "first":
		endpoints = endpoints[:1]
	case "leader":
		e, err := leader(ctx, endpoints)
		if err != nil {
			return nil, err
		}
		endpoints = []string{e}
	}
	out := &connections{}
	for range c.conns {
		for _, e := range endpoints {
			k, err := dial(e)
			if err != nil {
				out.close()
				return nil, err
			}
			out.all = append(out.all, k)
		}
	}
	return out, nil
}

// leader asks every node who leads and returns the one that claims to.
func leader(ctx context.Context, endpoints []string) (string, error) {
	for _, e := range endpoints {
		k, err := dial(e)
		if err != nil {
			return "", err
		}
		st, err := k.Status(ctx, e)
		_ = k.Close() // nothing is in flight
		if err != nil {
			return "", fmt.Errorf("asking %s for its status: %w", e, err)
		}
		if st.Leader == st.Header.MemberId {
			return e, nil
		}
	}
	return "", fmt.Errorf("no node of %v says that it leads", endpoints)
}
