package xla_test

import (
	"slices"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

func below(n int32) func([]*graph.Node) *graph.Node {
	return func(s []*graph.Node) *graph.Node { return graph.LessThan(s[0], graph.Const(s[0].Graph(), n)) }
}

// What upstream rejects in closures works here: nested loops, values from outside in binary operations and as results,
// one reduction in several functions, and constants that several closures use.
func TestClosures(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   func(x *graph.Node) *graph.Node
		want float32 // of x = [1 2 3]
	}{
		{"nested loops", func(x *graph.Node) *graph.Node {
			zero := graph.Const(x.Graph(), int32(0))
			return xla.While([]*graph.Node{zero, x}, below(3), func(outer []*graph.Node) []*graph.Node {
				inner := xla.While([]*graph.Node{graph.Const(x.Graph(), int32(0)), outer[1]}, below(2),
					func(s []*graph.Node) []*graph.Node {
						return []*graph.Node{graph.AddScalar(s[0], 1), graph.AddScalar(s[1], 1)}
					})
				return []*graph.Node{graph.AddScalar(outer[0], 1), inner[1]}
			})[1] // x + 6
		}, 24},
		{"captured operands, in nested loops too", func(x *graph.Node) *graph.Node {
			y := graph.MulScalar(x, 2)
			zero := graph.Const(x.Graph(), int32(0))
			return xla.While([]*graph.Node{zero, x}, below(2), func(outer []*graph.Node) []*graph.Node {
				z := graph.Mul(y, y) // of captured values alone: 4x²
				inner := xla.While([]*graph.Node{zero, outer[1]}, below(1), func(s []*graph.Node) []*graph.Node {
					return []*graph.Node{graph.AddScalar(s[0], 1), graph.Add(s[1], graph.Sub(z, outer[1]))}
				})
				return []*graph.Node{graph.AddScalar(outer[0], 1), inner[1]}
			})[1] // s + 4x² - s, twice
		}, 56},
		{"a captured result", func(x *graph.Node) *graph.Node {
			y := graph.MulScalar(x, 2)
			return xla.While([]*graph.Node{graph.Const(x.Graph(), int32(0)), x}, below(2),
				func(s []*graph.Node) []*graph.Node {
					return []*graph.Node{graph.AddScalar(s[0], 1), y}
				})[1]
		}, 12},
		{"one reduction everywhere", func(x *graph.Node) *graph.Node {
			before := graph.ReduceAllSum(x) // 6
			in := xla.While([]*graph.Node{graph.Const(x.Graph(), int32(0)), x}, func(s []*graph.Node) *graph.Node {
				return graph.LessThan(graph.ReduceAllSum(s[1]), graph.Const(x.Graph(), float32(20)))
			}, func(s []*graph.Node) []*graph.Node {
				sum := graph.Add(graph.ReduceAllSum(s[1]), graph.ReduceAllMax(x))
				return []*graph.Node{s[0], graph.Add(s[1], graph.DivScalar(sum, 3))}
			})[1] // 6 → 6+6+3 = 15 → 15+15+3 = 33
			return graph.Add(graph.Sub(graph.ReduceAllSum(in), before), graph.ReduceAllMax(x)) // 33 - 6 + 3
		}, 30},
		{"if, with a constant in both branches and before", func(x *graph.Node) *graph.Node {
			x = graph.MulScalar(x, 10)
			return xla.If(graph.GreaterThan(graph.ReduceAllSum(x), graph.Const(x.Graph(), float32(5))),
				func() []*graph.Node { return []*graph.Node{graph.MulScalar(x, 10)} },
				func() []*graph.Node { return []*graph.Node{graph.MulScalar(x, 10)} })[0]
		}, 600},
		{"a value made inside of values from outside, used outside", func(x *graph.Node) *graph.Node {
			var kept *graph.Node
			y := xla.While([]*graph.Node{graph.Const(x.Graph(), int32(0)), x}, below(1),
				func(s []*graph.Node) []*graph.Node {
					kept = graph.Add(x, x)
					return []*graph.Node{graph.AddScalar(s[0], 1), graph.Add(s[1], kept)}
				})[1]
			return graph.Add(y, kept) // 5x
		}, 30},
	} {
		out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.ReduceAllSum(c.fn(in[0]))}
		}, tensors.FromValue([]float32{1, 2, 3}))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := tensors.ToScalar[float32](out[0]); got != c.want {
			t.Errorf("%s: %g, want %g", c.name, got, c.want)
		}
	}
}

// Collectives work in loops.
func TestCollectiveInWhile(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 4).Mesh(xla.Axis("data", 4)))(t)
	ring := xla.Collective{Kind: xla.Permute, To: []int{1, 2, 3, 0}, Along: []string{"data"}}
	all := xla.Collective{Kind: xla.AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"data"}}
	p := must.Get(xla.Compile(mesh, func(x *graph.Node) (*graph.Node, *graph.Node) {
		state := []*graph.Node{graph.Const(x.Graph(), int32(0)), x, graph.ZerosLike(x), graph.ZerosLike(x)}
		out := xla.While(state, below(4), func(s []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.AddScalar(s[0], 1), ring.Apply(s[1])[0], graph.Add(s[2], s[1]),
				graph.Add(s[3], all.Apply(x)[0])} // of a value from outside
		})
		return out[2], out[3]
	}, xla.In(xla.Shard(0, "data")).Gives(xla.Shard(0, "data"))))(t)
	defer p.Close()
	out := must.Get(p.Call([]float32{1, 10, 100, 1000}))(t)
	same(t, "once around the ring, and four all-reduces", whole(t, out...), slices.Repeat([]float32{1111}, 4),
		slices.Repeat([]float32{4444}, 4))
}

func TestWhileErrors(t *testing.T) {
	fails(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return xla.While(nil, below(1), func(s []*graph.Node) []*graph.Node { return s })
	}, tensors.FromValue([]float32{1})))(t, "a loop without a state", "at least one node")
}
