package fused

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/fused/internal/kernel"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

type nodes = []*graph.Node

// operation is an operation of float32 inputs.
type operation struct {
	name string
	of   func(in nodes) *graph.Node
	dims [][]int
}

// operations are all, on rows of few and of many numbers.
func operations() (all []operation) {
	for _, x := range [][]int{{7}, {5, 3}, {3, 4, 33}, {130, 200}} {
		n := x[len(x)-1]
		all = append(all,
			operation{"BiasGELU", func(in nodes) *graph.Node { return BiasGELU(in[0], in[1]) }, [][]int{x, {n}}},
			operation{"CrossEntropy", func(in nodes) *graph.Node {
				row := shapes.Make(dtypes.Int32, x[:len(x)-1]...)
				targets := graph.Zeros(in[0].Graph(), row)
				for axis := range row.Dimensions {
					targets = graph.Add(targets, graph.MulScalar(graph.Iota(in[0].Graph(), row, axis), 3+axis))
				}
				return CrossEntropy(in[0], targets) // of the last rows the targets are not in the row
			}, [][]int{x}})
	}
	return all
}

// inputs are normal numbers.
func (o operation) inputs() (all []*tensors.Tensor) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, dims := range o.dims {
		values := make([]float32, shapes.Make(dtypes.Float32, dims...).Size())
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
		all = append(all, tensors.FromFlatDataAndDimensions(values, dims...))
	}
	return all
}

// weighted is a scalar whose gradient differs from place to place.
func weighted(y *graph.Node) *graph.Node {
	at := graph.Iota(y.Graph(), shapes.Make(y.DType(), y.Shape().Size()), 0)
	return graph.ReduceAllSum(graph.Mul(graph.Reshape(y, -1), graph.Cos(at)))
}

// run returns the result and the gradients, computed in a type.
func (o operation) run(t *testing.T, b compute.Backend, of dtypes.DType, fn func(in nodes) *graph.Node) [][]float64 {
	t.Helper()
	var all [][]float64
	for _, r := range must.Get(devicetest.CallOn(b, func(in nodes) nodes {
		for i, x := range in {
			in[i] = graph.ConvertDType(x, of)
		}
		y := fn(in)
		out := append(nodes{y}, graph.Gradient(weighted(y), in...)...)
		for i, x := range out {
			out[i] = graph.ConvertDType(x, dtypes.Float64)
		}
		return out
	}, o.inputs()...))(t) {
		all = append(all, tensors.MustCopyFlatData[float64](r))
	}
	return all
}

// apart returns the largest difference of two lists and the largest magnitude.
func apart(a, b []float64) (most, size float64) {
	for i, x := range a {
		if d := math.Abs(x - b[i]); !(d <= most) { // true for NaN
			most = d
		}
		size = max(size, math.Abs(b[i]))
	}
	return most, size
}

// withoutKernels returns devices whose programs have XLA's operations.
func withoutKernels(t *testing.T) *xla.Backend {
	b := must.Get(xla.Open(xla.Devices(1), xla.Plugin(devicetest.Plugin()), xla.NoKernels()))(t)
	t.Cleanup(b.Close)
	return b
}

// TestExact: results and gradients differ from those in float64, which GoMLX derives, by at most twice as much as
// those of XLA's operations in float32, and a few roundings. Recomputed, they are the same.
func TestExact(t *testing.T) {
	without := withoutKernels(t)
	for _, o := range operations() {
		exact := o.run(t, without, dtypes.Float64, o.of)
		plain := o.run(t, without, dtypes.Float32, o.of)
		got := o.run(t, devicetest.One(), dtypes.Float32, o.of)
		again := o.run(t, devicetest.One(), dtypes.Float32, func(in nodes) *graph.Node {
			return recompute.Call(func(in nodes) nodes { return nodes{o.of(in)} }, in...)[0]
		})
		for i := range exact {
			is, size := apart(got[i], exact[i])
			may, _ := apart(plain[i], exact[i])
			if !(is <= 2*may+0x1p-21*size) {
				t.Errorf("%s of %v, result %d: error %g, of XLA's operations %g", o.name, o.dims, i, is, may)
			}
			if d, _ := apart(got[i], again[i]); d != 0 {
				t.Errorf("%s of %v, result %d: recomputed, it differs by %g", o.name, o.dims, i, d)
			}
		}
	}
}

// TestSplit: in two programs the gradients are the same, and the results of kernels are recomputed: of a matmul's
// result and a kernel's, only the first is saved.
func TestSplit(t *testing.T) {
	for _, o := range operations() {
		dims := o.dims[0]
		n := dims[len(dims)-1]
		square := shapes.Make(dtypes.Float32, n, n)
		s := autodiff.Split{Fn: func(in nodes) nodes {
			first := graph.Reshape(in[0], -1, n)
			turned := graph.Dot(first, graph.Cos(graph.Iota(first.Graph(), square, 0))).Product()
			y := o.of(append(nodes{graph.Reshape(turned, dims...)}, in[1:]...))
			return nodes{weighted(graph.Exp(y))}
		}}
		for i := range o.dims {
			s.Of = append(s.Of, i)
		}
		saved := 0
		out := must.Get(devicetest.Call(func(in nodes) nodes {
			_, kept := s.Forward(in)
			saved = len(kept)
			two := s.Backward(in, kept, nodes{graph.ScalarOne(in[0].Graph(), dtypes.Float32)})
			return append(two, graph.Gradient(s.Fn(in)[0], in...)...)
		}, o.inputs()...))(t)
		if saved != 1 {
			t.Errorf("%s of %v: %d values are saved, want the matmul's", o.name, dims, saved)
		}
		for i := range o.dims {
			two, one := tensors.MustCopyFlatData[float32](out[i]), tensors.MustCopyFlatData[float32](out[len(o.dims)+i])
			for j := range two {
				if math.Abs(float64(two[j]-one[j])) > 1e-4*max(1, math.Abs(float64(one[j]))) {
					t.Fatalf("%s of %v, gradient %d, element %d: %g in two programs, %g in one", o.name, dims, i, j,
						two[j], one[j])
				}
			}
		}
	}
}

// TestTargets: targets have any integer type, and others than 0 to V−1 have loss and gradient 0.
func TestTargets(t *testing.T) {
	for _, c := range []struct {
		targets any
		want    []float64 // of 4 equal logits: log 4, or 0
	}{
		{[]int8{0, 3, 4, -1}, []float64{1, 1, 0, 0}},
		{[]int16{0, 3, 4, -1}, []float64{1, 1, 0, 0}},
		{[]int32{0, 3, math.MinInt32, math.MaxInt32}, []float64{1, 1, 0, 0}},
		{[]int64{1 << 32, 3, -1 << 32, math.MinInt64}, []float64{0, 1, 0, 0}},
		{[]uint8{0, 3, 4, 255}, []float64{1, 1, 0, 0}},
		{[]uint16{0, 3, 4, 1<<16 - 1}, []float64{1, 1, 0, 0}},
		{[]uint32{0, 3, 4, 1<<32 - 1}, []float64{1, 1, 0, 0}},
		{[]uint64{0, 1 << 32, 4, 1<<64 - 1}, []float64{1, 0, 0, 0}},
	} {
		out := must.Get(devicetest.Call(func(in nodes) nodes {
			logits := graph.Zeros(in[0].Graph(), shapes.Make(dtypes.Float32, 4, 4))
			loss := CrossEntropy(logits, in[0])
			size := graph.Square(graph.Gradient(graph.ReduceAllSum(loss), logits)[0])
			return nodes{loss, graph.ReduceSum(size, -1)}
		}, must.Get(tensors.FromAnyValue(c.targets))(t)))(t)
		losses, sizes := tensors.MustCopyFlatData[float32](out[0]), tensors.MustCopyFlatData[float32](out[1])
		for i, one := range c.want {
			if math.Abs(float64(losses[i])-one*math.Log(4)) > 1e-6 || math.Abs(float64(sizes[i])-one*0.75) > 1e-6 {
				t.Errorf("%T %v, row %d: loss %g, squared gradient %g", c.targets, c.targets, i, losses[i], sizes[i])
			}
		}
	}
}

// TestWhere: the kernels compute for float32 on CPUs, and elsewhere GoMLX's operations do.
func TestWhere(t *testing.T) {
	asked := func(b compute.Backend, of dtypes.DType, dims ...int) (are bool) {
		t.Helper()
		must.Get(devicetest.CallOn(b, func(in nodes) nodes {
			are = calls(gelu, geluGradient, graph.Zeros(in[0].Graph(), shapes.Make(of, dims...)))
			return in
		}, tensors.FromValue(float32(0))))(t)
		return are
	}
	one := devicetest.One()
	where := one.Info().Platform == "cpu" && kernel.Bits() > 128
	mesh := must.Get(one.Mesh(xla.Axis("x", 1)))(t)
	auto := true
	p := must.Get(xla.CompileAuto(mesh, func(x *graph.Node) *graph.Node {
		auto = calls(gelu, geluGradient, x)
		return x
	}, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
	defer p.Close()
	must.Do(t, p.Prepare(tensors.FromValue([]float32{0})))
	for what, is := range map[string]bool{
		"float32": asked(one, dtypes.Float32, 2, 3) == where, "float64": !asked(one, dtypes.Float64, 2, 3),
		"bfloat16": !asked(one, dtypes.BFloat16, 2, 3), "nothing": !asked(one, dtypes.Float32, 2, 0),
		"NoKernels": !asked(withoutKernels(t), dtypes.Float32, 2, 3), "plain Go": !asked(devicetest.PureGo(), dtypes.Float32, 2, 3),
		"CompileAuto": !auto,
	} {
		if !is {
			t.Errorf("%s: kernels are chosen wrongly", what)
		}
	}
}

// TestChecked: a backend checks every result of each kernel when it is opened, and refuses a wrong one.
func TestChecked(t *testing.T) {
	if os.Getenv("SHARDBOOK_TEST_WRONG") != "" {
		_, handler := kernel.GELU()
		xla.NewKernel("shardbook_test_wrong", handler).Checked(func() (operands, want []*tensors.Tensor) {
			return list(matrix(-1, 20, -20, 0), row(1, 2, 3, 0)), list(matrix(0, 22, 0, 1), vector())
		})
		_, err := xla.Open(xla.Devices(1), xla.Plugin(devicetest.Plugin()))
		fmt.Println("opened:", err)
		return
	}
	if devicetest.One().Info().Platform != "cpu" || kernel.Bits() == 128 {
		return // nothing calls the kernels
	}
	values := map[string]int{}
	for _, c := range devicetest.One().Info().Canaries {
		if name, _, found := strings.Cut(c.Name, ", result"); found {
			values[name] += c.Of
		}
	}
	for name, want := range map[string]int{"gelu": 64, "gelu_gradient": 96,
		"cross_entropy": 6, "cross_entropy_gradient": 64} {
		if got := values["kernel shardbook_cheap_"+name]; got != want {
			t.Errorf("%d values of %s are checked, want %d", got, name, want)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestChecked$")
	cmd.Env = append(os.Environ(), "SHARDBOOK_TEST_WRONG=1")
	output, err := cmd.CombinedOutput()
	must.Do(t, err)
	if want := "kernel shardbook_test_wrong, result 0: 16 of 64 values wrong"; !strings.Contains(string(output), want) {
		t.Errorf("%s, want %q in it", output, want)
	}
}
