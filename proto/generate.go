// Package braidpb holds the messages that braid's nodes send each other and store, and the code generated from
// them. It has no logic. `go generate ./proto` writes the generated code anew.
package braidpb

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.75.0 generate
