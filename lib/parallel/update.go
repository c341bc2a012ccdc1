package parallel

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// reduce makes means over the batch of the sums of all parameters' gradients: whole ones, or with ZeRO the device's shards.
func (o *own) reduce(sums []*graph.Node) []*graph.Node {
	g := sums[0].Graph()
	grads := make([]*graph.Node, len(sums))
	for i, x := range sums {
		grads[i] = graph.Reshape(x, o.sumDims(i)...)
	}
	switch {
	case o.zero(1) && !o.zero(2):
		grads = o.each(grads, o.scatter)
	case !o.zero(1) && o.shards() > 1:
		grads = collective.AllReduceEach(grads, collective.Sum, o.averaged()...)
	}
	factor := graph.Const(g, float32(1/float64(o.shards()*o.layout.Microbatches*o.layout.Replicas)))
	for i, x := range grads {
		grads[i] = rank.Scaled(x, factor)
	}
	return grads
}

// totals is what a rank has of what clipping and loss scaling ask of all gradients: a vector of the number of those that are not
// finite, and of the sum of the squares of those that count here, of the model's elements each once.
func (o *own) totals(grads, scaling []*graph.Node) *graph.Node {
	g := grads[0].Graph()
	bad := graph.ScalarZero(g, dtypes.Float32)
	if len(scaling) > 0 {
		bad = graph.ConvertDType(graph.LogicalNot(precision.Finite(grads)), dtypes.Float32)
		bad = collective.AllReduce(bad, collective.Max)
		grads = o.policy.Scaling.Unscale(grads, scaling)
	}
	squares := graph.ScalarZero(g, dtypes.Float32)
	for _, flat := range []bool{false, true} { // what is the same on some devices counts on one
		for _, cut := range []bool{false, true} {
			var axes []string
			if flat {
				axes = append(axes, o.averaged()...)
			}
			if cut {
				axes = append(axes, o.shares.Axis)
			}
			var of []*graph.Node
			for i, x := range grads {
				if o.Counted[i] && o.zero(1) == flat && (o.cuts[i] != nil) == cut {
					of = append(of, o.counted(i, x))
				}
			}
			if len(of) == 0 {
				continue
			}
			sum := optim.SquareNorm(of)
			if len(axes) > 0 {
				sum = collective.AllReduce(sum, collective.Sum, axes...)
			}
			squares = graph.Add(squares, sum)
		}
	}
	return graph.Stack([]*graph.Node{bad, squares}, 0)
}

// counted leaves of a parameter's gradient what counts on this device, where several that share layers have the same.
func (o *own) counted(i int, x *graph.Node) *graph.Node {
	cut := o.cuts[i]
	if cut == nil {
		return x
	}
	counts := make([][]float32, cut.Ranks())
	for r := range counts {
		for _, is := range cut.Counted(r) {
			count := float32(0)
			if is {
				count = 1
			}
			counts[r] = append(counts[r], count)
		}
	}
	along := graph.Reshape(collective.Part(graph.Const(x.Graph(), counts), 0, o.shares.Axis), cut.Length())
	dims := o.tree[i].Shape.Dimensions
	mask := graph.ExpandAndBroadcast(along, dims, others(len(dims), cut.Axis))
	if o.zero(1) {
		mask = o.part([]int{i}, []*graph.Node{mask})[0]
	}
	return graph.Where(graph.GreaterThan(mask, graph.ZerosLike(mask)), x, graph.ZerosLike(x))
}

// others are all axes but one.
func others(n, but int) (axes []int) {
	for a := range n {
		if a != but {
			axes = append(axes, a)
		}
	}
	return axes
}

// apply updates the state from the means of the gradients, the loss, and what totals gives, summed over all ranks; that may be nil
// where nobody asks for it. It returns the new state, the parameters that the passes use where they are not in it, and the vector of
// train.MetricsOf.
func (o *own) apply(state, grads []*graph.Node, loss, totals *graph.Node) []*graph.Node {
	g, n := loss.Graph(), len(o.tree)
	if o.zero(1) && !o.keepsShards() {
		state = append(o.each(state[:n], o.part), state[n:]...)
	}
	out := o.update.UpdateShare(o.share(g, totals), state, loss, grads)
	if !o.zero(1) || o.zero(3) {
		return out
	}
	whole := o.each(precision.Cast(out[:n], o.policy.Compute), o.gather)
	if !o.keepsShards() {
		return append(whole, out[n:]...)
	}
	last := len(out) - 1
	return append(append(out[:last:last], whole...), out[last])
}

// share is the device's share of the model.
func (o *own) share(g *graph.Graph, totals *graph.Node) (s train.Share) {
	if o.zero(1) {
		place := graph.ConvertDType(collective.Rank(g, o.averaged()...), dtypes.Int64)
		var flats []optim.Flat
		for i, n := range o.lengths {
			flats = append(flats, optim.Flat{Length: n, Offset: graph.MulScalar(place, n), Sum: o.sumOver(i)})
		}
		s = o.update.FlatShare(flats)
	} else if len(o.Plan.cuts) > 0 {
		s = o.update.CutShare(g, o.shares.Axis, o.cuts)
	}
	s.Places, s.Counted = o.Places, o.Counted
	s.All = &train.Known{}
	if totals != nil {
		element := func(i int) *graph.Node { return graph.Reshape(graph.Slice(totals, graph.AxisElem(i))) }
		bad := element(0)
		s.All.Finite, s.All.Norm = graph.Equal(bad, graph.ZerosLike(bad)), graph.Sqrt(element(1))
	}
	return s
}

// sumOver adds up what devices have of a parameter.
func (o *own) sumOver(i int) func(*graph.Node) *graph.Node {
	return func(x *graph.Node) *graph.Node {
		if o.cuts[i] != nil {
			panic(errSums(o.Tree[i]))
		}
		return collective.AllReduce(x, collective.Sum, o.averaged()...)
	}
}

// try builds the graph of an update, where the rule may need what shards of parts do not give.
func (o *own) try(mesh *xla.Mesh) error {
	if !o.zero(1) || len(o.Plan.cuts) == 0 {
		return nil
	}
	var in []shapes.Shape
	for _, e := range o.entries {
		shape := e.local
		if e.flat > 0 {
			shape = shapes.Make(e.whole.Shape.DType, e.flat)
		}
		in = append(in, shape)
	}
	for _, n := range o.lengths {
		in = append(in, shapes.Make(o.policy.Reduce, n))
	}
	n := len(o.entries)
	in = append(in, shapes.Make(dtypes.Float32), shapes.Make(dtypes.Float32, 2))
	_, err := mesh.Shapes(func(in []*graph.Node) []*graph.Node {
		return o.apply(in[:n], in[n:len(in)-2], in[len(in)-2], in[len(in)-1])
	}, in...)
	return err
}

// asks says whether clipping or loss scaling ask for totals.
func (o *own) asks() bool { return o.recipe.Clip > 0 || len(o.policy.Scaling.States()) > 0 }

// scalingOf returns the states of the loss scaling, out of the whole state.
func scalingOf[T any](p *Plan, state []T) []T {
	_, scaling, _ := train.Tail(p.recipe, state)
	return scaling
}

// errSums is what a rule is refused with that needs sums over a parameter of which devices have shards of parts.
type errSums params.Spec

func (e errSums) Error() string {
	return "parallel: the optimizer sums over the elements of " + params.Spec(e).String() +
		", which is cut between the devices of the tensor axis and sharded by ZeRO: choose one of the two, or an optimizer that does not, such as adamw"
}
