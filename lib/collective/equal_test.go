package collective_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// operation is an operation on a mesh, and the same on one device for all ranks' tensors.
type operation struct {
	name  string
	on    func(x *graph.Node, axes ...string) *graph.Node
	one   func(xs []*graph.Node) []*graph.Node
	round bool // results may need rounding, even of small numbers
}

// columns is the second axis of each rank's x. The first is twice the number of ranks.
const columns = 3

// operations are all operations for n ranks.
func operations(n int) []operation {
	root := n - 1
	reduced := func(op collective.Op, xs []*graph.Node) *graph.Node {
		y := xs[0]
		for _, x := range xs[1:] {
			switch op {
			case collective.Max:
				y = graph.Max(y, x)
			case collective.Min:
				y = graph.Min(y, x)
			case collective.Product:
				y = graph.Mul(y, x)
			default:
				y = graph.Add(y, x)
			}
		}
		if op == collective.Mean {
			y = graph.DivScalar(y, float64(n))
		}
		return y
	}
	part := func(x *graph.Node, r int) *graph.Node {
		size := x.Shape().Dimensions[0] / n
		return graph.Slice(x, graph.AxisRange(r*size, (r+1)*size))
	}
	each := func(of func(r int) *graph.Node) []*graph.Node {
		ys := make([]*graph.Node, n)
		for r := range ys {
			ys[r] = of(r)
		}
		return ys
	}
	var all []operation
	for _, op := range []collective.Op{collective.Sum, collective.Mean, collective.Max, collective.Min,
		collective.Product} {
		round := op == collective.Mean || op == collective.Product
		all = append(all, operation{
			"all-reduce " + op.String(),
			func(x *graph.Node, axes ...string) *graph.Node { return collective.AllReduce(x, op, axes...) },
			func(xs []*graph.Node) []*graph.Node {
				return each(func(int) *graph.Node { return reduced(op, xs) })
			}, round,
		})
		if op == collective.Min || op == collective.Product {
			continue // like Max
		}
		all = append(all, operation{
			"reduce-scatter " + op.String(),
			func(x *graph.Node, axes ...string) *graph.Node { return collective.ReduceScatter(x, op, 0, axes...) },
			func(xs []*graph.Node) []*graph.Node {
				return each(func(r int) *graph.Node { return part(reduced(op, xs), r) })
			}, round,
		})
	}
	count := func(from, to int) int { return (from + to) % 3 } // rows
	to := make([]int, n)                                       // the last sends nowhere
	for r := range to {
		to[r] = (2*n - 2 - r) % n
	}
	to[n-1] = -1
	return append(all, operation{
		"reduce",
		func(x *graph.Node, axes ...string) *graph.Node {
			return collective.Reduce(x, collective.Sum, root, axes...)
		},
		func(xs []*graph.Node) []*graph.Node {
			ys := slices.Clone(xs)
			ys[root] = reduced(collective.Sum, xs)
			return ys
		}, false,
	}, operation{
		"all-gather",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.AllGather(x, -1, axes...) },
		func(xs []*graph.Node) []*graph.Node {
			return each(func(int) *graph.Node { return graph.Concatenate(xs, 1) })
		}, false,
	}, operation{
		"all-to-all",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.AllToAll(x, 0, 1, axes...) },
		func(xs []*graph.Node) []*graph.Node {
			return each(func(r int) *graph.Node {
				return graph.Concatenate(each(func(from int) *graph.Node { return part(xs[from], r) }), 1)
			})
		}, false,
	}, operation{
		"all-to-all-v",
		func(x *graph.Node, axes ...string) *graph.Node {
			rank := collective.Rank(x.Graph(), axes...)
			counts := graph.Mod(graph.Add(graph.Iota(x.Graph(), shapes.Make(dtypes.Int32, n), 0), rank),
				graph.Const(x.Graph(), int32(3)))
			y, _ := collective.AllToAllV(x, counts, 2*n, axes...)
			return y
		},
		func(xs []*graph.Node) []*graph.Node {
			return each(func(r int) *graph.Node {
				var rows []*graph.Node
				for from, x := range xs {
					before := 0
					for to := range r {
						before += count(from, to)
					}
					if c := count(from, r); c > 0 {
						rows = append(rows, graph.Slice(x, graph.AxisRange(before, before+c)))
					}
				}
				rows = append(rows, graph.ZerosLike(xs[0]))
				return graph.Slice(graph.Concatenate(rows, 0), graph.AxisRange(0, 2*n))
			})
		}, false,
	}, operation{
		"permute",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.Permute(x, to, axes...) },
		func(xs []*graph.Node) []*graph.Node {
			ys := each(func(int) *graph.Node { return graph.ZerosLike(xs[0]) })
			for r, target := range to {
				if target >= 0 {
					ys[target] = xs[r]
				}
			}
			return ys
		}, false,
	}, operation{
		"ring-shift",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.RingShift(x, -1, axes...) },
		func(xs []*graph.Node) []*graph.Node {
			return each(func(r int) *graph.Node { return xs[(r+1)%n] })
		}, false,
	}, operation{
		"broadcast",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.Broadcast(x, root, axes...) },
		func(xs []*graph.Node) []*graph.Node { return each(func(int) *graph.Node { return xs[root] }) }, false,
	}, operation{
		"gather",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.Gather(x, 0, root, axes...) },
		func(xs []*graph.Node) []*graph.Node {
			joined := graph.Concatenate(xs, 0)
			ys := each(func(int) *graph.Node { return graph.ZerosLike(joined) })
			ys[root] = joined
			return ys
		}, false,
	}, operation{
		"scatter",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.Scatter(x, 0, root, axes...) },
		func(xs []*graph.Node) []*graph.Node {
			return each(func(r int) *graph.Node { return part(xs[root], r) })
		}, false,
	}, operation{
		"part",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.Part(x, 0, axes...) },
		func(xs []*graph.Node) []*graph.Node { return each(func(r int) *graph.Node { return part(xs[r], r) }) }, false,
	}, operation{
		"barrier",
		func(x *graph.Node, axes ...string) *graph.Node { return collective.Barrier(x, axes...) },
		func(xs []*graph.Node) []*graph.Node { return xs }, false,
	})
}

// setting is a mesh, the axes of an operation, and a type.
type setting struct {
	mesh  []xla.MeshAxis
	along []string
	dtype dtypes.DType
}

func (s setting) String() string { return fmt.Sprintf("%v along %v, %v", s.mesh, s.along, s.dtype) }

func settings() []setting {
	var all []setting
	for n := 1; n <= 8; n++ {
		all = append(all, setting{[]xla.MeshAxis{xla.Axis("a", n)}, nil, dtypes.Float32})
	}
	for _, along := range [][]string{{"a"}, {"b"}, {"b", "a"}} {
		all = append(all, setting{[]xla.MeshAxis{xla.Axis("a", 2), xla.Axis("b", 3)}, along, dtypes.Float32})
	}
	for _, dtype := range []dtypes.DType{dtypes.Float16, dtypes.BFloat16} {
		all = append(all, setting{[]xla.MeshAxis{xla.Axis("a", 4)}, []string{"a"}, dtype},
			setting{[]xla.MeshAxis{xla.Axis("a", 3), xla.Axis("b", 2)}, []string{"a"}, dtype})
	}
	return all
}

// Every operation and its gradient equal those of one device with all ranks' tensors. The gradient also equals finite
// differences. The loss is Σ w·y² over all ranks and elements, with different weights: as each operation is locally
// linear in each element, central differences have only rounding errors.
func TestOperationsEqualOneDevice(t *testing.T) {
	for _, s := range settings() {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			s.test(t)
		})
	}
}

func (s setting) test(t *testing.T) {
	world := 1
	for _, axis := range s.mesh {
		world *= axis.Size
	}
	backend := devicetest.Open(t, world)
	mesh := must.Get(backend.Mesh(s.mesh...))(t)
	along := s.along
	if along == nil {
		along = mesh.AxesNames()
	}
	groups := must.Get(mesh.ComputeReplicaGroups(along))(t)
	n := len(groups[0])
	ops := operations(n)
	rows := 2 * n

	// The ranks' values of an element differ by at least 1, so that a step of 1/4 does not change which rank has the
	// maximum. With an odd number of ranks one value is 0, as a factor of products.
	random := rand.New(rand.NewPCG(4, uint64(world)))
	x := make([]float64, world*rows*columns)
	for i := range rows * columns {
		for r, place := range random.Perm(world) {
			x[r*rows*columns+i] = float64(place) - float64(world-1)/2
		}
	}

	// The collectives, on the mesh: values, losses and gradients of each operation.
	loss := func(y, device *graph.Node) *graph.Node {
		y = graph.ConvertDType(y, dtypes.Float32)
		weights := graph.AddScalar(graph.ModScalar(graph.IotaFull(y.Graph(), y.Shape()), 3), 1)
		weights = graph.Mul(weights, graph.BroadcastToShape(graph.AddScalar(graph.ModScalar(device, 2), 1), y.Shape()))
		return graph.ReduceAllSum(graph.Mul(weights, graph.Square(y)))
	}
	everything := func(in []*graph.Node) []*graph.Node {
		var out []*graph.Node
		device := graph.Reshape(in[1])
		for _, op := range ops {
			x := graph.Reshape(graph.ConvertDType(in[0], s.dtype), rows, columns)
			y := op.on(x, s.along...)
			l := loss(y, device)
			g := graph.Gradient(l, x)[0]
			for _, o := range []*graph.Node{y, l, g} {
				out = append(out, graph.Reshape(graph.ConvertDType(o, dtypes.Float32), -1))
			}
		}
		return out
	}
	p := must.Get(xla.Compile(mesh, everything, xla.In(xla.Shard(0, mesh.AxesNames()...)).Gives(xla.Shard(0,
		mesh.AxesNames()...))))(t)
	defer p.Close()
	devices := make([]float32, world)
	for i := range devices {
		devices[i] = float32(i)
	}
	run := func(x []float64) [][]float64 {
		out := must.Get(p.Call(float32s(x), devices))(t)
		all := make([][]float64, len(out))
		for i, o := range out {
			joined := must.Get(o.Merge())(t)
			all[i] = float64s(joined)
		}
		return all
	}
	got := run(x)

	// The same on one device, in float32, on GoMLX's backend in plain Go, without XLA.
	exec := must.Get(graph.NewExec(devicetest.PureGo(), func(in []*graph.Node) []*graph.Node {
		var out []*graph.Node
		for _, op := range ops {
			stacked := graph.Reshape(in[0], world, rows, columns)
			xs := make([]*graph.Node, world)
			for r := range xs {
				xs[r] = graph.Squeeze(graph.Slice(stacked, graph.AxisElem(r)), 0)
			}
			ys := make([]*graph.Node, world)
			for _, group := range groups {
				members := make([]*graph.Node, n)
				for i, r := range group {
					members[i] = xs[r]
				}
				for i, y := range op.one(members) {
					ys[group[i]] = y
				}
			}
			sum := graph.Scalar(in[0].Graph(), dtypes.Float32, 0)
			losses := make([]*graph.Node, world)
			for r, y := range ys {
				losses[r] = loss(y, graph.Const(in[0].Graph(), float32(r)))
				sum = graph.Add(sum, losses[r])
				ys[r] = graph.Reshape(y, -1)
				losses[r] = graph.Reshape(losses[r], 1)
			}
			g := graph.Gradient(sum, in[0])[0]
			out = append(out, graph.Concatenate(ys, 0), graph.Concatenate(losses, 0), graph.Reshape(g, -1))
		}
		return out
	}))(t)
	one := must.Get(exec.Call([]*tensors.Tensor{tensors.FromFlatDataAndDimensions(float32s(x), len(x))}))(t)

	eps := epsilon(s.dtype)
	for i, op := range ops {
		for j, what := range []string{"values", "losses", "gradients"} {
			want := float64s(one[3*i+j])
			bound := 4 * eps * max(1, floats.Norm(want, math.Inf(1)))
			if what == "values" && !op.round {
				bound = 0
			}
			compare(t, op.name+" "+what, got[3*i+j], want, bound)
		}
	}

	// Finite differences at some elements. Losses are float32 and far larger than their differences.
	const h = 0.25
	for range 6 {
		at := random.IntN(len(x))
		moved := slices.Clone(x)
		moved[at] = x[at] + h
		up := run(moved)
		moved[at] = x[at] - h
		down := run(moved)
		for i, op := range ops {
			losses, gradients := 3*i+1, got[3*i+2]
			difference := (floats.Sum(up[losses]) - floats.Sum(down[losses])) / (2 * h)
			bound := 8*epsilon(dtypes.Float32)*floats.Sum(up[losses])/h +
				4*eps*max(1, floats.Norm(gradients, math.Inf(1)))
			if op.round {
				bound += 4 * eps * floats.Sum(up[losses]) / h // the values are rounded to the type
			}
			compare(t, fmt.Sprintf("%s: gradient at %d against finite differences", op.name, at),
				gradients[at:at+1], []float64{difference}, bound)
		}
	}
}

// compare reports the first element that differs by more than the bound.
func compare(t *testing.T, what string, got, want []float64, bound float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d numbers, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if d := math.Abs(got[i] - want[i]); !(d <= bound) {
			t.Errorf("%s: element %d is %v, want %v within %g", what, i, got[i], want[i], bound)
			return
		}
	}
}

// epsilon is the distance from 1 to the next number of a type.
func epsilon(dtype dtypes.DType) float64 {
	switch dtype {
	case dtypes.BFloat16:
		return 1.0 / 128
	case dtypes.Float16:
		return 1.0 / 1024
	}
	return 1.0 / (1 << 23)
}

func float32s(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

func float64s(t *tensors.Tensor) []float64 {
	var y []float64
	for _, v := range tensors.MustCopyFlatData[float32](t) {
		y = append(y, float64(v))
	}
	return y
}
