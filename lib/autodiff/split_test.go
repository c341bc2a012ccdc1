package autodiff_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/autodiff"
)

// piece is a function to split, with its inputs, of which the floats have gradients, and the gradients of its outputs.
type piece struct {
	name  string
	fn    func(in nodes) nodes
	in, v []*tensors.Tensor
}

func (p piece) split() autodiff.Split {
	s := autodiff.Split{Fn: p.fn}
	for i, x := range p.in {
		if x.DType().IsFloat() {
			s.Of = append(s.Of, i)
		}
	}
	return s
}

// forward and backward are the programs of a split, and whole is the one program that does the same.
func (p piece) forward(in nodes) nodes {
	out, kept := p.split().Forward(in)
	return append(slices.Clone(out), kept...)
}

func (p piece) backward(in nodes) nodes {
	n, v := len(p.in), len(in)-len(p.v)
	return p.split().Backward(in[:n], in[n:v], in[v:])
}

func (p piece) whole(in nodes) nodes {
	n := len(p.in)
	out := p.fn(in[:n])
	var sum *node
	for i, y := range out {
		part := graph.ConvertDType(graph.ReduceAllSum(graph.Mul(y, in[n+i])), dtypes.Float32)
		if sum == nil {
			sum = part
		} else {
			sum = graph.Add(sum, part)
		}
	}
	return append(slices.Clone(out), graph.Gradient(sum, floats(in[:n])...)...)
}

// program names a program for [countOps].
func (p piece) program(which string) string { return "split_" + p.name + "_" + which }

// inTwo returns the outputs and gradients of two programs, and the saved activations; inOne those of one program.
func (p piece) inTwo(t *testing.T, on compute.Backend) (results, kept []*tensors.Tensor) {
	t.Helper()
	forward := run(t, on, p.program("forward"), p.forward, p.in...)
	out, kept := forward[:len(p.v)], forward[len(p.v):]
	return slices.Concat(out, run(t, on, p.program("backward"), p.backward, slices.Concat(p.in, kept, p.v)...)), kept
}

func (p piece) inOne(t *testing.T, on compute.Backend) []*tensors.Tensor {
	t.Helper()
	return run(t, on, p.program("whole"), p.whole, slices.Concat(p.in, p.v)...)
}

// run runs a graph function once under a name, on copies: GoMLX keeps a tensor to the backend that saw it first.
func run(t *testing.T, on compute.Backend, name string, fn func(nodes) nodes,
	args ...*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	own := make([]*tensors.Tensor, len(args))
	for i, a := range args {
		own[i] = must(a.LocalClone())
	}
	exec := must(graph.NewExec(on, fn))
	defer exec.Finalize()
	exec.WithName(name)
	out, err := exec.Call(own)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// values returns a tensor's elements.
func values(x *tensors.Tensor) []float64 {
	out, err := devicetest.CallOn(devicetest.PureGo(),
		func(in nodes) nodes { return nodes{graph.ConvertDType(in[0], dtypes.Float64)} }, must(x.LocalClone()))
	if err != nil {
		panic(err)
	}
	return tensors.MustCopyFlatData[float64](out[0])
}

// apart is the largest difference between two results, as a share of the largest element.
func apart(a, b *tensors.Tensor) float64 {
	x, y := values(a), values(b)
	largest, difference := 0.0, 0.0
	for i := range x {
		largest, difference = max(largest, math.Abs(y[i])), max(difference, math.Abs(x[i]-y[i]))
		if math.IsNaN(x[i]) != math.IsNaN(y[i]) {
			return math.Inf(1)
		}
	}
	if difference == 0 {
		return 0
	}
	return difference / largest
}

func sameBits(t *testing.T, got, want []*tensors.Tensor) {
	t.Helper()
	for i := range want {
		if !got[i].Equal(want[i]) {
			t.Errorf("result %d, %s, differs by %g of its largest element", i, want[i].Shape(), apart(got[i], want[i]))
		}
	}
}

// count counts the operations of a name in one of the piece's programs as XLA compiled it.
func (p piece) count(t *testing.T, which, op string) (n int) {
	t.Helper()
	files := must(filepath.Glob("module_*." + p.program(which) + "_*.cpu_after_optimizations.txt"))
	if len(files) != 1 {
		t.Fatalf("XLA has written %d programs %s, want 1: %v", len(files), p.program(which), files)
	}
	return strings.Count(string(must(os.ReadFile(files[0]))), " "+op+"(")
}
