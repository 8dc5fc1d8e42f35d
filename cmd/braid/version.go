package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"go.etcd.io/etcd/api/v3/version"
)

// printVersion prints etcd's four lines, for tools that read them, and braid's own version.
func printVersion(w io.Writer) {
	braid, revision := "(devel)", "Not provided"
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			braid = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	fmt.Fprintf(w, "etcd Version: %s\n", version.Version)
	fmt.Fprintf(w, "Git SHA: %s\n", revision)
	fmt.Fprintf(w, "Go Version: %s\n", runtime.Version())
	fmt.Fprintf(w, "Go OS/Arch: %s/%s\n", runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(w, "braid Version: %s\n", braid)
}
