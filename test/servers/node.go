package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// readyLine is what etcd and braid print when they serve clients.
const readyLine = "ready to serve client requests"

// Node is one server: at most one process at a time, with the same ports and data folder for each.
type Node struct {
	Name   string
	Client string // host:port
	Peer   string // host:port
	Data   string // folder
	Log    string // file: what all its processes printed
	// Starts counts the processes so far.
	Starts int

	binary string
	args   []string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process is gone
	from   int64         // where the log of the current process starts
	frozen bool
}

// spawn starts processes from one thread that lives as long as the program: the kernel sends the parent
// death signal when the *thread* that started a process ends.
var spawn = sync.OnceValue(func() chan<- func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
})

// Start starts the process; it does not wait until it serves.
func (n *Node) Start() error {
	if n.Running() {
		return fmt.Errorf("%s runs already", n.Name)
	}
	out, err := os.OpenFile(n.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", n.Name, err)
	}
	defer out.Close()
	if n.from, err = out.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("opening the log of %s: %w", n.Name, err)
	}
	cmd := exec.Command(n.binary, n.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	spawn() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", n.Name, err)
	}
	ended := make(chan struct{})
	go func() { // ends with the process
		_ = cmd.Wait() // a killed process is no error here
		close(ended)
	}()
	n.cmd, n.ended, n.frozen = cmd, ended, false
	n.Starts++
	return nil
}

// Running tells whether the process is there, frozen or not.
func (n *Node) Running() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.ended:
		return false
	default:
		return true
	}
}

// Frozen tells whether Pause stopped the process.
func (n *Node) Frozen() bool { return n.frozen && n.Running() }

// WaitReady waits until the process says that it serves clients, or ends, or ctx does.
func (n *Node) WaitReady(ctx context.Context) error {
	for {
		text, err := n.output()
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte(readyLine)) {
			return nil
		}
		if !n.Running() {
			return fmt.Errorf("%s ended before it was ready: %s", n.Name, tail(text))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; %s", n.Name, context.Cause(ctx), tail(text))
		case <-n.ended:
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// output is what the current process has printed; of a very long text only the start.
func (n *Node) output() ([]byte, error) {
	f, err := os.Open(n.Log)
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s: %w", n.Name, err)
	}
	defer f.Close()
	const most = 4 << 20
	text, err := io.ReadAll(io.NewSectionReader(f, n.from, most))
	if err != nil {
		return nil, fmt.Errorf("reading the log of %s: %w", n.Name, err)
	}
	return text, nil
}

func tail(text []byte) string {
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return "its log ends with:\n" + string(text)
}

// Kill ends the process at once (SIGKILL) and waits until it is gone.
func (n *Node) Kill() error {
	if err := n.signal(syscall.SIGKILL); err != nil {
		return err
	}
	if !n.waitExit(10 * time.Second) {
		return fmt.Errorf("%s (process %d) survives SIGKILL", n.Name, n.cmd.Process.Pid)
	}
	return nil
}

// Terminate asks the process to end (SIGTERM).
func (n *Node) Terminate() error { return n.signal(syscall.SIGTERM) }

// Pause stops the process (SIGSTOP) until Resume.
func (n *Node) Pause() error {
	if err := n.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	n.frozen = true
	return nil
}

// Resume continues a paused process (SIGCONT).
func (n *Node) Resume() error {
	if err := n.signal(syscall.SIGCONT); err != nil {
		return err
	}
	n.frozen = false
	return nil
}

func (n *Node) signal(s syscall.Signal) error {
	if !n.Running() {
		return fmt.Errorf("%s does not run", n.Name)
	}
	if err := n.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %v to %s: %w", s, n.Name, err)
	}
	return nil
}

func (n *Node) waitExit(limit time.Duration) bool {
	t := time.NewTimer(max(limit, 0))
	defer t.Stop()
	select {
	case <-n.ended:
		return true
	case <-t.C:
		return false
	}
}
