package engine

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/step"
)

// makeUpdate updates the cells of a unit, or of all units. Only the last update of a list changes counters and the
// states of loss scaling.
func (b *build) makeUpdate(op step.Op) {
	members := b.updated(op.Unit)
	recipe := b.update
	recipe.Model = b.modelOf(members)
	var grads []*graph.Node
	factor := b.number(factorSlot, 0)
	for _, at := range members {
		grads = append(grads, scaled(b.summed(at), factor))
	}
	share := b.share(recipe, members, b.totals(members, grads))
	out := recipe.UpdateShard(share, b.state(members), graph.Const(b.g, float32(0)), grads)
	last := len(out) - 1
	isLast := b.isLast(b.plan, op)
	if isLast {
		b.put(slot{kind: metricSlot}, out[last])
	}
	b.keep(members, out[:last], isLast)
}

// modelOf returns a model with some of the rank's parameters.
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
	return graph.Slice(vector, graph.AxisRange(b.offset(at), b.offset(at)+b.length(at)))
}

// state lists the state that an update of some parameters takes, in the order of a recipe, shards for sharded
// parameters.
func (b *build) state(members []int) (state []*graph.Node) {
	own := map[int]*graph.Node{} // shards of units
	for _, at := range members {
		k := b.entries[at].cell
		if own[k] == nil {
			if own[k] = b.number(cellSlot, k); b.cells[k].full {
				own[k] = b.row(own[k])
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
func (b *build) row(matrix *graph.Node) *graph.Node {
	n := matrix.Shape().Dim(1)
	place := []*graph.Node{b.shardIndex(), graph.ScalarZero(b.g, dtypes.Int32)}
	return graph.Reshape(graph.DynamicSlice(matrix, place, []int{1, n}), n)
}

// shardIndex returns the index of the device, or the rank, among those that share the state.
func (b *build) shardIndex() *graph.Node {
	if len(b.within) > 0 {
		return collective.Rank(b.g, b.within...)
	}
	if at := b.number(shardSlot, 0); at != nil {
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
		if !b.cells[cell].full && !b.hosts {
			put(cellSlot, cell, x)
			continue
		}
		if u.Shard == "" {
			x = graph.InsertAxes(x, 0)
		}
		put(freshSlot, u.number, x)
	}
	for k, cell := range b.otherCells(members) {
		if cell < b.firstShared() || last {
			put(cellSlot, cell, state[len(members)+k])
		}
	}
}
