package servers

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test program play a server: it prints its flags and the ready line and ends on SIGTERM.
func TestMain(m *testing.M) {
	switch os.Getenv("FAKE_SERVER") {
	case "ready":
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM)
		fmt.Println(os.Args[1:])
		fmt.Println("ready to serve client requests")
		<-end
		os.Exit(0)
	case "broken":
		fmt.Println("no such flag")
		os.Exit(3)
	}
	os.Exit(m.Run())
}

func fake(t *testing.T, behaviour string) (*Cluster, context.Context) {
	t.Helper()
	t.Setenv("FAKE_SERVER", behaviour)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Kind: Braid, Binary: self, Nodes: 3, Dir: t.TempDir(), SplitKeys: []string{"b", "c"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return c, ctx
}

func TestLife(t *testing.T) {
	c, ctx := fake(t, "ready")
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	u, err := c.Usage()
	if err != nil || u.RSS == 0 || u.PeakRSS < u.RSS {
		t.Fatalf("usage %+v, %v", u, err)
	}
	n := c.Nodes[1]
	if err := n.Pause(); err != nil || !n.Frozen() {
		t.Fatalf("pause: %v", err)
	}
	if err := n.Kill(); err != nil || n.Running() {
		t.Fatalf("kill: %v", err)
	}
	if _, err := n.Usage(); err == nil {
		t.Fatal("a dead process has a usage")
	}
	if err := c.Start(ctx); err != nil || n.Starts != 2 {
		t.Fatalf("second start: %v, %d starts", err, n.Starts)
	}
	if err := c.Nodes[0].Pause(); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		if n.Running() {
			t.Fatalf("%s still runs", n.Name)
		}
	}
	text, err := os.ReadFile(n.Log)
	if err != nil || !strings.Contains(string(text), "--initial-split-keys b,c") {
		t.Fatalf("%s, %v", text, err)
	}
}

func TestStartFails(t *testing.T) {
	c, ctx := fake(t, "broken")
	err := c.Start(ctx)
	if err == nil || !strings.Contains(err.Error(), "no such flag") {
		t.Fatalf("got %v", err)
	}
}

func TestDiskBytes(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 10000), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := diskBytes(dir)
	if err != nil || b < 8192 {
		t.Fatalf("%d, %v", b, err)
	}
}
