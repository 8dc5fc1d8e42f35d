// Command etcd is the etcd server of the module version in go.mod, for comparison.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
