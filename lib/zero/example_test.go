package zero_test

import (
	"context"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// Stage 3 by two ranks with a device each: they hold half of all, and gather each block's parameters a pass ahead. The
// ranks may as well be processes on two hosts ([zero.Join], lib/collective/mpi).
func ExampleNew() {
	backend, err := xla.Open(xla.Devices(2), xla.Plugin("cpu"))
	notebook.Check(err)
	defer backend.Close()
	recipe := train.Recipe{Model: deep(2, 8), Optimizer: optim.Adam(1e-3)}
	run, err := zero.New(context.Background(), backend, recipe, 2, zero.Options{Stage: 3, Prefetch: 1})
	notebook.Check(err)
	defer run.Close()
	x := tensors.FromValue([][]float32{{1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}})
	_, err = run.Step(context.Background(), x, x)
	notebook.Check(err)
	held, all := run.Memory(), recipe.Model.Params().Bytes()
	fmt.Println(held[memest.Parameters], "of", all, "bytes of parameters,", held[memest.Optimizer], "of", 2*all,
		"of Adam's states")
	fmt.Println(run.Plan())
	// Output:
	// 256 of 512 bytes of parameters, 512 of 1024 of Adam's states
	// plan serial blocks=3 units=2 microbatches=1 every=1 weights=flush
	// axis data size=2 groups=0-1
	// unit 0 h0 reduce=data shard=data
	// unit 1 h1 reduce=data shard=data
	// block 0 h0 units=0
	// block 1 h1 units=1
	// block 2 loss units=
	// ranks 0-1: 0UNSHARD 1UNSHARD 0F0 0RESHARD 1F0 1RESHARD 2F0 1UNSHARD 2B0 0UNSHARD 1B0 1RESHARD
	//     1REDUCE_GRAD 0B0 0RESHARD 0REDUCE_GRAD WAIT_1REDUCE_GRAD U0
}

// The same as one program. The traffic along the devices' axis shows what XLA made of it. (The first block's backward
// pass does not need its parameters.)
func ExampleNewSPMD() {
	backend, err := xla.Open(xla.Devices(2))
	notebook.Check(err)
	defer backend.Close()
	recipe := train.Recipe{Model: deep(3, 8), Optimizer: optim.Adam(1e-3)}
	run, err := zero.NewSPMD(context.Background(), backend, recipe, 2, zero.Options{Stage: 3})
	notebook.Check(err)
	defer run.Close()
	x := tensors.FromValue([][]float32{{1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}})
	_, err = run.Step(context.Background(), x, x)
	notebook.Check(err)
	sent, err := run.Traffic()
	notebook.Check(err)
	fmt.Println(run.Memory()[memest.Parameters], "of", recipe.Model.Params().Bytes(), "bytes of parameters;", sent,
		"bytes sent")
	// Output:
	// 384 of 768 bytes of parameters; map[data:2052] bytes sent
}
