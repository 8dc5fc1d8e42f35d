module github.com/braidkv/braid/test/conformance

go 1.26.8

require github.com/braidkv/braid/test/servers v0.0.0

replace github.com/braidkv/braid/test/servers => ../servers
