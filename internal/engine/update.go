package engine

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// makeUpdate makes the cells of a unit, or of all, anew, of what they were and of the sums of the gradients. The counters, and what
// clipping and loss scaling know, are those of the last update of a list.
func (b *build) makeUpdate(op step.Op) {
	members := b.updated(op.Unit)
	recipe := b.update
	recipe.Model = b.modelOf(members)
	var grads []*graph.Node
	factor := b.number(factorSlot, 0)
	for _, at := range members {
		grads = append(grads, scaled(b.summed(at), factor))
	}
	out := recipe.UpdateShare(b.share(recipe, members, b.totals(grads)), b.state(members), graph.Const(b.g, float32(0)), grads)
	last := len(out) - 1
	isLast := b.isLast(b.plan, op)
	if isLast {
		b.has[slot{kind: metricSlot}] = out[last:]
	}
	b.keep(members, out[:last], isLast)
}

// modelOf is a model that has some of the rank's parameters alone.
func (o *own) modelOf(members []int) chain.Model {
	m := o.update.Model.(chain.Model)
	tree := m.Params()
	var own params.Tree
	for _, at := range members {
		own = append(own, tree[at])
	}
	m.Blocks = []chain.Block{{Name: "updated", Params: own}}
	return m
}

// isLast says whether an update is the last of the rank's list: others leave the counters.
func (o *own) isLast(p *step.Plan, op step.Op) bool {
	list := p.Ranks[o.rank]
	for i := len(list) - 1; i >= 0; i-- {
		if updates(list[i].Kind) {
			return list[i] == op || list[i].Micro != op.Micro && list[i].Unit == op.Unit
		}
	}
	return false
}

// updates says whether an operation is an update, of the devices or of the host.
func updates(k step.Kind) bool { return k == step.Update || k == step.HostUpdate }

// scaled returns x, of any floating-point type, times a float32 scalar: a sum times one over the number of its summands is their mean.
// (A quotient would be compiled now to a division, now to a product, and programs would differ in bits.)
func scaled(x, factor *graph.Node) *graph.Node {
	return graph.ConvertDType(graph.Mul(graph.ConvertDType(x, dtypes.Float32), factor), x.DType())
}

// summed is the sum of a parameter's gradients over all micro-batches and ranks, or the rank's shard of it.
func (b *build) summed(at int) *graph.Node {
	u := b.unitOf[at]
	x := slot{kind: reducedSlot, number: u.number}
	if len(u.Reduce) == 0 {
		x.kind = sumSlot
	}
	if b.idle[at] {
		return graph.Zeros(b.g, shapes.Make(b.policy.Reduce, b.tree[at].Shape.Dimensions...))
	}
	if s := b.sums[x]; s != nil && s.matrix != nil && s.matrix.Rank() == 1 {
		return b.cut(s.matrix, at)
	}
	if b.flat { // whole: the host updates, and nobody shards
		return graph.Reshape(b.columns(at, b.part(x, at)), b.length(at))
	}
	return b.part(x, at)
}

// cut takes a parameter's shard out of its unit's.
func (b *build) cut(vector *graph.Node, at int) *graph.Node {
	return graph.Slice(vector, graph.AxisRange(b.offset(at), b.offset(at)+b.length(at)))
}

// state lists what an update of some parameters takes, as a recipe lists its state: of parameters that are sharded the shards.
func (b *build) state(members []int) (state []*graph.Node) {
	own := map[int]*graph.Node{} // shards of units
	for _, at := range members {
		k := b.entries[at].cell
		if own[k] == nil {
			if own[k] = b.number(cellSlot, k); b.cells[k].whole {
				own[k] = b.row(own[k])
			}
		}
		if b.flat {
			state = append(state, b.cut(own[k], at))
		} else {
			state = append(state, own[k])
		}
	}
	for _, i := range b.behind(members) {
		state = append(state, b.number(cellSlot, i))
	}
	return state
}

// behind are the cells that come behind the parameters in the state of an update: their states, the loss scaling's, and counters.
func (o *own) behind(members []int) (cells []int) {
	for _, at := range members {
		for _, e := range o.statesOf[at] {
			cells = append(cells, o.entries[e].cell)
		}
	}
	for i := o.firstShared(); i < len(o.cells); i++ {
		cells = append(cells, i)
	}
	return cells
}

// row is the device's row of a unit's matrix.
func (b *build) row(matrix *graph.Node) *graph.Node {
	n := matrix.Shape().Dim(1)
	place := []*graph.Node{b.place(), graph.ScalarZero(b.g, dtypes.Int32)}
	return graph.Reshape(graph.DynamicSlice(matrix, place, []int{1, n}), n)
}

// place is the device's, or the rank's, among those that share the state.
func (b *build) place() *graph.Node {
	if len(b.within) > 0 {
		return collective.Rank(b.g, b.within...)
	}
	if at := b.number(placeSlot, 0); at != nil {
		return at
	}
	return graph.ScalarZero(b.g, dtypes.Int32)
}

// keep puts a new state into the cells.
func (b *build) keep(members []int, state []*graph.Node, last bool) {
	put := func(kind slotKind, number int, x *graph.Node) {
		b.has[slot{kind: kind, number: number}] = []*graph.Node{x}
	}
	for _, at := range members {
		kept, cell, u := b.entries[at].cell, b.weights[at], b.unitOf[at]
		if at != b.cells[kept].of[0] {
			continue // it is put there with the first of them
		}
		var parts []*graph.Node
		for _, i := range b.cells[kept].of {
			parts = append(parts, state[slices.Index(members, i)])
		}
		x := concatenate(parts, 0)
		if kept != cell {
			put(cellSlot, kept, x)
			x = precision.Cast([]*graph.Node{x}, b.policy.Compute)[0]
		}
		if !b.cells[cell].whole && !b.hosts {
			put(cellSlot, cell, x)
			continue
		}
		if u.Shard == "" {
			x = graph.InsertAxes(x, 0)
		}
		put(freshSlot, u.number, x)
	}
	for k, cell := range b.behind(members) {
		if cell < b.firstShared() || last {
			put(cellSlot, cell, state[len(members)+k])
		}
	}
}

// totals is what clipping and loss scaling ask of all gradients: a vector of the number of ranks that have some which are not
// finite, and of the sum of the squares, of the model's elements each once. It is nil where nobody asks.
func (b *build) totals(grads []*graph.Node) *graph.Node {
	if !b.Recipe.AsksAll() {
		return nil
	}
	bad := graph.ScalarZero(b.g, dtypes.Float32)
	if len(b.policy.Scaling.States()) > 0 {
		bad = graph.ConvertDType(graph.LogicalNot(precision.Finite(grads)), dtypes.Float32)
		if b.devices() > 1 {
			bad = collective.AllReduce(bad, collective.Max)
		}
		grads = b.policy.Scaling.Unscale(grads, b.scaling())
	}
	squares := graph.ScalarZero(b.g, dtypes.Float32)
	for _, cut := range []bool{false, true} { // what is the same on some devices counts on one
		axes := slices.Clone(b.within)
		if cut {
			axes = append(axes, b.Shares.Axis)
		}
		var of []*graph.Node
		for i, x := range grads {
			if b.counted[i] && (b.cuts[i] != nil) == cut {
				of = append(of, b.countedPart(i, x))
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
	if all := graph.Stack([]*graph.Node{bad, squares}, 0); !b.local() {
		return b.between(all, "")
	} else {
		return all
	}
}

// countedPart leaves of a parameter's gradient what counts on this device, where several that share layers have the same.
func (b *build) countedPart(i int, x *graph.Node) *graph.Node {
	cut := b.cuts[i]
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
	along := graph.Reshape(collective.Part(graph.Const(b.g, counts), 0, b.Shares.Axis), cut.Length())
	dims := b.tree[i].Shape.Dimensions
	var others []int
	for a := range dims {
		if a != cut.Axis {
			others = append(others, a)
		}
	}
	mask := graph.ExpandAndBroadcast(along, dims, others)
	if b.shards > 1 {
		mask = b.row(b.columns(i, mask))
	}
	return graph.Where(graph.GreaterThan(mask, graph.ZerosLike(mask)), x, graph.ZerosLike(x))
}

// share says what the device has of the model, and what is known of all gradients.
func (b *build) share(recipe train.Recipe, members []int, totals *graph.Node) (s train.Share) {
	switch {
	case b.flat:
		place := graph.ConvertDType(b.place(), dtypes.Int64) // a parameter may have more than 2³¹ elements
		var flats []optim.Flat
		for _, at := range members {
			n := b.length(at)
			flats = append(flats, optim.Flat{Length: n, Offset: graph.MulScalar(place, n), Sum: b.sumOver(at)})
		}
		s = recipe.FlatShare(flats)
	case len(b.common.cuts) > 0:
		var cuts []*params.Cut
		for _, at := range members {
			cuts = append(cuts, b.own.cuts[at])
		}
		s = recipe.CutShare(b.g, b.Shares.Axis, cuts)
	}
	for _, at := range members {
		s.Places, s.Counted = append(s.Places, b.places[at]), append(s.Counted, b.counted[at])
	}
	s.All = &train.Known{}
	if totals != nil {
		element := func(i int) *graph.Node { return graph.Reshape(graph.Slice(totals, graph.AxisElem(i))) }
		bad := element(0)
		s.All.Finite, s.All.Norm = graph.Equal(bad, graph.ZerosLike(bad)), graph.Sqrt(element(1))
	}
	return s
}

// sumOver adds up what devices have of a parameter that is sharded.
func (b *build) sumOver(at int) func(*graph.Node) *graph.Node {
	return func(x *graph.Node) *graph.Node {
		if b.own.cuts[at] != nil {
			panic(errSums(b.whole[at]))
		}
		if len(b.within) > 0 {
			return collective.AllReduce(x, collective.Sum, b.within...)
		}
		if b.shards == 1 {
			return x
		}
		return b.between(x, b.axis)
	}
}

// errSums is what a rule is refused with that needs sums over a parameter of which devices have shards of parts.
type errSums params.Spec

func (e errSums) Error() string {
	return fmt.Sprintf("engine: the optimizer sums over the elements of %s, "+
		"which is cut between the devices of the tensor axis and sharded by ZeRO: choose one of the two, or an optimizer that does not, such as adamw", params.Spec(e))
}
