// etcd, or etcdctl if the program has that name.
package main

import (
	"os"
	"path/filepath"

	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	if filepath.Base(os.Args[0]) == "etcdctl" {
		ctlv3.MustStart()
		return
	}
	etcdmain.Main(os.Args)
}
