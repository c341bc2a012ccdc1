package expert

import (
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// BenchmarkGrouped compares grouped matmuls, by kernels and in loops, with one dense matmul of as many multiplications,
// forward and with both gradients: for experts of 384×768 and 2048 rows, spread evenly or unevenly.
func BenchmarkGrouped(b *testing.B) {
	const rows, width, hidden = 2048, 384, 768
	inputs := func(of dtypes.DType, experts int) func(in nodes) nodes {
		return func(in nodes) nodes {
			g := in[0].Graph()
			made := func(dims ...int) *graph.Node {
				x := graph.Sin(graph.Iota(g, shapes.Make(dtypes.Float32, shapes.Make(of, dims...).Size()), 0))
				return graph.Reshape(graph.ConvertDType(x, of), dims...)
			}
			counts := make([]int32, experts)
			for i := range counts { // the first has many, the last none
				counts[i] = int32(2 * rows * (experts - 1 - i) / (experts * (experts - 1)))
			}
			return nodes{made(rows, width), made(rows, hidden), made(experts, width, hidden), graph.Const(g, counts),
				made(width, hidden)}
		}
	}
	with := func(product func(in nodes) *graph.Node, by func(in nodes) nodes) map[string]func(in nodes) nodes {
		return map[string]func(in nodes) nodes{
			"forward": func(in nodes) nodes { return nodes{product(in)} },
			"both": func(in nodes) nodes {
				y := product(in)
				return append(graph.Gradient(graph.ReduceAllSum(graph.Mul(y, in[1])), by(in)...), y)
			},
		}
	}
	dense := with(func(in nodes) *graph.Node {
		return precision.Matmul{}.Dot(in[0], []int{1}, nil, in[4], []int{0}, nil)
	}, func(in nodes) nodes { return nodes{in[0], in[4]} })
	grouped := with(func(in nodes) *graph.Node { return Grouped(in[0], in[2], in[3], precision.Matmul{}) },
		func(in nodes) nodes { return nodes{in[0], in[2]} })
	looped := with(func(in nodes) *graph.Node {
		return autodiff.Custom(in[:4],
			func(in nodes) nodes { return nodes{loops{in[0], in[2], in[3], precision.Matmul{}}.forward()} },
			func(in, _, v nodes) nodes {
				dx, dw := loops{in[0], in[2], in[3], precision.Matmul{}}.backward(v[0])
				return nodes{dx, nil, dw, nil}
			})[0]
	}, func(in nodes) nodes { return nodes{in[0], in[2]} })
	backend := must.Get(xla.Open(xla.Devices(1), xla.Plugin(devicetest.Plugin())))(b)
	b.Cleanup(backend.Close)
	for _, of := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16} {
		for _, experts := range []int{8, 64} {
			for _, pass := range []string{"forward", "both"} {
				b.Run(fmt.Sprint(of, "/", experts, "/", pass), func(b *testing.B) {
					for range b.N {
						in := inputs(of, experts)
						one := devicetest.Seconds(b, backend, in, dense[pass])
						kernel := devicetest.Seconds(b, backend, in, grouped[pass])
						loop := devicetest.Seconds(b, backend, in, looped[pass])
						b.ReportMetric(1e3*one, "dense-ms")
						b.ReportMetric(kernel/one, "grouped/dense")
						b.ReportMetric(loop/one, "loops/dense")
						b.ReportMetric(0, "ns/op")
					}
				})
			}
		}
	}
}

// BenchmarkLayer compares a layer, forward and with all gradients, with a dense MLP for as many rows as the tokens have
// choices: what routing, sorting and copying rows add.
func BenchmarkLayer(b *testing.B) {
	const tokens, width, hidden, experts, choices = 1024, 384, 768, 8, 2
	layer := Layer{Config: Config{Experts: experts, PerToken: choices, Hidden: hidden, Normalize: true, Balance: 0.01},
		Activate: swish}
	tree := layer.Params("moe", width, true)
	made := func(g *graph.Graph, dims ...int) *graph.Node {
		n := shapes.Make(dtypes.Float32, dims...).Size()
		x := graph.MulScalar(graph.Iota(g, shapes.Make(dtypes.Float32, n), 0), 12.9898)
		return graph.Reshape(graph.MulScalar(graph.Sin(graph.Mul(x, graph.Sin(x))), 0.1), dims...)
	}
	inputs := func(in nodes) nodes {
		g := in[0].Graph()
		all := nodes{made(g, 1, tokens, width), made(g, 1, tokens*choices, width), made(g, width, hidden),
			made(g, width, hidden), made(g, hidden, width)}
		for _, s := range tree {
			all = append(all, made(g, s.Shape.Dimensions...))
		}
		return all
	}
	sum := func(y *graph.Node) *graph.Node { return graph.ReduceAllSum(graph.Square(y)) }
	mixture := func(in nodes) nodes {
		p := params.Nodes{}
		for i, s := range tree {
			p[s.Name] = in[5+i]
		}
		y, term := layer.Apply(p, "moe", in[0])
		return graph.Gradient(graph.Add(sum(y), graph.ReduceAllMean(term)), append(in[5:], in[0])...)
	}
	dot := func(x, w *graph.Node) *graph.Node { return precision.Matmul{}.Dot(x, []int{2}, nil, w, []int{0}, nil) }
	dense := func(in nodes) nodes {
		y := dot(swish(nodes{dot(in[1], in[2]), dot(in[1], in[3])}), in[4])
		return graph.Gradient(sum(y), in[1:5]...)
	}
	for range b.N {
		one := devicetest.Seconds(b, devicetest.One(), inputs, dense)
		own := devicetest.Seconds(b, devicetest.One(), inputs, mixture)
		b.ReportMetric(1e3*one, "dense-ms")
		b.ReportMetric(own/one, "layer/dense")
		b.ReportMetric(0, "ns/op")
	}
}
