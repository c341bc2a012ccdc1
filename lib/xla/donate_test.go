package xla_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/xla"
)

// A step that donates its state needs the state's memory once, not twice.
func TestDonatedInputBecomesOutput(t *testing.T) {
	backend := devicetest.OpenOwn(t, 2)
	mesh := must(backend.Mesh(xla.Axis("data", 2)))(t)
	const n = 1 << 16 // float32 on each device
	half := make([]float32, 2*n)
	step := func(state, grad *graph.Node) (*graph.Node, *graph.Node) {
		return graph.Sub(state, grad), graph.ReduceAllSum(grad)
	}
	sharded := xla.Shard(0, "data")
	for _, donate := range []bool{false, true} {
		layout := xla.In(sharded, sharded).Gives(sharded, sharded)
		if donate {
			layout = layout.Donates(0)
		}
		p := must(xla.Compile(mesh, func(state, grad *graph.Node) (*graph.Node, *graph.Node) {
			next, sum := step(state, grad)
			return next, graph.ExpandAxes(sum, 0)
		}, layout))(t)
		state, grad := place(t, mesh, half), place(t, mesh, slices.Repeat([]float32{-1}, 2*n))
		for range 3 {
			before := address(t, state)
			out := must(p.Call(state, grad))(t)
			if kept := address(t, out[0]) == before; kept != donate {
				t.Errorf("donated %v: the state lies where it lay: %v", donate, kept)
			}
			if !donate {
				check(t, state.FinalizeAll())
			}
			state = out[0]
		}
		memory := must(p.Memory())(t)
		want := int64(0)
		if donate {
			want = 4 * n
		}
		if memory.Aliased != want {
			t.Errorf("donated %v: %d bytes of the outputs lie in an input's place, want %d", donate, memory.Aliased,
				want)
		}
		for device, shard := range state.Shards() {
			got := must(xla.View[float32](shard))(t)
			if i := slices.IndexFunc(got, func(v float32) bool { return v != 3 }); i >= 0 {
				t.Errorf("donated %v: element %d on device %d is %g after 3 steps by 1, want 3", donate, i, device,
					got[i])
			}
		}
		p.Close()
	}
}

// address returns the address of a tensor's shard on the first device.
func address(t *testing.T, on *dtensor.Tensor) *float32 {
	t.Helper()
	view := must(xla.View[float32](on.Shards()[0]))(t)
	return &view[0]
}

func place(t *testing.T, mesh *xla.Mesh, values []float32) *dtensor.Tensor {
	t.Helper()
	placed := must(mesh.Place(values, xla.Shard(0, "data")))(t)
	return placed
}

// Donated memory may be overwritten at any time, so a tensor may not be donated twice; the arguments of a program that
// does not compile stay valid.
func TestDonationErrors(t *testing.T) {
	backend := devicetest.OpenOwn(t, 2)
	mesh := must(backend.Mesh(xla.Axis("data", 2)))(t)
	sharded := xla.Shard(0, "data")
	layout := xla.In(sharded, sharded).Gives(sharded).Donates(0)
	add := must(xla.Compile(mesh, graph.Add, layout))(t)
	defer add.Close()
	x := place(t, mesh, []float32{1, 2, 3, 4})
	if _, err := add.Call(x, x); err == nil || !strings.Contains(err.Error(), "arguments 0 and 1 are the same tensor") {
		t.Errorf("the same tensor donated and read: %v", err)
	}
	if _, err := add.Call(x, place(t, mesh, []float32{1, 2, 3, 4, 5, 6})); err == nil {
		t.Error("shapes [2] and [3] were added")
	}
	out, err := add.Call(x, place(t, mesh, []float32{10, 20, 30, 40}))
	if err != nil {
		t.Fatalf("after a program that does not compile: %v", err)
	}
	if got := out[0].Shards()[1].Value().([]float32)[0]; got != 33 {
		t.Errorf("3 + 30 = %g", got)
	}
	if _, err := add.Call(x, place(t, mesh, []float32{10, 20, 30, 40})); err == nil {
		t.Error("a donated tensor was used again")
	}
}

// All checks come before the memory is donated.
func TestBadArgumentsLeaveDonatedOnesAlone(t *testing.T) {
	backend, other := devicetest.OpenOwn(t, 2), devicetest.Open(t, 2)
	mesh := must(backend.Mesh(xla.Axis("data", 2)))(t)
	foreign := must(other.Mesh(xla.Axis("data", 2)))(t)
	sharded := xla.Shard(0, "data")
	x, y := place(t, mesh, []float32{1, 2}), place(t, foreign, []float32{1, 2})
	twin := must(dtensor.NewTensor(x.ShardingSpec(), x.Shards()))(t)
	gone := place(t, mesh, []float32{1, 2})
	check(t, gone.FinalizeAll())
	for name, c := range map[string]struct {
		second any
		gives  xla.Placement
	}{
		"on another backend":               {y, sharded},
		"the same shards in another guise": {twin, sharded},
		"finalized":                        {gone, sharded},
		"an output that cannot lie so":     {[]float32{1, 2}, xla.Shard(1, "data")},
	} {
		add := must(xla.Compile(mesh, graph.Add, xla.In(sharded, sharded).Gives(c.gives).Donates(0)))(t)
		if _, err := add.Call(x, c.second); err == nil {
			t.Errorf("%s: no error", name)
		}
		if got, err := xla.View[float32](x.Shards()[1]); err != nil || got[0] != 2 {
			t.Fatalf("%s: the donated argument is %v, %v", name, got, err)
		}
		add.Close()
	}
	for _, donated := range [][]int{{-1}, {2}, {0, 99}} {
		if _, err := xla.Compile(mesh, graph.Add, xla.In(sharded).Gives(sharded).Donates(donated...)); err == nil {
			t.Errorf("donating inputs %v of 2 was accepted", donated)
		}
	}
}
