package peer

import (
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/braidkv/braid/internal/ids"
	braidpb "github.com/braidkv/braid/proto"
)

// sink answers or counts letters.
type sink struct {
	got   atomic.Int64
	reply func(*braidpb.Letter)
	up    chan struct{}
}

func (s *sink) Receive(_ ids.NodeID, l *braidpb.Letter) {
	s.got.Add(1)
	if s.reply != nil {
		s.reply(l)
	}
}
func (s *sink) Up(ids.NodeID, uint64) { s.up <- struct{}{} }
func (s *sink) Down(ids.NodeID)       {}

// pair is two transports over the loopback interface.
func pair(b *testing.B) (one, two *Transport, s1, s2 *sink) {
	lis := [2]net.Listener{}
	peers := map[ids.NodeID][]string{}
	for i := range lis {
		var err error
		if lis[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			b.Fatal(err)
		}
		peers[ids.NodeID(i+1)] = []string{"http://" + lis[i].Addr().String()}
	}
	s1, s2 = &sink{up: make(chan struct{}, 8)}, &sink{up: make(chan struct{}, 8)}
	var err error
	if one, err = New(Config{Self: 1, Incarnation: 1, Peers: peers}, s1); err != nil {
		b.Fatal(err)
	}
	if two, err = New(Config{Self: 2, Incarnation: 1, Peers: peers}, s2); err != nil {
		b.Fatal(err)
	}
	go one.Serve(lis[0])
	go two.Serve(lis[1])
	<-s1.up
	<-s2.up
	b.Cleanup(func() { one.Close(); two.Close() })
	return one, two, s1, s2
}

func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRoundTrip: a letter there and one back, nothing else under way. CPU is that of both ends.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{100, 2000} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			one, two, s1, s2 := pair(b)
			back := make(chan struct{}, 1)
			body := make([]byte, size)
			s2.reply = func(*braidpb.Letter) { two.Send(1, &braidpb.Letter{Kind: 1, Group: 1, Body: body}) }
			s1.reply = func(*braidpb.Letter) { back <- struct{}{} }
			b.ReportAllocs()
			start := cpu()
			for b.Loop() {
				one.Send(2, &braidpb.Letter{Kind: 1, Group: 1, Body: body})
				<-back
			}
			b.ReportMetric(float64((cpu()-start).Microseconds())/float64(b.N)/2, "cpu-µs/envelope")
		})
	}
}

// BenchmarkWindow: letters one way, so many under way at a time; how many go into an envelope follows from that.
func BenchmarkWindow(b *testing.B) {
	for _, window := range []int{4, 64} {
		for _, size := range []int{200, 64 << 10} {
			b.Run(fmt.Sprintf("window=%d/bytes=%d", window, size), func(b *testing.B) {
				one, two, s1, s2 := pair(b)
				slots := make(chan struct{}, window)
				body := make([]byte, size)
				s2.reply = func(*braidpb.Letter) { two.Send(1, &braidpb.Letter{Kind: 1, Group: 1, Body: body[:10]}) }
				s1.reply = func(*braidpb.Letter) { <-slots }
				b.SetBytes(int64(size))
				b.ReportAllocs()
				start := cpu()
				for b.Loop() {
					slots <- struct{}{}
					one.Send(2, &braidpb.Letter{Kind: 1, Group: 1, Body: body})
				}
				s := one.Stats()[0]
				b.ReportMetric(float64((cpu()-start).Nanoseconds())/1000/float64(b.N), "cpu-µs/letter")
				b.ReportMetric(float64(s.SentLetters)/float64(s.SentEnvelopes), "letters/envelope")
			})
		}
	}
}

// BenchmarkCodec: an envelope of eight letters, there and back.
func BenchmarkCodec(b *testing.B) {
	var letters []*braidpb.Letter
	for i := range 8 {
		letters = append(letters, &braidpb.Letter{Kind: 1, Group: uint64(i), Body: make([]byte, 300)})
	}
	b.ReportAllocs()
	for b.Loop() {
		data := marshalEnvelope(letters)
		var in incoming
		if err := in.unmarshal(data.Materialize()); err != nil {
			b.Fatal(err)
		}
		data.Free()
	}
}
