package xla_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// cutFunction has everything that matters to cuts: matmuls that two programs use, a value sent at once and one that was
// received, a loop that uses values of several programs, a scalar, an input and a received tensor as outputs, unused
// values, and gradients through shifts.
func cutFunction(in []*graph.Node, shift func(x *graph.Node, by int) *graph.Node) []*graph.Node {
	x, w, rank := in[0], in[1], in[2]
	number := graph.ConvertDType(rank, dtypes.Float32)
	y := graph.Dot(x, w).Product()
	mean := graph.ReduceAllMean(y)
	a := shift(y, 1)
	b := shift(a, 1) // received, and sent on
	_ = shift(graph.Sin(b), 1)
	mask := graph.Add(graph.IotaFull(x.Graph(), y.Shape()), number)
	z := graph.Add(graph.Mul(a, graph.Sin(mask)), graph.Mul(graph.Tanh(y), mean))
	turned := xla.While([]*graph.Node{graph.Const(x.Graph(), int32(3)), z},
		func(s []*graph.Node) *graph.Node { return graph.GreaterThan(s[0], graph.ZerosLike(s[0])) },
		func(s []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.AddScalar(s[0], -1), graph.Add(graph.MulScalar(s[1], 0.5), graph.Mul(b, y))}
		})[1]
	back := shift(graph.Dot(turned, w).Product(), -1)
	_ = graph.Dot(w, w)
	loss := graph.ReduceAllSum(graph.Mul(graph.Sin(graph.Square(shift(x, 1))), x))
	return []*graph.Node{graph.Add(back, graph.Mul(b, mean)), x, b, mean, graph.Gradient(loss, x)[0]}
}

// Ranks that run the programs of a cut, and exchange what it says, get the results of a program of as many devices with
// collectives in place of the shifts.
func TestCut(t *testing.T) {
	const n, ranks = 4, 3
	backend := devicetest.OpenOwn(t, ranks)
	mesh := must.Get(backend.Mesh(xla.Axis("ring", ranks)))(t)
	square := shapes.Make(dtypes.Float32, n, n)
	cut := must.Get(xla.NewSegments(mesh, func(in []*graph.Node) []*graph.Node {
		return cutFunction(in, func(x *graph.Node, by int) *graph.Node {
			return xla.Exchange{Kind: xla.Permute, Axis: "ring", By: by}.Of(x)
		})
	}, square, square, shapes.Make(dtypes.Int32)))(t)
	// The function's third shift is unused and so not in the list; the gradient's is.
	if got := fmt.Sprint(cut.Exchanges[0].Exchange, cut.Exchanges[1].Exchange, cut.Exchanges[2].Exchange,
		len(cut.Exchanges)); got != "ring+1 ring+1 ring-1 5" {
		t.Errorf("shifts are %s", got)
	}
	if got := cut.Exchanges[1].Of[0]; got != (xla.Ref{Kind: xla.RefReceived, Number: 0}) {
		t.Errorf("the second shift is of %v, and not of what the first has received", got)
	}
	xs, w := ramp(ranks*n, n), ramp(n, n)
	sharded := xla.Shard(0, "ring")
	all := must.Get(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		in[2] = graph.Reshape(in[2]) // a scalar
		out := cutFunction(in, func(x *graph.Node, by int) *graph.Node {
			to := make([]int, ranks)
			for r := range to {
				to[r] = (r + by + ranks) % ranks
			}
			return xla.Collective{Kind: xla.Permute, To: to, Along: []string{"ring"}}.Apply(x)[0]
		})
		out[3] = graph.Reshape(out[3], 1)
		return out
	}, xla.In(sharded, xla.Replicated(), sharded).Gives(sharded)))(t)
	defer all.Close()
	wanted := must.Get(all.Call(clone(t, xs), clone(t, w), []int32{0, 1, 2}))(t)
	has, parts := make([]map[xla.Ref]*tensors.Tensor, ranks), must.Get(mesh.Place(xs, sharded))(t)
	for r := range has {
		has[r] = map[xla.Ref]*tensors.Tensor{{Number: 0}: clone(t, parts.Shards()[r]), {Number: 1}: clone(t, w),
			{Number: 2}: tensors.FromScalar(int32(r))}
	}
	next := 0 // shift
	for k, of := range cut.Programs {
		for ; next < len(cut.Exchanges) && cut.Exchanges[next].Before == k; next++ {
			s := cut.Exchanges[next]
			for r := range has {
				has[(r+s.By+ranks)%ranks][xla.Ref{Kind: xla.RefReceived, Number: next}] = has[r][s.Of[0]]
			}
		}
		p := must.Get(xla.CompilePortable(backend, cut.Program(k)))(t)
		defer p.Close()
		for r := range has {
			var args []any
			for _, ref := range of.In {
				args = append(args, has[r][ref])
			}
			for i, out := range must.Get(p.Call(0, args...))(t) {
				has[r][of.Out[i]] = clone(t, out)
			}
		}
	}
	for i := range wanted {
		for r, want := range wanted[i].Shards() {
			got := has[r][xla.Ref{Kind: xla.RefOutput, Number: i}]
			for k, x := range tensors.MustCopyFlatData[float32](got) {
				if want := tensors.MustCopyFlatData[float32](want)[k]; !(math.Abs(float64(x-want)) <= 1e-5) {
					t.Fatalf("rank %d, output %d, element %d: %g, want %g", r, i, k, x, want)
				}
			}
		}
	}
}

func TestCutRefuses(t *testing.T) {
	mesh := must.Get(devicetest.One().Mesh(xla.Axis("data", 1)))(t)
	shape := shapes.Make(dtypes.Float32, 2)
	calls := 0
	changing := func(in []*graph.Node) []*graph.Node {
		calls++
		return []*graph.Node{graph.MulScalar(xla.Exchange{Kind: xla.Permute, Axis: "ring", By: calls}.Of(in[0]), 2)}
	}
	cut := must.Get(xla.NewSegments(mesh, changing, shape))(t)
	p := must.Get(xla.CompilePortable(devicetest.One(), cut.Program(1)))(t)
	fails(p.Call(0, []float32{1, 2}))(t, "a function that changes", "another graph each time")
	fails(xla.NewSegments(mesh, func(in []*graph.Node) []*graph.Node {
		return xla.While(in, func(s []*graph.Node) *graph.Node { return graph.Const(s[0].Graph(), false) },
			func(s []*graph.Node) []*graph.Node {
				return []*graph.Node{xla.Exchange{Kind: xla.Permute, Axis: "ring", By: 1}.Of(s[0])}
			})
	}, shape))(t, "a shift in a loop", "move it out")
}
