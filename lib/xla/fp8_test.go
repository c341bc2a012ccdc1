package xla

import (
	"errors"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// openFor opens a device of a model of GPU that need not be here.
func openFor(t *testing.T, gpu string) *Mesh {
	t.Helper()
	b, err := Open(CompileFor(gpu), Devices(1))
	if errors.Is(err, ErrNoPlugin) {
		systest.Skip(t, systest.NoCUDA, err)
	}
	must.Do(t, err)
	t.Cleanup(b.Close)
	return must.Get(b.Mesh(Axis("data", 1)))(t)
}

// instructions lists the instructions of a compiled program, also those inside fusions, by what says is.
func instructions(t *testing.T, p *Program, is func(*instruction) string) (all []string) {
	t.Helper()
	h := must.Get(latest(&p.compiled, (*executable).optimized))(t)
	for _, c := range h.all {
		for _, i := range c.instructions {
			if name := is(i); name != "" {
				all = append(all, name)
			}
		}
	}
	return all
}

// TestDotFP8OnGPUs holds that the matmuls of a linear layer, forward and backward, and batches of them become one call
// of cuBLASLt's each, which takes no transposed operands: XLA transposes them.
func TestDotFP8OnGPUs(t *testing.T) {
	mesh := openFor(t, "h100")
	const e4m3, e5m2, bf16 = dtypes.F8E4M3FN, dtypes.F8E5M2, dtypes.BFloat16
	swap := func(x *graph.Node) *graph.Node { return graph.TransposeAllAxes(x, 0, 2, 1) }
	for name, dot := range map[string]func(x, w, v *graph.Node) *graph.Node{
		"forward":   func(x, w, _ *graph.Node) *graph.Node { return DotFP8(x, w, e4m3, e4m3, bf16) },
		"of input":  func(_, w, v *graph.Node) *graph.Node { return DotFP8(v, swap(w), e5m2, e4m3, bf16) },
		"of weight": func(x, _, v *graph.Node) *graph.Node { return DotFP8(swap(v), swap(x), e5m2, e4m3, bf16) },
	} {
		for _, batch := range []int{1, 4} {
			shape := func(dims ...int) shapes.Shape { return shapes.Make(bf16, append([]int{batch}, dims...)...) }
			p := prepared(t, mesh, func(in []*graph.Node) *graph.Node { return dot(in[0], in[1], in[2]) },
				shape(512, 256), shape(384, 256), shape(512, 384))
			got := instructions(t, p, func(i *instruction) string {
				if i.opcode == "dot" {
					return i.opcode
				}
				return i.field("custom_call_target").String()
			})
			if strings.Join(got, " ") != "__cublas$lt$matmul$f8" {
				t.Errorf("%s, batch of %d: matmuls %q, want one of cuBLASLt's", name, batch, got)
			}
		}
	}
}

func TestHasFP8(t *testing.T) {
	for gpu, want := range map[string]bool{"a100": false, "h100": true, "b200": true} {
		mesh := openFor(t, gpu)
		prepared(t, mesh, func(in []*graph.Node) *graph.Node {
			if got := HasFP8(in[0].Graph()); got != want {
				t.Errorf("%s: %v, want %v", gpu, got, want)
			}
			return in[0]
		}, floats(1))
	}
	b := must.Get(Open(Devices(1), Plugin("cpu")))(t)
	defer b.Close()
	prepared(t, must.Get(b.Mesh(Axis("data", 1)))(t), func(in []*graph.Node) *graph.Node {
		if HasFP8(in[0].Graph()) {
			t.Error("cpu: true, want false")
		}
		return in[0]
	}, floats(1))
}

// TestHalfPrecisionRoundsOnGPUs holds that XLA leaves no conversion to a half type and back out. Where it does, a step
// in one program and the same step in several end with different parameters: by 778 units in the last place instead of
// less than 64 in lib/offload's TestWays, on CPUs.
func TestHalfPrecisionRoundsOnGPUs(t *testing.T) {
	p := prepared(t, openFor(t, "h100"), func(in []*graph.Node) *graph.Node {
		half := graph.ConvertDType(graph.Exp(in[0]), dtypes.BFloat16)
		return graph.Sin(graph.ConvertDType(half, dtypes.Float32))
	}, floats(1024))
	convert := func(i *instruction) string {
		if i.opcode == "convert" {
			return i.shape().field("element_type").String()
		}
		return ""
	}
	if got := instructions(t, p, convert); len(got) != 2 {
		t.Errorf("%d conversions, want one to bfloat16 and one back", len(got))
	}
}
