package zero

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
)

// whole returns the parameters of a block out of its gathered units.
func (l *layout) whole(block int, gathered map[int]*graph.Node) []*graph.Node {
	var all []*graph.Node
	for _, m := range l.params[block] {
		u := l.units[m.unit]
		spec := l.tree[u.places[m.index]].Shape
		x := graph.Slice(gathered[m.unit], graph.AxisRange(), graph.AxisRange(u.offsets[m.index], u.offsets[m.index]+u.lengths[m.index]))
		x = graph.Reshape(x, l.shards*u.lengths[m.index])
		all = append(all, graph.Reshape(graph.Slice(x, graph.AxisRange(0, spec.Size())), spec.Dimensions...))
	}
	return all
}

// rows returns, of gradients of a block's parameters, those of each of its units as a matrix with one row for each rank.
func (l *layout) rows(block int, grads []*graph.Node) map[int]*graph.Node {
	columns := map[int][]*graph.Node{}
	for _, u := range l.uses[block] {
		columns[u] = make([]*graph.Node, len(l.units[u].places))
	}
	for k, m := range l.params[block] {
		length := l.units[m.unit].lengths[m.index]
		flat := graph.Reshape(grads[k], grads[k].Shape().Size())
		if missing := l.shards*length - flat.Shape().Size(); missing > 0 {
			flat = graph.Pad(flat, graph.ScalarZero(flat.Graph(), flat.DType()), compute.PadAxis{End: missing})
		}
		columns[m.unit][m.index] = graph.Reshape(flat, l.shards, length)
	}
	rows := map[int]*graph.Node{}
	for _, u := range l.uses[block] { // not in the order of a map, so that equal steps are equal programs
		parts := columns[u]
		rows[u] = parts[0]
		if len(parts) > 1 {
			rows[u] = graph.Concatenate(parts, 1)
		}
	}
	return rows
}

// cut returns the shards of the parameters, in the order of the model's list, out of those of the units.
func (l *layout) cut(shards []*graph.Node) []*graph.Node {
	all := make([]*graph.Node, len(l.tree))
	for i, u := range l.units {
		for k, at := range u.places {
			all[at] = graph.Slice(shards[i], graph.AxisRange(u.offsets[k], u.offsets[k]+u.lengths[k]))
		}
	}
	return all
}

// join is cut undone.
func (l *layout) join(all []*graph.Node) []*graph.Node {
	shards := make([]*graph.Node, len(l.units))
	for i, u := range l.units {
		var parts []*graph.Node
		for _, at := range u.places {
			parts = append(parts, all[at])
		}
		if shards[i] = parts[0]; len(parts) > 1 {
			shards[i] = graph.Concatenate(parts, 0)
		}
	}
	return shards
}
