package tensor_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// variant is a kind of tensor parallelism.
type variant struct {
	name  string
	group tensor.Group
}

var variants = []variant{
	{"tensor", tensor.Group{Axis: "tensor"}},
	{"sequence", tensor.Group{Axis: "tensor", Sequence: true}},
	{"overlap", tensor.Group{Axis: "tensor", Sequence: true, Overlap: true}},
}

// array is an unsharded array on the host, row-major.
type array struct {
	dims   []int
	values []float64
}

func random(r *rand.Rand, scale float64, dims ...int) array {
	a := array{dims: dims}
	size := 1
	for _, d := range dims {
		size *= d
	}
	for range size {
		a.values = append(a.values, float64(float32(r.NormFloat64()*scale)))
	}
	return a
}

// part is a rank's shard of the array, computed without lib/params.
func (a array) part(cut *params.Cut, rank int) array {
	if cut == nil {
		return a
	}
	inner, outer := 1, 1
	for i, d := range a.dims {
		if i < cut.Axis {
			outer *= d
		} else if i > cut.Axis {
			inner *= d
		}
	}
	p := array{dims: append([]int{}, a.dims...)}
	p.dims[cut.Axis] = len(cut.Index[rank])
	for o := range outer {
		for _, at := range cut.Index[rank] {
			for i := range inner {
				if at < 0 {
					p.values = append(p.values, 0)
				} else {
					p.values = append(p.values, a.values[(o*a.dims[cut.Axis]+at)*inner+i])
				}
			}
		}
	}
	return p
}

// stacked is the shards of all ranks, stacked along a new first axis, in float32.
func (a array) stacked(cut *params.Cut, ranks int) *tensors.Tensor {
	var all array
	for r := range ranks {
		p := a.part(cut, r)
		all = array{append([]int{ranks}, p.dims...), append(all.values, p.values...)}
	}
	return all.tensor()
}

// tensor is the array in float32.
func (a array) tensor() *tensors.Tensor {
	var flat []float32
	for _, v := range a.values {
		flat = append(flat, float32(v))
	}
	return tensors.FromFlatDataAndDimensions(flat, a.dims...)
}

// onRanks compiles a graph function of one rank's shards. All inputs and outputs of the program are stacked along a new
// first axis, except the last `same` inputs, which are the same on every rank.
func onRanks(t *testing.T, mesh *xla.Mesh, same, inputs int, f func(in []*graph.Node) []*graph.Node) *xla.Program {
	t.Helper()
	in := make([]xla.Placement, inputs)
	for i := range in {
		if i < inputs-same {
			in[i] = xla.Shard(0, "tensor")
		}
	}
	p := must.Value(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		for i := range in[:len(in)-same] {
			in[i] = graph.Squeeze(in[i], 0)
		}
		out := f(in)
		for i, o := range out {
			out[i] = graph.ExpandAxes(graph.ConvertDType(o, dtypes.Float32), 0)
		}
		return out
	}, xla.In(in...).Gives(xla.Shard(0, "tensor"))))
	t.Cleanup(p.Close)
	return p
}

// call runs a program of onRanks and returns each output's values, of one rank after another.
func call(t *testing.T, p *xla.Program, args ...any) [][]float32 {
	t.Helper()
	out := must.Value(p.Call(args...))
	values := make([][]float32, len(out))
	for i, o := range out {
		all := must.Value(o.Merge())
		values[i] = tensors.MustCopyFlatData[float32](all)
	}
	return values
}

// distance is the largest difference of two lists relative to scale, the largest value of the array, since the rounding
// of a sum does not depend on how small its result is.
func distance(t *testing.T, what string, got []float32, want []float64, scale float64) float64 {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return 0
	}
	worst := 0.0
	for i := range got {
		d := math.Abs(float64(got[i]) - want[i])
		if math.IsNaN(d) {
			return d
		}
		worst = max(worst, d/scale)
	}
	return worst
}

func largest(values []float64) float64 {
	m := 1e-3
	for _, v := range values {
		m = max(m, math.Abs(v))
	}
	return m
}

func dot(x, w *graph.Node) *graph.Node { return graph.DotGeneral(x, []int{-1}, nil, w, []int{0}, nil) }

// The gradients of two pairs of layers and a replicated vector are those of one device that computes in float64 on
// another backend, for any number of devices and every kind of tensor parallelism, also recomputed under Checkpoint
// with the communication. (lib/train compares full models.)
func TestEqualsOneDevice(t *testing.T) {
	backend := devicetest.Open(t, 8)
	gradients := func(group tensor.Group, in []*graph.Node, checkpoint bool) []*graph.Node {
		x := graph.Sin(group.Tokens(in[0], 1))
		if checkpoint {
			x = x.Checkpoint()
		}
		x = graph.Mul(x, graph.ExpandLeftToRank(group.Replicated(in[3:])[0], 3))
		x = pair(group, x, in[1], in[2])
		x = pair(group, graph.Sin(x), in[1], in[2])
		if checkpoint {
			x = x.StopCheckpoint()
		}
		return graph.Gradient(graph.ReduceAllSum(graph.Square(x)), in[1:]...)
	}
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		r := rand.New(rand.NewPCG(1, uint64(ranks)))
		hidden := 3 * ranks
		full := []array{random(r, 1, 2, 2*ranks, 4), random(r, 0.5, 4, hidden), random(r, 0.5, hidden, 4),
			random(r, 1, 4)}
		cuts := []*params.Cut{nil, must.Value(params.EvenCut(1, hidden, ranks, false)),
			must.Value(params.EvenCut(0, hidden, ranks, false)), nil}
		var exact []*tensors.Tensor
		var args []any
		for i, a := range full {
			exact = append(exact, tensors.FromFlatDataAndDimensions(a.values, a.dims...))
			args = append(args, a.stacked(cuts[i], ranks))
		}
		want := must.Value(devicetest.CallOn(devicetest.PureGo(), func(in []*graph.Node) []*graph.Node {
			return gradients(tensor.Group{}, in, false)
		}, exact...))
		mesh := must.Value(backend.Mesh(xla.Axis("data", 8/ranks), xla.Axis("tensor", ranks))) // among other axes
		for _, w := range variants {
			p := onRanks(t, mesh, 0, 4, func(in []*graph.Node) []*graph.Node {
				return append(gradients(w.group, in, false), gradients(w.group, in, true)...)
			})
			for i, got := range call(t, p, args...) {
				of := 1 + i%3
				whole := array{full[of].dims, tensors.MustCopyFlatData[float64](want[i%3])}
				each := len(got) / ranks
				for rank := range ranks {
					part := whole.part(cuts[of], rank).values
					d := distance(t, w.name, got[rank*each:(rank+1)*each], part, largest(whole.values))
					if !(d <= 0x1p-18) {
						t.Errorf("%s on %d devices, rank %d: gradient %d is %g of its largest value from that of one "+
							"device", w.name, ranks, rank, i, d)
					}
				}
			}
		}
	}
}
