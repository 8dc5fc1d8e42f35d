package peer

import (
	"net"
	"testing"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// TestUnixSockets connects two nodes over sockets in the file system, the second time over the files that the first left.
func TestUnixSockets(t *testing.T) {
	dir := t.TempDir()
	peers := map[ids.NodeID][]string{1: {"unix://" + dir + "/1"}, 2: {"unix://" + dir + "/2"}}
	for range 2 {
		handlers := map[ids.NodeID]*sink{}
		transports := map[ids.NodeID]*Transport{}
		got := make(chan struct{}, 1)
		for id, urls := range peers {
			lis, err := Listen(urls[0])
			if err != nil {
				t.Fatal(err)
			}
			lis.(*net.UnixListener).SetUnlinkOnClose(false)
			handlers[id] = &sink{up: make(chan struct{}, 8), reply: func(*braidpb.Letter) { got <- struct{}{} }}
			if transports[id], err = New(Config{Self: id, Incarnation: 1, Peers: peers}, handlers[id]); err != nil {
				t.Fatal(err)
			}
			go transports[id].Serve(lis)
		}
		<-handlers[1].up
		<-handlers[2].up
		transports[1].Send(2, &braidpb.Letter{Kind: 1})
		<-got
		for _, tr := range transports {
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, bad := range []string{"https://127.0.0.1:1", "nonsense", "http://256.0.0.1:1", "unix:///no/such/folder/x"} {
		if lis, err := Listen(bad); err == nil {
			lis.Close()
			t.Errorf("listening on %s", bad)
		}
	}
}
