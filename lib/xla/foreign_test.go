package xla_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

// All numbers of these tests are small integers and halves: exact in every order of summation.

// affine calls the kernel of that name; parabola the other.
func affine(x, numbers *graph.Node) []*graph.Node {
	return called(testkernel.Affine, x, numbers, func(x *graph.Node) *graph.Node { return x })
}

func parabola(x, numbers *graph.Node) []*graph.Node {
	return called(testkernel.Parabola, x, numbers, graph.Square)
}

func called(k *xla.Kernel, x, numbers *graph.Node, power func(*graph.Node) *graph.Node) []*graph.Node {
	n := x.Shape().Size()
	sums := shapes.Make(dtypes.Float32, n/testkernel.Part+1)
	return k.Call([]*graph.Node{x, numbers}, []shapes.Shape{x.Shape(), sums}, func(in []*graph.Node) []*graph.Node {
		y := graph.Mul(graph.Slice(in[1], graph.AxisElem(0)), power(graph.Reshape(in[0], n)))
		y = graph.Add(y, graph.Slice(in[1], graph.AxisElem(1)))
		rest := graph.Zeros(y.Graph(), shapes.Make(dtypes.Float32, sums.Size()*testkernel.Part-n))
		parts := graph.Reshape(graph.Concatenate([]*graph.Node{y, rest}, 0), sums.Size(), testkernel.Part)
		return []*graph.Node{graph.Reshape(y, x.Shape().Dimensions...), graph.ReduceSum(parts, 1)}
	})
}

// affineOf is the kernel in plain Go.
func affineOf(x []float32, factor, offset float32) (y, sums []float32) {
	sums = make([]float32, len(x)/testkernel.Part+1)
	for i, v := range x {
		y = append(y, factor*v+offset)
		sums[i/testkernel.Part] += y[i]
	}
	return y, sums
}

// counting returns n small integers.
func counting(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%101 - 50)
	}
	return x
}

// kernel computes a graph function of x and two numbers on one device.
func kernel(t *testing.T, fn func(x, numbers *graph.Node) []*graph.Node, x *tensors.Tensor,
	numbers ...float32) []*tensors.Tensor {
	t.Helper()
	return must.Get(devicetest.Call(bothNodes(fn), x, tensors.FromValue(numbers)))(t)
}

func bothNodes(fn func(x, numbers *graph.Node) []*graph.Node) func([]*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node { return fn(in[0], in[1]) }
}

// calls checks how many kernel calls fn's program has.
func calls(t *testing.T, want int, fn func()) {
	t.Helper()
	before := testkernel.Calls()
	fn()
	if got := testkernel.Calls() - before; got != want {
		t.Errorf("the kernel was called %d times, want %d", got, want)
	}
}

// same compares the values of tensors.
func same(t *testing.T, what string, got []*tensors.Tensor, want ...[]float32) {
	t.Helper()
	for i, want := range want {
		if values := tensors.MustCopyFlatData[float32](got[i]); !slices.Equal(values, want) {
			t.Errorf("%s, result %d: %v, want %v", what, i, values, want)
		}
	}
}

// Sizes around those of a part; none at all; more parts than there are threads; a scalar, which has no axes.
func TestKernel(t *testing.T) {
	for _, dims := range [][]int{{0}, {1}, {63}, {64}, {65}, {10_000}, {}} {
		x := tensors.FromShape(shapes.Make(dtypes.Float32, dims...))
		values := counting(x.Size())
		tensors.MustMutableFlatData(x, func(flat []float32) { copy(flat, values) })
		calls(t, 1, func() {
			y, sums := affineOf(values, 3, 0.5)
			same(t, fmt.Sprint(dims), kernel(t, affine, x, 3, 0.5), y, sums)
		})
	}
}

// Operands that XLA stores transposed are converted to row-major order and back.
func TestKernelShapes(t *testing.T) {
	const rows, columns = 3, 50
	x := counting(rows * columns)
	turned := make([]float32, len(x))
	for i, v := range x {
		turned[i%columns*rows+i/columns] = v
	}
	y, _ := affineOf(x, 3, 0.5)
	_, sums := affineOf(turned, 3, 0.5)
	same(t, "transposed", kernel(t, func(x, numbers *graph.Node) []*graph.Node {
		r := affine(graph.Transpose(x, 0, 1), numbers)
		return []*graph.Node{graph.Transpose(r[0], 0, 1), r[1]}
	}, tensors.FromFlatDataAndDimensions(x, rows, columns), 3, 0.5), y, sums)
}

// Calls of two kernels in one graph are distinguished, and constants are those of the graph before, between and after.
// A function with a similar name is not a kernel.
func TestKernelsInOneGraph(t *testing.T) {
	x := counting(70)
	const turns = 12
	all, squares, tripled, doubled := slices.Clone(x), slices.Clone(x), slices.Clone(x), slices.Clone(x)
	for i, v := range x {
		squares[i] = v*v + 6
		all[i] = v + turns // (3v + 6 - 3)/3 = v + 1
		tripled[i] = 3 * all[i]
		doubled[i] = 2 * v
	}
	calls(t, turns+1, func() {
		same(t, "in turn", kernel(t, func(x, numbers *graph.Node) []*graph.Node {
			double := graph.NewFunction(x.Graph(), "kernel_0", func(g *graph.Graph) []*graph.Node {
				p, unused := graph.Parameter(g, "p", x.Shape()), graph.Parameter(g, "unused", numbers.Shape())
				return []*graph.Node{graph.Add(p, p), unused}
			}).Call(x, numbers)[0]
			x = graph.DivScalar(graph.MulScalar(x, 3), 3)
			squares := parabola(x, numbers)[0]
			for range turns {
				x = graph.SubScalar(affine(graph.MulScalar(x, 3), numbers)[0], 3)
				x = graph.DivScalar(x, 3)
			}
			return []*graph.Node{x, squares, graph.MulScalar(x, 3), double}
		}, tensors.FromValue(x), 1, 6), all, squares, tripled, doubled)
	})
}

// A kernel's error is the call's error, also if only one device has it; the next call works.
func TestKernelError(t *testing.T) {
	const says = "the factor is not a number"
	nan := float32(math.NaN())
	first := func(x, numbers *graph.Node) *graph.Node { return affine(x, numbers)[0] }
	exec := must.Get(graph.NewExec(devicetest.One(), first))(t)
	defer exec.Finalize()
	mesh := must.Get(devicetest.OpenOwn(t, 4).Mesh(xla.Axis("data", 4)))(t)
	split := xla.Shard(0, "data")
	program := must.Get(xla.Compile(mesh, first, xla.In(split).Gives(split)))(t)
	defer program.Close()
	x := []float32{1, 2, 3, 4}
	for range 3 {
		fails(exec.Call(x, []float32{nan, 0}))(t, "Exec.Call", says)
		same(t, "after the error", must.Get(exec.Call(x, []float32{2, 1}))(t), []float32{3, 5, 7, 9})
		fails(program.Call(x, []float32{1, 0, 1, 0, nan, 0, 1, 0}))(t, "Program.Call", says)
		out := must.Get(program.Call(x, []float32{2, 1, 3, 1, 2, 1, 3, 1}))(t)
		same(t, "after a device's error", whole(t, out...), []float32{3, 7, 7, 13})
	}
}

// A call whose structs differ from those of foreign.h is an error before they are used; another version of the
// interface rejects the kernel.
func TestKernelOfOtherLayout(t *testing.T) {
	const other = "XLA calls the kernel with structs of another layout than foreign.h has: use the pinned plugin"
	for frame, want := range map[testkernel.Frame]string{
		testkernel.Sound: "3 5 7, 15", testkernel.ShortFrame: other, testkernel.LongOperands: other,
		testkernel.LongResults: other, testkernel.ShortArray: other, testkernel.NoArray: other,
		testkernel.Version: "0", testkernel.VersionOfShortAPI: "-1", testkernel.VersionOfNewAPI: "-1",
		testkernel.VersionOfShortFrame: "-1",
	} {
		if got := frame.Say(); got != want {
			t.Errorf("frame %d: %q, want %q", frame, got, want)
		}
	}
}

func TestKernelOfTooLittle(t *testing.T) {
	for _, operands := range []int{0, 2} {
		want := fmt.Sprintf("has %d operands and 1 results: give it one operand and two results, or more", operands)
		fails(devicetest.Call(func(in []*graph.Node) []*graph.Node {
			return testkernel.Affine.Call(in[:operands], []shapes.Shape{in[0].Shape()}, nil)
		}, tensors.FromValue([]float32{1}), tensors.FromValue([]float32{1, 0})))(t, "too little", want)
	}
}

// Goroutines call a program of four devices and one of one device at the same time, with all threads busy.
func TestKernelCallsAtOnce(t *testing.T) {
	b := devicetest.OpenOwn(t, 4)
	mesh := must.Get(b.Mesh(xla.Axis("data", 4)))(t)
	split := xla.Shard(0, "data")
	program := must.Get(xla.Compile(mesh, bothNodes(affine), xla.In(split, xla.Replicated()).Gives(split)))(t)
	exec := must.Get(graph.NewExec(b, bothNodes(affine)))(t)
	const goroutines, turns, n = 8, 20, 1000
	x := counting(4 * n)
	one := func(factor float32) {
		numbers := []float32{factor, 1}
		y, sums := affineOf(x, factor, 1)
		var own []float32 // each device's sums
		for shard := range slices.Chunk(x, n) {
			_, part := affineOf(shard, factor, 1)
			own = append(own, part...)
		}
		placed, err := program.Call(x, numbers)
		out, err2 := exec.Call(x, numbers)
		if err := errors.Join(err, err2); err != nil {
			t.Error(err)
			return
		}
		same(t, "four devices", whole(t, placed...), y, own)
		same(t, "one device", out, y, sums)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		calls(t, goroutines*turns*(4+1), func() {
			var all sync.WaitGroup
			for i := range goroutines {
				all.Go(func() {
					for turn := range turns {
						one(float32(i*turns + turn))
					}
				})
			}
			all.Wait()
		})
	}()
	select {
	case <-done:
		program.Close()
		exec.Finalize()
	case <-time.After(2 * time.Minute): // no measure of time: they wait for each other
		t.Fatal("the calls do not come to an end")
	}
}

// A kernel may be called in a loop and in a branch, with values from outside.
func TestKernelInClosures(t *testing.T) {
	x := counting(65)
	looped, squares, doubled := make([]float32, len(x)), make([]float32, len(x)), make([]float32, len(x))
	for i, v := range x {
		for range 3 {
			looped[i] = 3*(looped[i]+2*v) + 1
		}
		squares[i] = 3*v*v + 1
		doubled[i] = 2 * v
	}
	calls(t, 3+1, func() {
		same(t, "loop, branch, after", kernel(t, func(x, numbers *graph.Node) []*graph.Node {
			g := x.Graph()
			double := graph.MulScalar(x, 2)
			last := xla.While([]*graph.Node{graph.Const(g, int32(0)), graph.ZerosLike(x)}, below(3),
				func(s []*graph.Node) []*graph.Node {
					return []*graph.Node{graph.AddScalar(s[0], 1), affine(graph.Add(s[1], double), numbers)[0]}
				})
			branch := xla.If(graph.LessThan(last[0], graph.Const(g, int32(9))),
				func() []*graph.Node { return parabola(x, numbers)[:1] },
				func() []*graph.Node { return affine(x, numbers)[:1] })
			return []*graph.Node{last[1], branch[0], graph.MulScalar(x, 2)}
		}, tensors.FromValue(x), 3, 1), looped, squares, doubled)
	})
}

// Recomputation calls the kernel again, and the gradients are the same.
func TestKernelIsRecomputed(t *testing.T) {
	// y², whose gradient needs y; the kernel has no gradient, so it is given here.
	square := func(in []*graph.Node) []*graph.Node {
		y := autodiff.Custom(in, func(in []*graph.Node) []*graph.Node { return affine(in[0], in[1]) },
			func(in, _, v []*graph.Node) []*graph.Node {
				return []*graph.Node{graph.Mul(v[0], graph.Slice(in[1], graph.AxisElem(0))), nil}
			})[0]
		return []*graph.Node{graph.Square(y)}
	}
	gradient := func(layer func(in []*graph.Node) []*graph.Node) func(in []*graph.Node) []*graph.Node {
		return func(in []*graph.Node) []*graph.Node {
			loss := graph.ReduceAllSum(graph.Square(layer(in)[0])) // y⁴: the gradient that arrives is no constant
			return []*graph.Node{loss, graph.Gradient(loss, in[0])[0]}
		}
	}
	x := counting(65)
	for i := range x {
		x[i] = float32(i%5 - 2) // sums of y⁴ are exact
	}
	y, _ := affineOf(x, 3, 1)
	want := make([]float32, len(x))
	var loss float32
	for i, v := range y {
		loss += v * v * v * v
		want[i] = 4 * v * v * v * 3
	}
	recomputed := func(in []*graph.Node) []*graph.Node { return recompute.Call(square, in...) }
	for i, layer := range []func(in []*graph.Node) []*graph.Node{square, recomputed} {
		calls(t, i+1, func() {
			out := must.Get(devicetest.Call(gradient(layer), tensors.FromValue(x),
				tensors.FromValue([]float32{3, 1})))(t)
			same(t, fmt.Sprintf("recomputed %d times", i), out, []float32{loss}, want)
		})
	}
}

// Where XLA cannot call a kernel, its replacement is computed: on other backends, and with CompileAuto.
func TestKernelOtherwise(t *testing.T) {
	x := counting(256)
	y, sums := affineOf(x, 3, 0.5)
	numbers := []float32{3, 0.5}
	calls(t, 0, func() {
		same(t, "plain Go", must.Get(devicetest.CallOn(devicetest.PureGo(), bothNodes(affine), tensors.FromValue(x),
			tensors.FromValue(numbers)))(t), y, sums)
		mesh := must.Get(devicetest.OpenOwn(t, 4).Mesh(xla.Axis("data", 4)))(t)
		program := must.Get(xla.CompileAuto(mesh, bothNodes(affine),
			xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Shard(0, "data"), xla.Replicated())))(t)
		defer program.Close()
		same(t, "CompileAuto", whole(t, must.Get(program.Call(x, numbers))(t)...), y, sums)
	})
}
