package optim_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/xla"
)

// backend is one device that the tests of this package share.
var backend *xla.Backend

func TestMain(m *testing.M) {
	var err error
	if backend, err = xla.Open(xla.Devices(1)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	backend.Close()
	os.Exit(code)
}

// call builds, compiles and runs a graph function once.
func call(fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	e, err := graph.NewExec(backend, fn)
	if err != nil {
		return nil, err
	}
	defer e.Finalize()
	return e.Call(args)
}
