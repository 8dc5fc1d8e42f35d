package clientapi

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// BenchmarkPut: clients on a few connections, each with one put at a time, against a service that does nothing. CPU is that
// of clients and server together.
func BenchmarkPut(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			s, err := Listen(Config{
				ClientURLs: []string{"http://127.0.0.1:0"}, Health: &fakeNode{},
				Register: func(g grpc.ServiceRegistrar) { pb.RegisterKVServer(g, kv{}) },
			})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			s.Serve()
			var conns []pb.KVClient
			for range min(clients, 8) {
				c, err := grpc.NewClient(s.Addrs()[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
				conns = append(conns, pb.NewKVClient(c))
			}
			work := make(chan struct{}, clients)
			failed := make(chan error, clients)
			for i := range clients {
				go func() {
					req := &pb.PutRequest{Key: []byte("key"), Value: make([]byte, 256)}
					for range work {
						if _, err := conns[i%len(conns)].Put(context.Background(), req); err != nil {
							failed <- err
							return
						}
					}
					failed <- nil
				}()
			}
			b.ReportAllocs()
			start := cpu()
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			for range clients {
				if err := <-failed; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu()-start).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
		})
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
