package train_test

import (
	"math"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// dealt is a model of which each of three ranks has some indices in some order; nil cuts are one device's. The gradient
// of an element is its own number times the mean of the inputs, on any rank, so none differs by rounding.
type dealt struct{ cuts []*params.Cut }

var three = []*params.Cut{
	{Axis: 1, Index: [][]int{{5, 0, 2}, {2, 1, 3}, {4, 2, 0}}}, // some with two or three ranks
	{Axis: 0, Index: [][]int{{0, 1}, {2, 3}, {4, -1}}},
	{Axis: 0, Index: [][]int{{0, 1, 2}, {3, 4, 5}, {6, -1, -1}}},
	nil,
}

func (dealt) Validate() error { return nil }

func (dealt) Params() params.Tree {
	f := dtypes.Float32
	return params.Tree{params.New("copies", f, 4, 6), params.New("padded", f, 5, 3), params.New("vector", f, 7),
		params.New("whole", f, 2, 3)}
}

func (m dealt) Init() (values []*tensors.Tensor, err error) {
	for i, s := range m.Params() {
		flat := make([]float32, s.Size())
		for k := range flat {
			flat[k] = float32(math.Sin(float64(7*i + 3*k + 1)))
		}
		values = append(values, tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...))
	}
	return values, nil
}

func (m dealt) Shards(size func(axis string) (int, error)) (s params.Shards, err error) {
	if m.cuts != nil {
		s = params.Shards{Axis: "tensor", Cuts: m.cuts}
	}
	return s, err
}

// Loss matters only for its gradient. One element of "copies", which only the last rank has, has a gradient 64 times
// the others'.
func (m dealt) Loss(p params.Nodes, x, _ *graph.Node) *graph.Node {
	g := x.Graph()
	loss := graph.Const(g, float32(0))
	for i, s := range m.Params() {
		w := p.Get(s.Name)
		steep := graph.Cos(graph.AddScalar(graph.MulScalar(graph.IotaFull(g, s.Shape), 1.7), float64(i)))
		if s.Name == "copies" {
			fifth := graph.Equal(graph.Iota(g, shapes.Make(dtypes.Int32, s.Shape.Dimensions...), 1),
				graph.Const(g, int32(4)))
			steep = graph.Where(fifth, graph.MulScalar(steep, 64), steep)
		}
		if m.cuts != nil && m.cuts[i] != nil {
			steep = mine(steep, m.cuts[i])
		}
		steep = graph.ConvertDType(graph.Mul(steep, graph.ReduceAllMean(x)), w.DType())
		loss = graph.Add(loss, graph.ConvertDType(graph.ReduceAllSum(graph.Mul(w, steep)), dtypes.Float32))
	}
	return loss
}

// mine returns a device's part of x, with zeros for padding.
func mine(x *graph.Node, cut *params.Cut) *graph.Node {
	table := graph.Const(x.Graph(), slices.Concat(cut.Index...))
	table = graph.ConvertDType(graph.Reshape(table, cut.Ranks(), cut.Length()), dtypes.Int32)
	at := graph.Reshape(collective.Part(table, 0, "tensor"), -1)
	first := graph.Transpose(x, 0, cut.Axis)
	part := graph.Gather(first, graph.InsertAxes(graph.MaxScalar(at, 0), -1))
	real := graph.GreaterOrEqual(at, graph.ZerosLike(at))
	others := make([]int, part.Rank()-1)
	for i := range others {
		others[i] = i + 1
	}
	real = graph.ExpandAndBroadcast(real, part.Shape().Dimensions, others)
	return graph.Transpose(graph.Where(real, part, graph.ZerosLike(part)), 0, cut.Axis)
}

// Given the same gradients, ranks with tensor parallelism make the update of one device: the same bits, including those
// of stochastic rounding, unless an optimizer or clipping sums over a parameter in another order. An overflow on one
// rank skips the update on all. Compiled with XLA's default options, the two programs may round differently: values may
// differ by 1e-6 of the largest of their tensor.
func TestSharedUpdates(t *testing.T) {
	named := func(name string, stochastic bool) precision.Policy {
		p := policy(t, name)
		p.StochasticUpdate = stochastic
		return p
	}
	scaled := named("fp16", false)
	scaled.Scaling.Initial = 1024
	for name, c := range map[string]struct {
		recipe  train.Recipe
		bound   float64 // relative
		skipped int
	}{
		"SGD":            {recipe: train.Recipe{Optimizer: optim.SGDOptimizer{LR: 0.1, Momentum: 0.9}}},
		"AdamW, clipped": {recipe: train.Recipe{Optimizer: optim.AdamW(0.1), Clip: 0.5}, bound: 1e-6},
		"LAMB":           {recipe: train.Recipe{Optimizer: optim.LAMB(0.1)}, bound: 2e-6},
		"Adafactor":      {recipe: train.Recipe{Optimizer: optim.Adafactor(0.1)}, bound: 2e-6},
		"stochastic rounding": {recipe: train.Recipe{Optimizer: optim.SGD(0.1), Precision: named("bf16-pure", true),
			Seed: 5}},
		"overflow": {recipe: train.Recipe{Optimizer: optim.AdamW(0.1), Precision: scaled}, skipped: 1},
	} {
		t.Run(name, func(t *testing.T) {
			states := map[bool][]*tensors.Tensor{}
			for _, shared := range []bool{false, true} {
				w, m := way{}, dealt{}
				if shared {
					w, m = way{tensor: 3}, dealt{three}
				}
				r := c.recipe
				r.Model = m
				run := must.Get(ddp.NewSPMD(w.mesh(t), r))(t)
				defer run.Close()
				skipped := 0
				// 4·1024 times 64 overflows float16, times 1 it does not
				for _, mean := range []float32{1, 4, 0.5} {
					x := tensors.FromValue([][]float32{{mean}})
					got := must.Get(run.Step(x, x))(t)
					if got.Skipped {
						skipped++
					}
				}
				if skipped != c.skipped {
					t.Errorf("shared %v: %d steps are left out, want %d", shared, skipped, c.skipped)
				}
				states[shared] = state(t, run)
			}
			r := c.recipe
			r.Model = dealt{}
			for i, s := range r.State() {
				got, want := states[true][i], states[false][i]
				same := c.bound == 0 && got.Equal(want) || c.bound > 0 && near(want, got, c.bound)
				if !same && !(devicetest.AsUsersDo() && nearLargest(want, got, 1e-6)) {
					t.Errorf("%s is %v, on one device %v", s.Name, got.Value(), want.Value())
				}
			}
		})
	}
}
