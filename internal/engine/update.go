package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// makeUpdate updates the cells of a unit, or of all units. Only the last update of a list changes counters and the
// states of loss scaling.
func (b *build) makeUpdate(op step.Op) {
	members, factor := b.updated(op.Unit), b.number(factorSlot, 0)
	recipe := b.update
	model := recipe.Model.(chain.Model)
	tree := model.Params()
	var grads []*graph.Node
	var updated params.Tree
	for _, at := range members {
		grads, updated = append(grads, scaled(b.summed(at), factor)), append(updated, tree[at])
	}
	model.Blocks = []chain.Block{{Name: "updated", Params: updated}}
	recipe.Model = model
	share := b.share(recipe, members, b.totals(members, grads))
	out := recipe.UpdateShard(share, b.state(members), graph.Const(b.g, float32(0)), grads)
	last := len(out) - 1
	isLast := b.isLast(b.plan, op)
	if isLast {
		b.put(slot{kind: metricSlot}, out[last])
	}
	b.keep(members, out[:last], isLast)
}

// isLast reports whether an update is the last of the rank's list.
func (o *own) isLast(p *step.Plan, op step.Op) bool {
	list := p.Ranks[o.rank]
	for i := len(list) - 1; i >= 0; i-- {
		if updates(list[i].Kind) {
			return list[i] == op || list[i].Micro != op.Micro && list[i].Unit == op.Unit
		}
	}
	return false
}

// updates reports whether an operation is an update, on the devices or on the host.
func updates(k step.Kind) bool { return k == step.Update || k == step.HostUpdate }

// cut slices a parameter's shard out of its unit's.
func (b *build) cut(vector *graph.Node, at int) *graph.Node {
	return graph.Slice(vector, graph.AxisRange(b.offsets[at], b.offsets[at]+b.lengths[at]))
}

// state lists what an update of some parameters takes, in the order of a recipe's state: shards, if it is sharded.
func (b *build) state(members []int) (state []*graph.Node) {
	own := map[int]*graph.Node{} // shards of units
	for _, at := range members {
		k := b.entries[at].cell
		if own[k] == nil {
			if own[k] = b.number(cellSlot, k); b.cells[k].full {
				own[k] = b.row(b.unitOf[at], own[k])
			}
		}
		if b.flat {
			state = append(state, b.cut(own[k], at))
		} else {
			state = append(state, own[k])
		}
	}
	for _, i := range b.otherCells(members) {
		state = append(state, b.number(cellSlot, i))
	}
	return state
}

// otherCells returns the cells that follow the parameters in the state of an update: their optimizer states, those of
// loss scaling, and counters.
func (o *own) otherCells(members []int) (cells []int) {
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

// row returns the device's row of a unit's matrix.
func (b *build) row(u *unit, matrix *graph.Node) *graph.Node {
	n := matrix.Shape().Dim(1)
	place := []*graph.Node{b.shardIndex(u), graph.ScalarZero(b.g, dtypes.Int32)}
	return graph.Reshape(graph.DynamicSlice(matrix, place, []int{1, n}), n)
}

// shardIndex returns the index of the device, or the rank, among those that share a unit's state.
func (b *build) shardIndex(u *unit) *graph.Node {
	if len(u.within) > 0 {
		return collective.Rank(b.g, u.within...)
	}
	if at := b.get(b.shardSlot(u)); at != nil {
		return at
	}
	return graph.ScalarZero(b.g, dtypes.Int32)
}

// keep stores a new state in the cells.
func (b *build) keep(members []int, state []*graph.Node, last bool) {
	put := func(kind slotKind, number int, x *graph.Node) { b.put(slot{kind: kind, number: number}, x) }
	for _, at := range members {
		master, cell, u := b.entries[at].cell, b.weights[at], b.unitOf[at]
		if at != b.cells[master].of[0] {
			continue // stored with the first parameter of the cell
		}
		var parts []*graph.Node
		for _, i := range b.cells[master].of {
			parts = append(parts, state[slices.Index(members, i)])
		}
		x := concatenate(parts, 0)
		if master != cell {
			put(cellSlot, master, x)
			x = precision.Cast([]*graph.Node{x}, b.policy.Compute)[0]
		}
		if u.n == 1 && b.cells[cell].full {
			x = graph.InsertAxes(x, 0)
		}
		if (!b.cells[cell].full || u.n == 1) && !b.hosts {
			put(cellSlot, cell, x)
			continue
		}
		put(freshSlot, u.number, x)
	}
	for k, cell := range b.otherCells(members) {
		if cell < b.firstShared() || last {
			put(cellSlot, cell, state[len(members)+k])
		}
	}
}

// totals returns what clipping and loss scaling need of all gradients: a vector of the number of ranks with gradients
// that are not finite, and of the sum of squares, in which each element of the model counts once. It is nil if the
// recipe does neither.
func (b *build) totals(members []int, grads []*graph.Node) *graph.Node {
	if !b.Recipe.NeedsAllGradients() {
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
	of := map[string][]*graph.Node{} // by the axes along which they are on several devices; others count on one device
	var order []string
	for k, at := range members {
		if !b.counted[at] {
			continue
		}
		axes := slices.Clone(b.unitOf[at].within)
		if cut := b.cuts[at]; cut != nil {
			axes = append(axes, cut.Along...)
		}
		key := strings.Join(axes, "+")
		if of[key] == nil {
			order = append(order, key)
		}
		of[key] = append(of[key], b.countedPart(at, grads[k]))
	}
	for _, key := range order {
		sum := optim.SquareNorm(of[key])
		if key != "" {
			sum = collective.AllReduce(sum, collective.Sum, axisNames(key)...)
		}
		squares = graph.Add(squares, sum)
	}
	if all := graph.Stack([]*graph.Node{bad, squares}, 0); !b.local() {
		return b.between(all, "")
	} else {
		return all
	}
}

// countedPart masks the elements of a gradient that other tensor-parallel devices count.
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
	along := graph.Reshape(collective.Part(graph.Const(b.g, counts), 0, cut.Along...), cut.Length())
	dims := b.tree[i].Shape.Dimensions
	var others []int
	for a := range dims {
		if a != cut.Axis {
			others = append(others, a)
		}
	}
	mask := graph.ExpandAndBroadcast(along, dims, others)
	if b.flat {
		mask = b.row(b.unitOf[i], b.columns(i, mask))
	}
	return graph.Where(graph.GreaterThan(mask, graph.ZerosLike(mask)), x, graph.ZerosLike(x))
}

// share describes the device's part of the model, and the totals of all gradients.
func (b *build) share(recipe train.Recipe, members []int, totals *graph.Node) (s train.Shard) {
	switch {
	case b.flat:
		var flats []optim.Flat
		for _, at := range members {
			n := b.lengths[at]
			// a parameter may have more than 2³¹ elements
			place := graph.ConvertDType(b.shardIndex(b.unitOf[at]), dtypes.Int64)
			flats = append(flats, optim.Flat{Length: n, Offset: graph.MulScalar(place, n), Sum: b.sumOver(at)})
		}
		s = recipe.FlatShard(flats)
	case len(b.common.cuts) > 0:
		var cuts []*params.Cut
		for _, at := range members {
			cuts = append(cuts, b.own.cuts[at])
		}
		s = recipe.CutShard(b.g, cuts)
	}
	for _, at := range members {
		s.Places, s.Counted = append(s.Places, b.places[at]), append(s.Counted, b.counted[at])
	}
	s.All = &train.Global{}
	if totals != nil {
		element := func(i int) *graph.Node { return graph.Reshape(graph.Slice(totals, graph.AxisElem(i))) }
		bad := element(0)
		s.All.Finite, s.All.Norm = graph.Equal(bad, graph.ZerosLike(bad)), graph.Sqrt(element(1))
	}
	return s
}

// sumOver sums over the shards of a parameter.
func (b *build) sumOver(at int) func(*graph.Node) *graph.Node {
	return func(x *graph.Node) *graph.Node {
		if b.own.cuts[at] != nil {
			panic(errSums(b.full[at]))
		}
		switch u := b.unitOf[at]; {
		case len(u.within) > 0:
			return collective.AllReduce(x, collective.Sum, u.within...)
		case u.n == 1:
			return x
		default:
			return b.between(x, u.axis)
		}
	}
}

// errSums rejects optimizers that sum over a parameter that both tensor parallelism and ZeRO shard.
type errSums params.Spec

func (e errSums) Error() string {
	return fmt.Sprintf("engine: the optimizer sums over the elements of %s, which both tensor parallelism and ZeRO "+
		"shard: choose one of the two, or an optimizer that does not sum, such as adamw", params.Spec(e))
}
