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

// Shared is a model with tensor or sequence (context) parallelism: devices of a mesh compute it together. Params and
// Init are those of the full model. The loss is built from one device's shards of the parameters and of the batch; the
// mean over the devices along [Axis] and along params.Shards.Tokens is the loss, and likewise for gradients.
type Shared interface {
	Model
	// Shards returns which shards each device has on a mesh whose axes have these sizes. The mesh must have [Axis] and
	// the axes named in the result. It returns an error if the model does not fit the sizes or an axis is missing.
	Shards(size func(axis string) (int, error)) (params.Shards, error)
}

// layout describes how a recipe's state is sharded on a mesh.
type layout struct {
	recipe Recipe
	shards params.Shards
	local  params.Tree   // the parameters with the shapes of a device's shards
	state  params.Tree   // Recipe.State
	cuts   []*params.Cut // of the state, in its order
}

// replicatedLayout is the layout in which each device has the full state.
func replicatedLayout(r Recipe) layout {
	state := r.State()
	return layout{recipe: r, local: r.Model.Params(), state: state, cuts: make([]*params.Cut, len(state))}
}

// newLayout returns the layout of a recipe's state on a mesh.
func newLayout(mesh *xla.Mesh, r Recipe) (layout, error) {
	l := replicatedLayout(r)
	model, ok := r.Model.(Shared)
	if !ok {
		return l, l.fits(mesh)
	}
	var err error
	if l.shards, err = model.Shards(mesh.AxisSize); err != nil {
		return l, err
	}
	l.shards = l.shards.Placed()
	if err := l.fits(mesh); err != nil || l.shards.Axis == "" {
		return l, err
	}
	p := r.parts()
	if len(l.shards.Cuts) != len(p.params) {
		return l, fmt.Errorf("train: a model with %d parameters has %d Shards.Cuts: give one for each, nil for a "+
			"parameter that is not cut", len(p.params), len(l.shards.Cuts))
	}
	l.local = slices.Clone(l.local)
	for i, s := range p.params {
		cut := l.shards.Cuts[i]
		if err := cut.Validate(s); err != nil {
			return l, err
		}
		l.cuts[i], l.local[i].Shape = cut, cut.Part(l.local[i].Shape)
	}
	next := len(p.params)
	for i, s := range p.params {
		cut := l.shards.Cuts[i]
		for _, state := range r.GroupedOptimizer().States(s, optim.CutOf(cut)) {
			if cut != nil && state.Axis >= 0 {
				l.cuts[next] = cut.On(state.Axis)
			}
			next++
		}
	}
	return l, l.checkBlocks()
}

// fits returns an error if the mesh does not have the axes that the layout needs.
func (l layout) fits(mesh *xla.Mesh) error {
	if l.shards.Experts != "" {
		return fmt.Errorf("train: the model has experts along the mesh axis %q: use parallel.New", l.shards.Experts)
	}
	names, want := mesh.AxesNames(), append([]string{Axis}, l.shards.Tokens...)
	if l.shards.Axis != "" {
		want = append(want, l.shards.Axis)
	}
	if len(names) != len(want) || names[0] != Axis || slices.ContainsFunc(want,
		func(axis string) bool { return !slices.Contains(names, axis) }) {
		return fmt.Errorf("train: the mesh has axes %q: it needs %q, the first one first", names, want)
	}
	for _, axis := range append([]string{Axis}, l.shards.Tokens...) {
		if n, _ := mesh.AxisSize(axis); n > 1 && l.recipe.Replicas == nil {
			return fmt.Errorf("train: the mesh axis %q has size %d and Recipe.Replicas is nil: use one device, "+
				"lib/ddp or NewAuto", axis, n)
		}
	}
	return nil
}

// checkBlocks returns an error if the optimizer quantizes blocks that cuts of the parameters do not preserve: then a
// checkpoint of the shards would not be one of the full model.
func (l layout) checkBlocks() error {
	for i, s := range l.recipe.parts().params {
		if !optim.Joins(l.recipe.GroupedOptimizer(), s, optim.CutOf(l.shards.Cuts[i])) {
			return fmt.Errorf("train: the optimizer quantizes blocks of %s, which tensor parallelism cuts: "+
				"choose another optimizer, or no tensor parallelism", s)
		}
	}
	return nil
}

// place returns how entry i of the state is placed on the mesh.
func (l layout) place(i int) xla.Placement {
	if l.cuts[i] == nil {
		return xla.Replicated()
	}
	return xla.Shard(l.cuts[i].Axis, l.cuts[i].Along...)
}

// join assembles the full entry i of the state from the shards of all devices.
func (l layout) join(i int, all *tensors.Tensor) (*tensors.Tensor, error) {
	if l.cuts[i] == nil {
		return all, nil
	}
	return l.cuts[i].Join(all, l.state[i].Shape.Dimensions[l.cuts[i].Axis])
}

// graph is one step as each device sees it. Its inputs are the device's shards of the state, in the order of
// [Recipe.State], and of the batch's inputs and targets; its outputs are those of [Recipe.Update].
func (l layout) graph(in []*graph.Node) []*graph.Node {
	r, state, batch := l.recipe, in[:len(in)-2], in[len(in)-2:]
	weights, _, scaling, counters := cut(r.parts(), state)
	loss, grads := r.gradients(l.local.As(r.Policy().Compute), weights, scaling, batch[0], batch[1], r.Key(counters[0]))
	return r.updated(l.shard(loss.Graph()), state, loss, grads)
}

func (l layout) shard(g *graph.Graph) Shard {
	if l.shards.Axis == "" {
		return Shard{}
	}
	return l.recipe.CutShard(g, l.shards.Cuts)
}

// CutShard returns the [Shard] of a device with tensor parallelism: cuts say how each parameter is cut over the devices
// along mesh axes; nil means that each has the full one. Sum is along all of these. It builds a graph.
func (r Recipe) CutShard(g *graph.Graph, cuts []*params.Cut) (s Shard) {
	sum := func(axes []string) func(x *graph.Node) *graph.Node {
		return func(x *graph.Node) *graph.Node { return collective.AllReduce(x, collective.Sum, axes...) }
	}
	var along []string
	for i, spec := range r.Model.Params() {
		cut, axes := cuts[i], noise.Full(spec.Shape.Dimensions)
		part := optim.CutOf(cut)
		if c, ok := part.(optim.Cut); ok {
			c.Sum = sum(cut.Along)
			own := func(table any) *graph.Node { // the device's row of a table
				return graph.Reshape(collective.Part(graph.Const(g, table), 0, cut.Along...), -1)
			}
			for _, axis := range cut.Along {
				if !slices.Contains(along, axis) {
					along = append(along, axis)
				}
			}
			if table := counted(cut); slices.ContainsFunc(table,
				func(of []bool) bool { return slices.Contains(of, false) }) {
				c.Counted = own(table)
			}
			if part = c; r.Policy().StochasticUpdate {
				axes[cut.Axis].Index = own(indices(cut))
			}
		}
		s.parts, s.axes = append(s.parts, part), append(s.axes, axes)
	}
	s.Sum = sum(along)
	return s
}

// indices returns the indices of each rank, as a table.
func indices(cut *params.Cut) [][]int32 {
	table := make([][]int32, cut.Ranks())
	for r, index := range cut.Index {
		for _, i := range index {
			table[r] = append(table[r], int32(i))
		}
	}
	return table
}

// counted returns which of each rank's indices count in sums over all ranks, as a table.
func counted(cut *params.Cut) (table [][]bool) {
	for r := range cut.Ranks() {
		table = append(table, cut.Counted(r))
	}
	return table
}
