package servers

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Usage is what processes have used so far.
type Usage struct {
	CPU     time.Duration // user and system time, in steps of 10 ms
	RSS     int64         // bytes of memory now
	PeakRSS int64         // the most since the start or the last ResetPeaks
	Written int64         // bytes that went to the disk's driver; 0 where the kernel does not tell
}

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// Usage reads the figures of the running process.
func (n *Node) Usage() (Usage, error) {
	if !n.Running() {
		return Usage{}, fmt.Errorf("%s does not run: %w", n.Name, os.ErrProcessDone)
	}
	dir := fmt.Sprintf("/proc/%d/", n.cmd.Process.Pid)
	var u Usage
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", n.Name, err)
	}
	// The second field, the program's name in brackets, may hold spaces; utime and stime are fields 14 and 15.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("usage of %s: %q is not as expected", n.Name, stat)
	}
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return u, fmt.Errorf("usage of %s: %w", n.Name, err)
		}
		u.CPU += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	status, err := numbers(dir + "status")
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", n.Name, err)
	}
	u.RSS, u.PeakRSS = status["VmRSS"]*1024, status["VmHWM"]*1024
	if io, err := numbers(dir + "io"); err == nil {
		u.Written = io["write_bytes"]
	}
	return u, nil
}

// numbers reads a file of lines like "name: 12 kB".
func numbers(path string) (map[string]int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	s := bufio.NewScanner(bytes.NewReader(text))
	for s.Scan() {
		name, rest, ok := strings.Cut(s.Text(), ":")
		if f := strings.Fields(rest); ok && len(f) > 0 {
			if v, err := strconv.ParseInt(f[0], 10, 64); err == nil {
				out[name] = v
			}
		}
	}
	return out, s.Err()
}

// resetPeak lets VmHWM start again. Kernels without this keep the peak since the process' start.
func (n *Node) resetPeak() {
	if n.Running() {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.cmd.Process.Pid), []byte("5"), 0)
	}
}

// diskBytes is the space that a folder's files take on disk; holes do not count.
func diskBytes(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed while we walk
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			sum += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measuring %s: %w", dir, err)
	}
	return sum, nil
}
