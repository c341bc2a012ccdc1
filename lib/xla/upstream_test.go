package xla

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/go-xla/stablehlo"
	xlashapes "github.com/gomlx/go-xla/types/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/shardbook/shardbook/internal/must"
)

// The tests in the upstream files pass while the bugs in docs/upstream.md exist. A test that fails says that its bug is
// fixed, and which workaround can be removed.

// upstream has two devices for all these tests, and no kernels of ours. Its field Backend is go-xla's own.
var upstream = sync.OnceValues(func() (*Backend, error) { return Open(Devices(2), Plugin("cpu"), NoKernels()) })

func openUpstream(t *testing.T) *Backend {
	t.Helper()
	return must.Get(upstream())(t)
}

// mended fails the test because upstream is fixed.
func mended(t *testing.T, what, workaround string) {
	t.Helper()
	t.Errorf("upstream has mended %s: remove the workaround in %s, and its section in docs/upstream.md", what,
		workaround)
}

// refused checks that upstream returned an error with a text.
func refused(t *testing.T, err error, want, what, workaround string) {
	t.Helper()
	switch {
	case err == nil:
		mended(t, what, workaround)
	case !strings.Contains(err.Error(), want):
		t.Errorf("%s: upstream's error is %q, want one that says %q", what, err, want)
	}
}

// TestUpstreamFP8 writes the types of 8-bit floats, and multiplies two of them.
func TestUpstreamFP8(t *testing.T) {
	const workaround = "lib/xla/fp8.go (signed)"
	for of, name := range namesFP8 {
		if xlashapes.Make(of, 2).ToStableHLO() == "tensor<2x"+name+">" {
			mended(t, "the name of "+name, workaround)
		}
	}
	f := stablehlo.New("fp8").Main()
	a := must.Get(f.NamedInput("a", xlashapes.Make(dtypes.F8E4M3FN, 2, 2)))(t)
	b := must.Get(f.NamedInput("b", xlashapes.Make(dtypes.F8E5M2, 2, 2)))(t)
	_, err := stablehlo.Dot(a, b)
	refused(t, err, "don't match data types", "matmuls of two types of 8-bit floats", workaround)
}

// scalarOf runs a graph function of one scalar on a backend.
func scalarOf(b compute.Backend, fn func(x *graph.Node) *graph.Node, x float32) (float32, error) {
	exec, err := graph.NewExec(b, fn)
	if err != nil {
		return 0, err
	}
	out, err := exec.Call(x)
	exec.Finalize() // not deferred: it would wait forever if fn panics with what is no error
	if err != nil {
		return 0, err
	}
	return tensors.ToScalar[float32](out[0]), nil
}

// ours checks that a graph function of one scalar works with the workaround.
func ours(t *testing.T, fn func(x *graph.Node) *graph.Node, x, want float32) {
	t.Helper()
	if got, err := scalarOf(openUpstream(t), fn, x); err != nil || got != want {
		t.Errorf("with the workaround: %v, %v; want %v", got, err, want)
	}
}

// to100 runs body on a scalar while that is below 100, with GoMLX's own loop.
func to100(x *graph.Node, body func(x *graph.Node) *graph.Node) *graph.Node {
	g := x.Graph()
	closure := func(of func(x *graph.Node) *graph.Node) *graph.Function {
		return graph.NewClosure(g, func(g *graph.Graph) []*graph.Node {
			return []*graph.Node{of(graph.Parameter(g, g.UniqueName("x"), x.Shape()))}
		})
	}
	return graph.While(closure(below100), closure(body), x)[0]
}

func below100(x *graph.Node) *graph.Node {
	return graph.LessThan(x, graph.Const(x.Graph(), float32(100)))
}

func TestUpstreamReductionsInTwoFunctions(t *testing.T) {
	three := func(x *graph.Node) *graph.Node { return graph.ReduceAllSum(graph.BroadcastToDims(x, 3)) }
	fn := func(x *graph.Node) *graph.Node { return to100(three(x), three) }
	_, err := scalarOf(openUpstream(t).Backend, fn, 2)
	refused(t, err, "reductionFn is not a StableHLO closure", "reductions in two functions",
		"lib/xla/function.go (begin, end)")
	ours(t, fn, 2, 162)
}

func TestUpstreamClosuresInClosures(t *testing.T) {
	double := func(x *graph.Node) *graph.Node { return graph.Add(x, x) }
	fn := func(x *graph.Node) *graph.Node {
		return to100(x, func(x *graph.Node) *graph.Node { return to100(x, double) })
	}
	_, err := scalarOf(openUpstream(t).Backend, fn, 3)
	refused(t, err, "must be a closure of the current function", "closures in closures",
		"lib/xla/function.go (Closure)")
	ours(t, fn, 3, 192)
}

func TestUpstreamCapturedValues(t *testing.T) {
	for _, test := range []struct {
		fn       func(x *graph.Node) *graph.Node
		says     string
		of, give float32
	}{
		{func(x *graph.Node) *graph.Node {
			return to100(x, func(s *graph.Node) *graph.Node { return graph.Add(s, x) })
		}, "the operands are not part of the function", 30, 120},
		{func(x *graph.Node) *graph.Node {
			big := graph.Mul(x, x)
			return to100(x, func(*graph.Node) *graph.Node { return big })
		}, "given values that are not owned by the function", 30, 900},
	} {
		_, err := scalarOf(openUpstream(t).Backend, test.fn, test.of)
		refused(t, err, test.says, "captured values", "lib/xla/capture.go")
		ours(t, test.fn, test.of, test.give)
	}
}

func TestUpstreamConstantsAcrossClosures(t *testing.T) {
	triple := func(x *graph.Node) *graph.Node { return graph.MulScalar(x, 3) }
	_, err := scalarOf(openUpstream(t).Backend, func(x *graph.Node) *graph.Node { return triple(to100(x, triple)) }, 2)
	refused(t, err, "after returning, in function", "constants across closures", "lib/xla/while.go (clearScalars)")
	ours(t, func(x *graph.Node) *graph.Node {
		return triple(While([]*graph.Node{x}, func(s []*graph.Node) *graph.Node { return below100(s[0]) },
			func(s []*graph.Node) []*graph.Node { return []*graph.Node{triple(s[0])} })[0])
	}, 2, 486)
}

// TestUpstreamCallsHaveNoGradient is about lib/xla/auto.go, which returns an error for calls without gradients.
func TestUpstreamCallsHaveNoGradient(t *testing.T) {
	_, err := scalarOf(openUpstream(t).Backend, func(x *graph.Node) *graph.Node {
		double := graph.NewFunction(x.Graph(), "double", func(g *graph.Graph) []*graph.Node {
			p := graph.Parameter(g, "p", x.Shape())
			return []*graph.Node{graph.Add(p, p)}
		})
		return graph.Gradient(double.Call(x)[0], x)[0]
	}, 1)
	refused(t, err, "has no gradient in GoMLX", "calls without a gradient", "lib/xla/auto.go (init)")
}

// TestUpstreamGradientsThroughClosures runs on our backend, since upstream's takes no values from outside. If it were
// fixed there would be an error instead of 0, and lib/flash/blocks.go (over) would not need its operands in the loop's
// state.
func TestUpstreamGradientsThroughClosures(t *testing.T) {
	ours(t, func(x *graph.Node) *graph.Node {
		y := graph.MulScalar(x, 3)
		return graph.Gradient(While([]*graph.Node{graph.Const(x.Graph(), float32(1))},
			func(s []*graph.Node) *graph.Node { return below100(s[0]) },
			func(s []*graph.Node) []*graph.Node { return []*graph.Node{graph.Add(s[0], y)} })[0], x)[0]
	}, 2, 0)
}

func TestUpstreamPanicsThatAreNoErrors(t *testing.T) {
	broken := func(x *graph.Node) *graph.Node { panic("broken on purpose") }
	exec := must.Get(graph.NewExec(openUpstream(t).Backend, broken))(t)
	defer func() {
		if thrown := recover(); thrown != nil && fmt.Sprint(thrown) != "broken on purpose" {
			t.Errorf("upstream throws %v", thrown)
		}
	}()
	_, err := exec.Call(float32(1))
	t.Logf("upstream's error: %v", err)
	mended(t, "panics that are no errors", "lib/xla/graphfn.go (ThrowingErrors)")
}

// TestUpstreamSchedulingBarrier makes a number depend on an infinite one.
func TestUpstreamSchedulingBarrier(t *testing.T) {
	tie := func(b compute.Backend) string {
		exec := must.Get(graph.NewExec(b, func(x, after *graph.Node) *graph.Node {
			return graph.SchedulingBarrier(x, after)
		}))(t)
		defer exec.Finalize()
		out := must.Get(exec.Call(float32(1), float32(math.Inf(1))))(t)
		return fmt.Sprint(out[0].Value())
	}
	b := openUpstream(t)
	if got := tie(b.Backend); got != "NaN" {
		t.Logf("1 tied to infinity is %s", got)
		mended(t, "scheduling barriers", "lib/xla/barrier.go")
	}
	if got := tie(b); got != "1" {
		t.Errorf("with the workaround 1 tied to infinity is %s", got)
	}
}
