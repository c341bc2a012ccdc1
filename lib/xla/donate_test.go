package xla_test

import (
	"slices"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// A step that donates its state needs the state's memory once, not twice.
func TestDonatedInputBecomesOutput(t *testing.T) {
	backend := devicetest.OpenOwn(t, 2)
	mesh := must.Get(backend.Mesh(xla.Axis("data", 2)))(t)
	const n = 1 << 16 // float32 on each device
	sharded := xla.Shard(0, "data")
	for _, donate := range []bool{false, true} {
		layout, aliased := xla.In(sharded, sharded).Gives(sharded, sharded), int64(0)
		if donate {
			layout, aliased = layout.Donates(0), 4*n
		}
		p := must.Get(xla.Compile(mesh, func(state, grad *graph.Node) (*graph.Node, *graph.Node) {
			return graph.Sub(state, grad), graph.ExpandAxes(graph.ReduceAllSum(grad), 0)
		}, layout))(t)
		state, grad := place(t, mesh, make([]float32, 2*n)), place(t, mesh, slices.Repeat([]float32{-1}, 2*n))
		for range 3 {
			before := address(t, state)
			out := must.Get(p.Call(state, grad))(t)
			if kept := address(t, out[0]) == before; kept != donate {
				t.Errorf("donated %v: the state lies where it lay: %v", donate, kept)
			}
			if !donate {
				must.Do(t, state.FinalizeAll())
			}
			state = out[0]
		}
		if m := must.Get(p.Memory())(t); m.Aliased != aliased {
			t.Errorf("donated %v: %d bytes of the outputs lie in an input's place, want %d", donate, m.Aliased, aliased)
		}
		three := slices.Repeat([]float32{3}, n)
		same(t, "after 3 steps by 1", state.Shards(), three, three)
		p.Close()
	}
}

// address returns the address of a tensor's shard on the first device.
func address(t *testing.T, on *dtensor.Tensor) *float32 {
	t.Helper()
	view := must.Get(xla.View[float32](on.Shards()[0]))(t)
	return &view[0]
}

func place(t *testing.T, mesh *xla.Mesh, values []float32) *dtensor.Tensor {
	t.Helper()
	return must.Get(mesh.Place(values, xla.Shard(0, "data")))(t)
}

// Donated memory may be overwritten at any time, so a tensor may not be donated twice; the arguments of a program that
// does not compile stay valid.
func TestDonationErrors(t *testing.T) {
	backend := devicetest.OpenOwn(t, 2)
	mesh := must.Get(backend.Mesh(xla.Axis("data", 2)))(t)
	sharded := xla.Shard(0, "data")
	layout := xla.In(sharded, sharded).Gives(sharded).Donates(0)
	add := must.Get(xla.Compile(mesh, graph.Add, layout))(t)
	defer add.Close()
	x := place(t, mesh, []float32{1, 2, 3, 4})
	fails(add.Call(x, x))(t, "the same tensor donated and read", "arguments 0 and 1 are the same tensor")
	fails(add.Call(x, place(t, mesh, []float32{1, 2, 3, 4, 5, 6})))(t, "shapes [2] and [3] were added")
	out := must.Get(add.Call(x, place(t, mesh, []float32{10, 20, 30, 40})))(t)
	same(t, "after a program that does not compile", whole(t, out...), []float32{11, 22, 33, 44})
	fails(add.Call(x, place(t, mesh, []float32{10, 20, 30, 40})))(t, "a donated tensor was used again")
}

// All checks come before the memory is donated.
func TestBadArgumentsLeaveDonatedOnesAlone(t *testing.T) {
	backend, other := devicetest.OpenOwn(t, 2), devicetest.Open(t, 2)
	mesh := must.Get(backend.Mesh(xla.Axis("data", 2)))(t)
	foreign := must.Get(other.Mesh(xla.Axis("data", 2)))(t)
	sharded := xla.Shard(0, "data")
	x, y := place(t, mesh, []float32{1, 2}), place(t, foreign, []float32{1, 2})
	twin := must.Get(dtensor.NewTensor(x.ShardingSpec(), x.Shards()))(t)
	gone := place(t, mesh, []float32{1, 2})
	must.Do(t, gone.FinalizeAll())
	for name, c := range map[string]struct {
		second any
		gives  xla.Placement
	}{
		"on another backend":               {y, sharded},
		"the same shards in another guise": {twin, sharded},
		"finalized":                        {gone, sharded},
		"an output that cannot lie so":     {[]float32{1, 2}, xla.Shard(1, "data")},
	} {
		add := must.Get(xla.Compile(mesh, graph.Add, xla.In(sharded, sharded).Gives(c.gives).Donates(0)))(t)
		fails(add.Call(x, c.second))(t, name)
		same(t, name, x.Shards(), []float32{1}, []float32{2})
		add.Close()
	}
	for _, donated := range [][]int{{-1}, {2}, {0, 99}} {
		layout := xla.In(sharded).Gives(sharded).Donates(donated...)
		fails(xla.Compile(mesh, graph.Add, layout))(t, "inputs that are not there", "donates input")
	}
}
