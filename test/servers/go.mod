module github.com/braidkv/braid/test/servers

go 1.26.8
