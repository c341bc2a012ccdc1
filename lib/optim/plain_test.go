package optim_test

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// call runs a graph function in plain Go, without the time for compiling.
func call(fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	return devicetest.CallOn(devicetest.PureGo(), fn, args...)
}

// refused checks an error's text, or that there is no error for "".
func refused(t *testing.T, what any, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%+v: error %v, want %q", what, err, want)
	}
}

// trees of ranks 0 to 3, with sizes that few numbers divide.
var smallTree = params.Tree{
	params.New("scalar", dtypes.Float32),
	params.New("vector", dtypes.Float32, 7),
	params.New("matrix", dtypes.Float32, 5, 6),
	params.New("row", dtypes.Float32, 1, 4),
	params.New("stack", dtypes.Float32, 3, 2, 5),
}

// normal returns random tensors for a tree. Their scales differ between elements by up to 10⁴.
func normal(tree params.Tree, random *rand.Rand) []*tensors.Tensor {
	values := make([]*tensors.Tensor, len(tree))
	for i, s := range tree {
		flat := make([]float32, s.Size())
		for k := range flat {
			flat[k] = float32(random.NormFloat64() * math.Pow(10, float64(k%5-3)))
		}
		values[i] = tensors.FromFlatDataAndDimensions(flat, s.Shape.Dimensions...)
	}
	return values
}

func zeros(t *testing.T, tree params.Tree) []*tensors.Tensor {
	t.Helper()
	values := must.Value(params.Zeros(tree))
	return values
}

// floats returns a tensor's elements, which may also be codes.
func floats(t *testing.T, x *tensors.Tensor) []float64 {
	t.Helper()
	switch x.DType() {
	case dtypes.Uint8:
		return widen(tensors.MustCopyFlatData[uint8](x))
	case dtypes.Float64:
		return tensors.MustCopyFlatData[float64](x)
	case dtypes.Float32:
		return widen(tensors.MustCopyFlatData[float32](x))
	}
	t.Fatalf("a tensor of shape %s", x.Shape())
	return nil
}

func widen[T uint8 | float32](x []T) []float64 {
	wide := make([]float64, len(x))
	for i := range x {
		wide[i] = float64(x[i])
	}
	return wide
}

// local returns copies that belong to no backend.
func local(t *testing.T, values []*tensors.Tensor) []*tensors.Tensor {
	t.Helper()
	copies := make([]*tensors.Tensor, len(values))
	for i, x := range values {
		copies[i] = must.Value(x.LocalClone())
	}
	return copies
}

// plain is one step of an optimizer for one parameter, in float64 and written from its paper, as a reference. It
// changes w and the states, which start at zero.
type plain func(dims []int, w, g []float64, states [][]float64, step int)

// each makes a plain optimizer of a step of one element.
func each(f func(w, g float64, s []float64, step int) float64) plain {
	return func(_ []int, w, g []float64, states [][]float64, step int) {
		for i := range w {
			s := make([]float64, len(states))
			for k := range states {
				s[k] = states[k][i]
			}
			w[i] = f(w[i], g[i], s, step)
			for k := range states {
				states[k][i] = s[k]
			}
		}
	}
}

func plainSGD(r optim.SGDOptimizer) plain {
	return each(func(w, g float64, s []float64, _ int) float64 {
		b := g
		if r.Momentum != 0 {
			s[0] = r.Momentum*s[0] + g
			b = s[0]
			if r.Nesterov {
				b = g + r.Momentum*s[0]
			}
		}
		return w - r.LR*b - r.LR*r.WeightDecay*w
	})
}

func plainAdamW(r optim.AdamWOptimizer) plain {
	return each(func(w, g float64, s []float64, step int) float64 {
		return w - r.LR*(plainAdamDirection(r, g, s, step)+r.WeightDecay*w)
	})
}

func plainAdamDirection(r optim.AdamWOptimizer, g float64, s []float64, step int) float64 {
	t := float64(step)
	s[0] = r.Beta1*s[0] + (1-r.Beta1)*g
	s[1] = r.Beta2*s[1] + (1-r.Beta2)*g*g
	return s[0] / (1 - math.Pow(r.Beta1, t)) / (math.Sqrt(s[1]/(1-math.Pow(r.Beta2, t))) + r.Eps)
}

// plainLAMB is algorithm 2 of You et al. 2020.
func plainLAMB(r optim.LAMBOptimizer) plain {
	return func(_ []int, w, g []float64, states [][]float64, step int) {
		u := make([]float64, len(w))
		var sizeOfW, sizeOfU float64
		for i := range w {
			s := []float64{states[0][i], states[1][i]}
			u[i] = plainAdamDirection(optim.AdamWOptimizer(r), g[i], s, step) + r.WeightDecay*w[i]
			states[0][i], states[1][i] = s[0], s[1]
			sizeOfW += w[i] * w[i]
			sizeOfU += u[i] * u[i]
		}
		trust := 1.0
		if sizeOfW > 0 && sizeOfU > 0 {
			trust = math.Sqrt(sizeOfW) / math.Sqrt(sizeOfU)
		}
		for i := range w {
			w[i] -= r.LR * trust * u[i]
		}
	}
}

// plainLion is algorithm 2 of Chen et al. 2023.
func plainLion(r optim.LionOptimizer) plain {
	return each(func(w, g float64, s []float64, _ int) float64 {
		c := r.Beta1*s[0] + (1-r.Beta1)*g
		s[0] = r.Beta2*s[0] + (1-r.Beta2)*g
		sign := 0.0
		if c > 0 {
			sign = 1
		} else if c < 0 {
			sign = -1
		}
		return w - r.LR*(sign+r.WeightDecay*w)
	})
}

// plainAdafactor is algorithms 4 and 5 of Shazeer & Stern 2018, with means instead of sums.
func plainAdafactor(r optim.AdafactorOptimizer) plain {
	rms := func(x []float64) float64 {
		sum := 0.0
		for _, x := range x {
			sum += x * x
		}
		return math.Sqrt(sum / float64(len(x)))
	}
	return func(dims []int, w, g []float64, states [][]float64, step int) {
		t := float64(step)
		beta := 1 - math.Pow(t, -r.Decay)
		v := make([]float64, len(w)) // V̂
		if len(dims) < 2 {
			for i := range w {
				states[0][i] = beta*states[0][i] + (1-beta)*(g[i]*g[i]+r.Eps1)
				v[i] = states[0][i]
			}
		} else {
			n, m := dims[len(dims)-2], dims[len(dims)-1]
			for at := 0; at < len(w); at += n * m { // for each matrix
				matrix := at / (n * m)
				rows, columns := states[0][matrix*n:][:n], states[1][matrix*m:][:m]
				sums, all := make([]float64, n+m), 0.0
				for i := range n {
					for j := range m {
						square := g[at+i*m+j]*g[at+i*m+j] + r.Eps1
						sums[i] += square
						sums[n+j] += square
					}
				}
				for i := range n {
					rows[i] = beta*rows[i] + (1-beta)*sums[i]/float64(m)
					all += rows[i] * float64(m)
				}
				for j := range m {
					columns[j] = beta*columns[j] + (1-beta)*sums[n+j]/float64(n)
				}
				for i := range n {
					for j := range m {
						v[at+i*m+j] = rows[i] * float64(m) * columns[j] * float64(n) / all
					}
				}
			}
		}
		u := make([]float64, len(w))
		for i := range w {
			u[i] = g[i] / math.Sqrt(v[i])
		}
		rho := r.LR
		if rho == 0 {
			rho = math.Min(1e-2, 1/math.Sqrt(t))
		}
		if !r.Absolute {
			rho *= math.Max(r.Eps2, rms(w))
		}
		rho /= math.Max(1, rms(u)/r.Clip)
		for i := range w {
			change := rho * u[i]
			if r.Beta1 != 0 {
				m := states[len(states)-1]
				m[i] = r.Beta1*m[i] + (1-r.Beta1)*change
				change = m[i]
			}
			w[i] -= change
		}
	}
}

// lockstep builds what n ranks compute into one graph: each runs up to a sum, where it waits for all others.
func lockstep(n int, build func(rank int, sum func(*graph.Node) *graph.Node) []*graph.Node) [][]*graph.Node {
	results := make([][]*graph.Node, n)
	var total *graph.Node // of the sum that all have come to
	ranks := make([]func() (*graph.Node, bool), n)
	for rank := range n {
		next, stop := iter.Pull(func(yield func(*graph.Node) bool) {
			results[rank] = build(rank, func(x *graph.Node) *graph.Node {
				yield(x)
				return total
			})
		})
		defer stop()
		ranks[rank] = next
	}
	for {
		var sum *graph.Node
		came := 0
		for _, next := range ranks {
			if x, ok := next(); ok {
				if came++; came == 1 {
					sum = x
				} else {
					sum = graph.Add(sum, x)
				}
			}
		}
		if came == 0 {
			return results
		}
		if came != n {
			panic(fmt.Errorf("%d of %d ranks come to a sum", came, n))
		}
		total = sum
	}
}

// cutting is a way to cut a parameter.
type cutting struct {
	dims  []int
	ranks int
	axis  int // -1: flat
	// of the flat part on each rank
	length int
	// each rank's indices along the axis, unless they are an equal range
	index [][]int
}

// The flat parts and the cut rows have full blocks of 4, the block of allOptimizers' Adam8bit.
var cuttings = []cutting{
	{[]int{7, 11}, 2, -1, 40, nil},
	{[]int{7, 11}, 3, -1, 28, nil},
	{[]int{7, 11}, 5, -1, 16, nil},
	{[]int{3}, 3, -1, 4, nil}, // two ranks have nothing but padding
	{[]int{}, 2, -1, 4, nil},
	{[]int{2, 3, 5}, 3, -1, 12, nil},
	{[]int{6, 20}, 3, 0, 0, nil},
	{[]int{6, 20}, 5, 1, 0, nil},
	{[]int{8}, 2, 0, 0, nil},
	{[]int{2, 3, 8}, 2, 0, 0, nil},
	{[]int{2, 3, 8}, 3, 1, 0, nil},
	{[]int{2, 3, 8}, 2, 2, 0, nil},
	{[]int{6, 20}, 1, 0, 0, nil},
	// Copies, padding, and another order.
	{[]int{5, 3}, 3, 0, 0, [][]int{{4, 0, 1}, {1, -1, 2}, {1, 2, 3}}},
	{[]int{6, 5}, 2, 1, 0, [][]int{{0, 3, 1, -1}, {-1, 1, 4, 2}}},
	{[]int{7}, 3, 0, 0, [][]int{{6, 5, -1}, {0, 1, 2}, {4, 2, 3}}},
	{[]int{2, 3, 5}, 2, 0, 0, [][]int{{1, -1}, {1, 0}}},
	{[]int{2, 3, 5}, 4, 1, 0, [][]int{{2}, {0}, {0}, {1}}},
	{[]int{2, 3, 5}, 2, 2, 0, [][]int{{0, 1, 2}, {-1, 3, 4}}},
}

func (c cutting) spec() params.Spec { return params.New("w", dtypes.Float32, c.dims...) }

func (c cutting) cut() *params.Cut { return &params.Cut{Axis: c.axis, Index: c.index} }

// part is a rank's part as it is listed; onRank is one with what updates need.
func (c cutting) part() optim.Part {
	switch {
	case c.axis < 0:
		return optim.Flat{Length: c.length}
	case c.index != nil:
		return optim.Cut{Axis: c.axis, Ranks: c.ranks, Length: len(c.index[0])}
	}
	return optim.Cut{Axis: c.axis, Ranks: c.ranks}
}

func (c cutting) onRank(g *graph.Graph, rank int, sum func(*graph.Node) *graph.Node) optim.Part {
	switch part := c.part().(type) {
	case optim.Flat:
		part.Offset, part.Sum = graph.Const(g, int32(rank*c.length)), sum
		return part
	case optim.Cut:
		if part.Sum = sum; c.index != nil {
			part.Counted = graph.Const(g, c.cut().Counted(rank))
		}
		return part
	}
	return nil
}

// of cuts a rank's part out of the full array. Padding is NaN in flat parts, and otherwise 0.
func (c cutting) of(whole *graph.Node, rank int) *graph.Node {
	if c.index != nil {
		return pick(whole, c.axis, c.index[rank])
	}
	if c.axis < 0 {
		n := c.spec().Size()
		flat := graph.Pad(graph.Reshape(whole, n), graph.Const(whole.Graph(), float32(math.NaN())),
			compute.PadAxis{End: c.ranks*c.length - n})
		return graph.Slice(flat, graph.AxisRange(rank*c.length, (rank+1)*c.length))
	}
	specs := make([]graph.SliceAxisSpec, len(c.dims))
	for i := range specs {
		specs[i] = graph.AxisRange()
	}
	size := c.dims[c.axis] / c.ranks
	specs[c.axis] = graph.AxisRange(rank*size, (rank+1)*size)
	return graph.Slice(whole, specs...)
}

// pick returns an axis with other indices; −1 gives zeros.
func pick(x *graph.Node, axis int, index []int) *graph.Node {
	picked := make([]*graph.Node, len(index))
	for k, i := range index {
		specs := make([]graph.SliceAxisSpec, x.Rank())
		for a := range specs {
			specs[a] = graph.AxisRange()
		}
		specs[axis] = graph.AxisElem(max(i, 0))
		if picked[k] = graph.Slice(x, specs...); i < 0 {
			picked[k] = graph.ZerosLike(picked[k])
		}
	}
	return graph.Concatenate(picked, axis)
}

// join concatenates the ranks' parts of an array, cut to its elements.
func join(parts []*graph.Node, axis int, whole *graph.Node) *graph.Node {
	n := whole.Shape().Size()
	joined := graph.Concatenate(parts, axis)
	flat := graph.Reshape(joined, joined.Shape().Size())
	return graph.Reshape(graph.Slice(flat, graph.AxisRange(0, n)), whole.Shape().Dimensions...)
}

// trained makes a step of a part for each gradient, starting from zero states, and returns the parameter and the
// states.
func trained(opt optim.Optimizer, tree params.Tree, part optim.Part, w *graph.Node, grads []*graph.Node) []*graph.Node {
	ws, s := []*graph.Node{w}, []*graph.Node(nil)
	for _, state := range opt.States(tree[0], part) {
		s = append(s, graph.Zeros(w.Graph(), state.Shape))
	}
	for i, grad := range grads {
		ws, s = optim.ApplyToParts(opt, tree, []optim.Part{part}, ws, []*graph.Node{grad}, s,
			graph.Const(w.Graph(), int32(i+1)))
	}
	return append(ws, s...)
}
