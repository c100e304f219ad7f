// Command etcd is the etcd server: its module cannot be installed by `go install`, since it replaces others.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
