package train

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/noise"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
)

// Shared is a model that the devices of a mesh compute together. Its Params and Init are the whole model's. Its loss is
// built from what one device has of the parameters, and from its rows of the batch; the mean of that over the devices
// along [Axis] and along params.Shares.Tokens is the loss, and so it is with the gradients.
type Shared interface {
	Model
	// Shares says what each device of a mesh has, whose axes have these sizes. Besides [Axis], the mesh has the axes
	// that are named in it. A model that does not fit the sizes is an error, and so is a mesh that lacks an axis.
	Shares(size func(axis string) (int, error)) (params.Shares, error)
}

// layout is what the devices of a mesh have of a recipe's state.
type layout struct {
	recipe Recipe
	shares params.Shares
	local  params.Tree   // a device's parameters
	state  params.Tree   // Recipe.State
	cuts   []*params.Cut // of the state, in its order
}

// wholeLayout is that of devices which all have everything.
func wholeLayout(r Recipe) layout {
	state := r.State()
	return layout{recipe: r, local: r.Model.Params(), state: state, cuts: make([]*params.Cut, len(state))}
}

// newLayout lays a recipe's state out on a mesh.
func newLayout(mesh *xla.Mesh, r Recipe) (layout, error) {
	l := wholeLayout(r)
	model, ok := r.Model.(Shared)
	if !ok {
		return l, l.fits(mesh)
	}
	var err error
	if l.shares, err = model.Shares(mesh.AxisSize); err != nil {
		return l, err
	}
	if err := l.fits(mesh); err != nil || l.shares.Axis == "" {
		return l, err
	}
	p := r.parts()
	if len(l.shares.Cuts) != len(p.params) {
		return l, fmt.Errorf("train: a model of %d parameters shares %d: give a cut for each, nil for a whole one",
			len(p.params), len(l.shares.Cuts))
	}
	l.local = slices.Clone(l.local)
	for i, s := range p.params {
		cut := l.shares.Cuts[i]
		if err := cut.Validate(s); err != nil {
			return l, err
		}
		l.cuts[i], l.local[i].Shape = cut, cut.Part(l.local[i].Shape)
	}
	next := len(p.params)
	for i, s := range p.params {
		cut := l.shares.Cuts[i]
		for _, state := range r.GroupedOptimizer().States(s, optim.CutOf(cut)) {
			if cut != nil && state.Axis >= 0 {
				l.cuts[next] = &params.Cut{Axis: state.Axis, Index: cut.Index}
			}
			next++
		}
	}
	return l, l.joins()
}

// fits returns an error if the mesh has not the axes that there must be.
func (l layout) fits(mesh *xla.Mesh) error {
	names, want := mesh.AxesNames(), append([]string{Axis}, l.shares.Tokens...)
	if l.shares.Axis != "" {
		want = append(want, l.shares.Axis)
	}
	if len(names) != len(want) || names[0] != Axis || slices.ContainsFunc(want,
		func(axis string) bool { return !slices.Contains(names, axis) }) {
		return fmt.Errorf("train: the mesh has axes %q, want %q, the first one first", names, want)
	}
	for _, axis := range append([]string{Axis}, l.shares.Tokens...) {
		if n, _ := mesh.AxisSize(axis); n > 1 && l.recipe.Replicas == nil {
			return fmt.Errorf("train: a mesh with %q=%d and no Recipe.Replicas: use one device, lib/ddp or NewAuto", axis, n)
		}
	}
	return nil
}

// joins returns an error if the rule's states of cut parameters are not the whole's in pieces.
func (l layout) joins() error {
	for i, s := range l.recipe.parts().params {
		if !optim.Joins(l.recipe.GroupedOptimizer(), s, optim.CutOf(l.shares.Cuts[i])) {
			return fmt.Errorf("train: the optimizer keeps numbers of blocks of %s, which is cut, and the blocks with it: "+
				"choose another optimizer, or do not share parameters", s)
		}
	}
	return nil
}

// place says how entry i of the state lies on the mesh.
func (l layout) place(i int) xla.Placement {
	if l.cuts[i] == nil {
		return xla.Replicated()
	}
	return xla.Shard(l.cuts[i].Axis, l.shares.Axis)
}

// join makes the whole of what all devices have of entry i of the state.
func (l layout) join(i int, all *tensors.Tensor) (*tensors.Tensor, error) {
	if l.cuts[i] == nil {
		return all, nil
	}
	return l.cuts[i].Join(all, l.state[i].Shape.Dimensions[l.cuts[i].Axis])
}

// graph is one step as each device sees it. Its inputs are what it has of the state, as [Recipe.State] lists it, and its
// rows of the inputs and the targets; its outputs those of [Recipe.Update].
func (l layout) graph(in []*graph.Node) []*graph.Node {
	r, state, batch := l.recipe, in[:len(in)-2], in[len(in)-2:]
	weights, _, scaling, counters := cut(r.parts(), state)
	loss, grads := r.gradients(l.local.As(r.Policy().Compute), weights, scaling, batch[0], batch[1], r.Key(counters[0]))
	return r.updated(l.share(loss.Graph()), state, loss, grads)
}

// share is the device's share of the parameters.
func (l layout) share(g *graph.Graph) Shard {
	if l.shares.Axis == "" {
		return Shard{}
	}
	return l.recipe.CutShard(g, l.shares.Axis, l.shares.Cuts)
}

// CutShard is the share of a device that has a part of each parameter, as cuts say for the devices along a mesh axis;
// nil is one that each has whole. It builds a graph.
func (r Recipe) CutShard(g *graph.Graph, axis string, cuts []*params.Cut) Shard {
	s := Shard{Sum: func(x *graph.Node) *graph.Node { return collective.AllReduce(x, collective.Sum, axis) }}
	own := func(table any) *graph.Node { // the device's row of a table
		return graph.Reshape(collective.Part(graph.Const(g, table), 0, axis), -1)
	}
	for i, spec := range r.Model.Params() {
		cut, axes := cuts[i], noise.Full(spec.Shape.Dimensions)
		part := optim.CutOf(cut)
		if c, ok := part.(optim.Cut); ok {
			c.Sum = s.Sum
			if table := counted(cut); slices.ContainsFunc(table, func(of []bool) bool { return slices.Contains(of, false) }) {
				c.Counted = own(table)
			}
			if part = c; r.Policy().StochasticUpdate {
				axes[cut.Axis].Index = own(indices(cut))
			}
		}
		s.parts, s.axes = append(s.parts, part), append(s.axes, axes)
	}
	return s
}

// indices are those of all ranks, as a table.
func indices(cut *params.Cut) [][]int32 {
	table := make([][]int32, cut.Ranks())
	for r, index := range cut.Index {
		for _, i := range index {
			table[r] = append(table[r], int32(i))
		}
	}
	return table
}

// counted says which of each rank's indices count in sums over all ranks, as a table.
func counted(cut *params.Cut) (table [][]bool) {
	for r := range cut.Ranks() {
		table = append(table, cut.Counted(r))
	}
	return table
}
