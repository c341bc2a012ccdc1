package parallel

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
)

// Parameters, and gradients, of a block are gathered and scattered in one collective: as a matrix with one row for each device
// that shares them, in which each parameter has some columns.

// rows makes the matrix of whole arrays of the parameters at places.
func (o *own) rows(places []int, whole []*graph.Node) *graph.Node {
	columns := make([]*graph.Node, len(places))
	for k, at := range places {
		flat := graph.Reshape(whole[k], whole[k].Shape().Size())
		if missing := o.shards()*o.lengths[at] - flat.Shape().Size(); missing > 0 {
			flat = graph.Pad(flat, graph.ScalarZero(flat.Graph(), flat.DType()), compute.PadAxis{End: missing})
		}
		columns[k] = graph.Reshape(flat, o.shards(), o.lengths[at])
	}
	return graph.Concatenate(columns, 1)
}

// columns cuts what lies along the matrix's columns, from the last axis on, into that of each parameter.
func (o *own) columns(places []int, of *graph.Node) (all []*graph.Node) {
	from := 0
	for _, at := range places {
		specs := make([]graph.SliceAxisSpec, of.Rank())
		for i := range specs {
			specs[i] = graph.AxisRange()
		}
		specs[of.Rank()-1] = graph.AxisRange(from, from+o.lengths[at])
		all = append(all, graph.Slice(of, specs...))
		from += o.lengths[at]
	}
	return all
}

// gather makes whole parameters of shards.
func (o *own) gather(places []int, shards []*graph.Node) []*graph.Node {
	if len(places) == 0 {
		return nil
	}
	matrix := collective.AllGather(graph.InsertAxes(graph.Concatenate(shards, 0), 0), 0, o.averaged()...)
	whole := o.columns(places, matrix)
	for k, at := range places {
		shape := o.tree[at].Shape
		flat := graph.Reshape(whole[k], o.shards()*o.lengths[at])
		whole[k] = graph.Reshape(graph.Slice(flat, graph.AxisRange(0, shape.Size())), shape.Dimensions...)
	}
	return whole
}

// scatter sums whole gradients over the devices, of which each gets its shards.
func (o *own) scatter(places []int, grads []*graph.Node) []*graph.Node {
	if len(places) == 0 {
		return nil
	}
	row := collective.ReduceScatter(o.rows(places, grads), collective.Sum, 0, o.averaged()...)
	return o.columns(places, graph.Reshape(row, row.Shape().Size()))
}

// part takes the device's shards out of whole parameters, without any communication.
func (o *own) part(places []int, whole []*graph.Node) []*graph.Node {
	row := collective.Part(o.rows(places, whole), 0, o.averaged()...)
	return o.columns(places, graph.Reshape(row, row.Shape().Size()))
}

// each does one of these for all parameters, unit by unit.
func (o *own) each(of []*graph.Node, do func(places []int, of []*graph.Node) []*graph.Node) []*graph.Node {
	all := make([]*graph.Node, len(o.tree))
	for _, places := range o.units {
		unit := make([]*graph.Node, len(places))
		for k, at := range places {
			unit[k] = of[at]
		}
		for k, x := range do(places, unit) {
			all[places[k]] = x
		}
	}
	return all
}
