package xla_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// Programs for a GPU that is not here are compiled for it, say what they need, and return zeros.
func TestCompileFor(t *testing.T) {
	b := devicetest.OpenFor(t, "H100", 2)
	if i := b.Info(); i.Devices != 2 || i.Platform != "cuda" || b.HasSharedBuffers() {
		t.Errorf("%+v, shared buffers: %v", i, b.HasSharedBuffers())
	}
	mesh := must.Get(b.Mesh(xla.Axis("data", 2)))(t)
	split := xla.Shard(0, "data")
	p := must.Get(xla.Compile(mesh, func(x, y *graph.Node) *graph.Node { return graph.Dot(x, y).Product() },
		xla.In(split, xla.Replicated()).Gives(split).Donates(0)))(t)
	x := must.Get(mesh.Place(tensors.FromShape(shapes.Make(dtypes.Float32, 256, 128)), split))(t)
	out := must.Get(p.Call(x, tensors.FromShape(shapes.Make(dtypes.Float32, 128, 64))))(t)
	if got := must.Get(out[0].Merge())(t); got.Shape().String() != "(Float32)[256, 64]" ||
		strings.Trim(fmt.Sprint(got.Value()), "[] 0") != "" {
		t.Errorf("a program gave %v", got.Shape())
	}
	if live := b.Live(); live[0].Bytes != 128*64*4 || live[1] != live[0] {
		t.Errorf("after a call that took its input: %+v", live)
	}
	if m := must.Get(p.Memory())(t); m.Arguments != 128*128*4+128*64*4 || m.Outputs != 128*64*4 {
		t.Errorf("memory %+v", m)
	}
	if w := must.Get(p.Work())(t); w.FLOPs < 2*128*128*64 {
		t.Errorf("work %+v", w)
	}
	x = must.Get(mesh.Place(tensors.FromShape(shapes.Make(dtypes.Float32, 256, 128)), split))(t)
	fails(p.Call(x, tensors.FromShape(shapes.Make(dtypes.Float32, 100, 64))))(t, "matrices that do not fit", "100")
}

func TestCompileForErrors(t *testing.T) {
	fails(xla.Open(xla.CompileFor("k80")))(t, "a GPU that XLA has no description of", `"k80"`, "h100")
	fails(xla.Open(xla.CompileFor("h100"), xla.Plugin("cpu")))(t, "a plugin for CPUs", "does not compile for a NVIDIA H100")
}

// Devices that share those of the plugin are different ones to whoever uses them.
func TestShare(t *testing.T) {
	b := devicetest.OpenShared(t, 4, 2)
	for device := range 4 {
		x := must.Get(b.Put([]float32{float32(device)}, device))(t)
		if at := must.Get(x.Device())(t); int(at) != device {
			t.Errorf("an array for device %d is on %d", device, at)
		}
		must.Do(t, x.ToDevice(b, xla.DeviceNum((device+2)%4))) // the same one of the plugin's
		if got := fmt.Sprint(x.Value()); got != fmt.Sprintf("[%d]", device) {
			t.Errorf("after a move: %s", got)
		}
		must.Do(t, x.FinalizeAll())
	}
	mesh := must.Get(b.MeshFrom(1, xla.Axis("data", 2)))(t) // the plugin's 1 and 0
	sum := xla.Collective{Kind: xla.AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"data"}}
	p := must.Get(xla.Compile(mesh, func(x *graph.Node) *graph.Node { return sum.Apply(x)[0] },
		xla.In(xla.Shard(0, "data")).Gives(xla.Replicated())))(t)
	out := must.Get(p.Call([]float32{1, 2}))(t)
	for i, shard := range out[0].Shards() {
		if at := must.Get(shard.Device())(t); int(at) != 1+i || fmt.Sprint(shard.Value()) != "[3]" {
			t.Errorf("shard %d: %v on device %d", i, shard.Value(), at)
		}
	}
	fails(b.Mesh(xla.Axis("data", 3)))(t, "a mesh of devices that are the same", "share 2", "ranks")
	fails(b.Put(1, 4))(t, "a device too many", "choose one from 0 to 3")
}
