package xla_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/xla"
)

// cutFunction has everything that matters to cuts: matmuls that two programs use, a value sent at once and one that was
// received, a loop that uses values of several programs, a scalar, an input and a received tensor as outputs, unused
// values, and gradients through shifts.
func cutFunction(in []*graph.Node) []*graph.Node {
	x, w, rank := in[0], in[1], in[2]
	number := graph.ConvertDType(rank, dtypes.Float32)
	y := graph.Dot(x, w).Product()
	mean := graph.ReduceAllMean(y)
	onward := xla.Shift{Axis: "ring", By: 1}
	a := onward.Of(y)
	b := onward.Of(a) // received, and sent on
	_ = onward.Of(graph.Sin(b))
	mask := graph.Add(graph.IotaFull(x.Graph(), y.Shape()), number)
	z := graph.Add(graph.Mul(a, graph.Sin(mask)), graph.Mul(graph.Tanh(y), mean))
	turned := xla.While([]*graph.Node{graph.Const(x.Graph(), int32(3)), z},
		func(s []*graph.Node) *graph.Node { return graph.GreaterThan(s[0], graph.ZerosLike(s[0])) },
		func(s []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.AddScalar(s[0], -1), graph.Add(graph.MulScalar(s[1], 0.5), graph.Mul(b, y))}
		})[1]
	back := xla.Shift{Axis: "ring", By: -1}.Of(graph.Dot(turned, w).Product())
	_ = graph.Dot(w, w)
	loss := graph.ReduceAllSum(graph.Mul(graph.Sin(graph.Square(onward.Of(x))), x))
	return []*graph.Node{graph.Add(back, graph.Mul(b, mean)), x, b, mean, graph.Gradient(loss, x)[0]}
}

// plainly computes the same for all ranks together, on the host.
func plainly(xs [][]float64, w []float64, n int) (out [][5][]float64) {
	ranks := len(xs)
	dot := func(x []float64) []float64 {
		y := make([]float64, n*n)
		for i := range n {
			for j := range n {
				for k := range n {
					y[i*n+j] += x[i*n+k] * w[k*n+j]
				}
			}
		}
		return y
	}
	from := func(r, by int) int { return ((r-by)%ranks + ranks) % ranks }
	var ys, turned [][]float64
	var means []float64
	for r := range ranks {
		ys = append(ys, dot(xs[r]))
		mean := 0.0
		for _, v := range ys[r] {
			mean += v / float64(n*n)
		}
		means = append(means, mean)
	}
	for r := range ranks {
		a, b := ys[from(r, 1)], ys[from(r, 2)]
		var z []float64
		for i := range n * n {
			v := a[i]*math.Sin(float64(i+r)) + math.Tanh(ys[r][i])*means[r]
			for range 3 {
				v = v*0.5 + b[i]*ys[r][i]
			}
			z = append(z, v)
		}
		turned = append(turned, z)
	}
	for r := range ranks {
		back, b := dot(turned[from(r, -1)]), ys[from(r, 2)]
		var first, gradient []float64
		for i := range n * n {
			first = append(first, back[i]+b[i]*means[r])
			// of sin(x'²)·x, for x' of the previous rank, and for this rank's in that of the next one
			x, before, behind := xs[r][i], xs[from(r, 1)][i], xs[from(r, -1)][i]
			gradient = append(gradient, math.Sin(before*before)+math.Cos(x*x)*2*x*behind)
		}
		out = append(out, [5][]float64{first, xs[r], b, {means[r]}, gradient})
	}
	return out
}

// Ranks that run the programs of a cut, and exchange what it says, get the function's results.
func TestCut(t *testing.T) {
	const n, ranks = 4, 3
	backend := devicetest.One()
	mesh := must(backend.Mesh(xla.Axis("data", 1)))(t)
	square := shapes.Make(dtypes.Float32, n, n)
	cut := must(xla.NewSegments(mesh, cutFunction, square, square, shapes.Make(dtypes.Int32)))(t)
	// The function's third shift is unused and so not in the list; the gradient's is.
	if got := fmt.Sprint(cut.Shifts[0].Shift, cut.Shifts[1].Shift, cut.Shifts[2].Shift,
		len(cut.Shifts)); got != "ring+1 ring+1 ring-1 5" {
		t.Errorf("shifts are %s", got)
	}
	if got := cut.Shifts[1].Of; got != (xla.Ref{Kind: xla.RefReceived, Number: 0}) {
		t.Errorf("the second shift is of %v, and not of what the first has received", got)
	}
	r := rand.New(rand.NewPCG(1, 2))
	random := func() (all []float64) {
		for range n * n {
			all = append(all, r.Float64()-0.5)
		}
		return all
	}
	var xs [][]float64
	for range ranks {
		xs = append(xs, random())
	}
	w := random()
	want := plainly(xs, w, n)
	tensor := func(v []float64) *tensors.Tensor {
		var flat []float32
		for _, x := range v {
			flat = append(flat, float32(x))
		}
		return tensors.FromFlatDataAndDimensions(flat, n, n)
	}
	has := make([]map[xla.Ref]*tensors.Tensor, ranks)
	for r := range has {
		has[r] = map[xla.Ref]*tensors.Tensor{{Number: 0}: tensor(xs[r]), {Number: 1}: tensor(w),
			{Number: 2}: tensors.FromScalar(int32(r))}
	}
	next := 0 // shift
	for k, of := range cut.Programs {
		for ; next < len(cut.Shifts) && cut.Shifts[next].Before == k; next++ {
			s := cut.Shifts[next]
			for r := range has {
				to := ((r+s.By)%ranks + ranks) % ranks
				has[to][xla.Ref{Kind: xla.RefReceived, Number: next}] = has[r][s.Of]
			}
		}
		p := must(xla.CompilePortable(backend, cut.Program(k)))(t)
		defer p.Close()
		for r := range has {
			var args []any
			for _, ref := range of.In {
				args = append(args, has[r][ref])
			}
			out, err := p.Call(0, args...)
			if err != nil {
				t.Fatalf("program %d: %v", k, err)
			}
			for i, ref := range of.Out {
				if has[r][ref], err = out[i].LocalClone(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for r := range has {
		for i, want := range want[r] {
			got := has[r][xla.Ref{Kind: xla.RefOutput, Number: i}]
			for k, x := range tensors.MustCopyFlatData[float32](got) {
				if math.Abs(float64(x)-want[k]) > 1e-5 {
					t.Fatalf("rank %d, output %d, element %d: %g, want %g", r, i, k, x, want[k])
				}
			}
		}
	}
}

func TestCutRefuses(t *testing.T) {
	mesh := must(devicetest.One().Mesh(xla.Axis("data", 1)))(t)
	shape := shapes.Make(dtypes.Float32, 2)
	calls := 0
	changing := func(in []*graph.Node) []*graph.Node {
		calls++
		return []*graph.Node{graph.MulScalar(xla.Shift{Axis: "ring", By: calls}.Of(in[0]), 2)}
	}
	cut := must(xla.NewSegments(mesh, changing, shape))(t)
	p, err := xla.CompilePortable(devicetest.One(), cut.Program(1))
	if err == nil {
		_, err = p.Call(0, []float32{1, 2})
	}
	if err == nil || !strings.Contains(err.Error(), "another graph each time") {
		t.Errorf("a function that changes: %v", err)
	}
	if _, err := xla.NewSegments(mesh, func(in []*graph.Node) []*graph.Node {
		return xla.While(in, func(s []*graph.Node) *graph.Node { return graph.Const(s[0].Graph(), false) },
			func(s []*graph.Node) []*graph.Node { return []*graph.Node{xla.Shift{Axis: "ring", By: 1}.Of(s[0])} })
	}, shape); err == nil || !strings.Contains(err.Error(), "move it out") {
		t.Errorf("a shift in a loop: %v", err)
	}
}
