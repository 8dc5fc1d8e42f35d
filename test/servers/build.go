package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kind is what a server is.
type Kind string

// The kinds of server that Binary can build.
const (
	Braid Kind = "braid"
	Etcd  Kind = "etcd"
)

const rootModule = "github.com/braidkv/braid"

// Root finds the folder of the main module at or above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working directory: %w", err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module "+rootModule+"\n")) {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("not inside a checkout of " + rootModule)
		}
		dir = up
	}
}

// Binary returns the path of a server's program: given itself if it is not empty, else one that it builds from
// this checkout (etcd: from its modules, as bench/go.mod names them) into the user's cache folder.
func Binary(ctx context.Context, k Kind, given string) (string, error) {
	if given != "" {
		abs, err := filepath.Abs(given)
		if err != nil {
			return "", fmt.Errorf("the path of %s: %w", k, err)
		}
		if _, err := os.Stat(abs); err != nil {
			return "", fmt.Errorf("the program for %s: %w", k, err)
		}
		return abs, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	out, err := CacheDir()
	if err != nil {
		return "", err
	}
	out = filepath.Join(out, string(k))
	switch k {
	case Braid:
		return out, GoBuild(ctx, root, "./cmd/braid", out)
	case Etcd:
		return out, GoBuild(ctx, filepath.Join(root, "bench"), "./etcd", out)
	}
	return "", fmt.Errorf("unknown kind of server %q", k)
}

// CacheDir is where programs that were built stay; it exists on return.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, "braid-servers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	return dir, nil
}

// GoBuild builds the package pkg of the module in dir into the file out.
func GoBuild(ctx context.Context, dir, pkg, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
	cmd.Dir = dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOFLAGS=") && !strings.HasPrefix(v, "GOWORK=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s in %s: %w\n%s", pkg, dir, err, text)
	}
	return nil
}
