package xla_test

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestTF32OnGPUs holds that float32 matmuls keep all bits of their operands on GPUs, unless TF32 is asked for.
func TestTF32OnGPUs(t *testing.T) {
	for _, c := range []struct {
		options []xla.Option
		tf32    bool
	}{{nil, false}, {[]xla.Option{xla.TF32()}, true}} {
		b := devicetest.OpenFor(t, "h100", 1, c.options...)
		if got := has(t, b, xla.HasTF32); got != c.tf32 {
			t.Errorf("%+v: HasTF32 is %v", c, got)
		}
		mesh := must.Get(b.Mesh(xla.Axis("data", 1)))(t)
		p := must.Get(xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.Dot(x, x).Product() },
			xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
		defer p.Close()
		must.Do(t, p.Prepare(tensors.FromShape(shapes.Make(dtypes.Float32, 512, 512))))
		highest, all, err := xla.Highest(p)
		if err != nil || all != 1 || highest == 1 == c.tf32 {
			t.Errorf("%+v: %d matmuls, %d with all bits, %v", c, all, highest, err)
		}
	}
	cpu := must.Get(xla.Open(xla.Devices(1), xla.Plugin("cpu"), xla.TF32()))(t)
	defer cpu.Close()
	if has(t, cpu, xla.HasTF32) {
		t.Error("CPUs have TF32")
	}
}
