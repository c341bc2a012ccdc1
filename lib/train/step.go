package train

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/noise"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Key returns the key for the random numbers of a step, a uint32 scalar, given the number of steps before it.
func (r Recipe) Key(before *graph.Node) *graph.Node { return noise.Key(r.Seed, graph.OnePlus(before)) }

// Update is the part of a step that follows the backward pass. It takes the state, as [Recipe.State] lists it, the mean
// loss over the batch, a float32 scalar, and the gradients of the scaled loss, of any floating-point types, in the
// order of the parameters. It returns the new state, followed by a vector of four: the loss, the global norm of the
// gradients (0 without clipping), 1 if the update was made and 0 if it was skipped, and the loss scale. It panics if
// the inputs do not fit.
func (r Recipe) Update(state []*graph.Node, loss *graph.Node, grads []*graph.Node) []*graph.Node {
	return r.updated(Shard{}, state, loss, grads)
}

// FlatShard returns the [Shard] of a rank that has one flat part of each parameter and gradient, padded with zeros, as
// ZeRO does. The state then has these parts in place of the parameters, and the optimizer states that
// optim.StatesOfParts lists for them. All parts must have their Offset and the same Sum.
func (r Recipe) FlatShard(shards []optim.Flat) (shard Shard) {
	for _, s := range shards {
		if shard.Sum, shard.parts = s.Sum, append(shard.parts, s); r.Policy().StochasticUpdate {
			first := graph.ConvertDType(s.Offset, dtypes.Uint32)
			shard.axes = append(shard.axes, []noise.Axis{noise.Rows(first, s.Length)})
		}
	}
	return shard
}

// Shard describes a rank's shard of a larger model, when the recipe's model is that shard: some full parameters, or
// parts of them ([Recipe.FlatShard], [Recipe.CutShard]).
type Shard struct {
	// Places are the indices of the shard's parameters in the larger model's list. They choose the random numbers of
	// stochastic rounding.
	Places []int
	// Counted says for each of the shard's parameters whether this rank counts it in the norm of all gradients. If
	// several ranks have the same parameter, one of them counts it.
	Counted []bool
	// Sum is an all-reduce over the ranks. Only clipping and loss scaling need it, and they do not if All is set.
	Sum func(x *graph.Node) *graph.Node
	// All is the norm of all ranks' gradients, if it has been computed before; else nil.
	All *Global

	parts []optim.Part   // of each parameter: nil for a full one; the list is nil if all are full
	axes  [][]noise.Axis // of each parameter: the indices that the part has
}

// Global is what clipping and loss scaling need to know about the gradients of all ranks.
type Global struct {
	Finite *graph.Node // whether all are finite, a boolean scalar
	Norm   *graph.Node // the global norm after unscaling, a float32 scalar
}

// UpdateShard is [Recipe.Update] for a rank that has a shard of the model: norms are those of all gradients, and either
// all ranks make an update or none. It panics if the shard does not fit the recipe's model.
func (r Recipe) UpdateShard(s Shard, state []*graph.Node, loss *graph.Node, grads []*graph.Node) []*graph.Node {
	if len(s.Places) != len(grads) || len(s.Counted) != len(grads) || s.Sum == nil && s.All == nil {
		panic(fmt.Errorf("train: a shard with %d Places and %d Counted for %d parameters: "+
			"give one of each for each parameter, and Sum or All", len(s.Places), len(s.Counted), len(grads)))
	}
	return r.updated(s, state, loss, grads)
}

func (r Recipe) updated(shard Shard, state []*graph.Node, loss *graph.Node, grads []*graph.Node) []*graph.Node {
	scaler := r.Policy().Scaling
	weights, states, scaling, counters := cut(r.parts(), state)
	g := loss.Graph()
	steps, updates := graph.OnePlus(counters[0]), graph.OnePlus(counters[1])
	key := r.Key(counters[0])
	one := graph.Const(g, float32(1))
	norm, made, scale := graph.ZerosLike(one), one, one
	finite := graph.Const(g, true)
	if len(scaling) > 0 {
		if len(grads) > 0 {
			finite = precision.Finite(grads)
		}
		finite = shard.everywhere(finite)
		grads = scaler.Unscale(grads, scaling)
	}
	if r.Clip > 0 {
		buffers, tree := Buffers(r.Model), r.Model.Params()
		norm = shard.norm(g, tree, buffers, grads)
		clipped := optim.ClipTo(grads, r.Clip, norm)
		for i, s := range tree {
			if buffers[s.Name] {
				clipped[i] = grads[i]
			}
		}
		grads = clipped
		finite = graph.LogicalAnd(finite, graph.IsFinite(norm)) // squares overflow before the gradients do
	}
	newWeights, newStates := r.update(shard, weights, grads, states, updates, key)
	newScaling := scaling
	if len(scaling) > 0 {
		newWeights, newStates = precision.Select(finite, newWeights, weights),
			precision.Select(finite, newStates, states)
		updates = graph.Where(finite, updates, counters[1])
		newScaling = scaler.Update(scaling, finite)
		made, scale = graph.ConvertDType(finite, dtypes.Float32), scaling[0]
	}
	metrics := graph.Stack([]*graph.Node{loss, norm, made, scale}, 0)
	return slices.Concat(newWeights, newStates, newScaling, []*graph.Node{steps, updates, metrics})
}

// norm is the global norm of the gradients of all weights, a float32 scalar.
func (s Shard) norm(g *graph.Graph, tree params.Tree, buffers map[string]bool, grads []*graph.Node) *graph.Node {
	if s.All != nil {
		return s.All.Norm
	}
	var of params.Tree
	var parts []optim.Part
	var counted []*graph.Node
	for i, grad := range grads {
		if buffers[tree[i].Name] || s.Counted != nil && s.parts == nil && !s.Counted[i] {
			continue
		}
		of, counted = append(of, tree[i]), append(counted, grad)
		if s.parts != nil {
			parts = append(parts, s.parts[i])
		}
	}
	switch {
	case len(counted) == 0: // on this rank
		return graph.Sqrt(s.Sum(graph.Const(g, float32(0))))
	case s.parts != nil:
		return optim.NormOfParts(of, parts, counted, s.Sum)
	}
	return optim.GlobalNorm(counted, s.Sum)
}

// everywhere returns whether a condition holds on all ranks.
func (s Shard) everywhere(holds *graph.Node) *graph.Node {
	if s.All != nil {
		return s.All.Finite
	}
	if s.Sum == nil {
		return holds
	}
	not := s.Sum(graph.ConvertDType(graph.LogicalNot(holds), dtypes.Float32))
	return graph.Equal(not, graph.ZerosLike(not))
}

// gradients returns the mean loss over the batch, in float32, and the gradients of the scaled loss, in the type that
// the model computes in, which is that of the tree.
func (r Recipe) gradients(tree params.Tree, weights, scaling []*graph.Node,
	inputs, targets, key *graph.Node) (*graph.Node, []*graph.Node) {
	policy := r.Policy()
	cast := precision.Cast(weights, policy.Compute)
	loss := graph.ConvertDType(r.loss(tree.Nodes(cast), inputs, targets, key), policy.Output)
	grads := graph.Gradient(policy.Scaling.Scale(loss, scaling), cast...)
	loss = graph.ConvertDType(loss, dtypes.Float32)
	if r.Replicas == nil {
		return loss, grads
	}
	means := r.Replicas.Mean(append(precision.Cast(grads, policy.Reduce), loss))
	return means[len(grads)], means[:len(grads)]
}

// loss returns the model's loss, with random numbers if the model is Noisy.
func (r Recipe) loss(p params.Nodes, inputs, targets, key *graph.Node) *graph.Node {
	noisy, ok := r.Model.(Noisy)
	if !ok {
		return r.Model.Loss(p, inputs, targets)
	}
	g := inputs.Graph()
	row := graph.Const(g, uint32(0))
	if r.Replicas != nil {
		n := graph.Const(g, uint32(inputs.Shape().Dim(0)))
		row = graph.Mul(graph.ConvertDType(r.Replicas.Rank(g), dtypes.Uint32), n)
	}
	return noisy.NoisyLoss(p, inputs, targets, key, row)
}

// update applies the optimizer. With stochastic rounding it computes half-precision parameters in float32.
func (r Recipe) update(shard Shard, weights, grads, states []*graph.Node,
	number, key *graph.Node) (newWeights, newStates []*graph.Node) {
	policy, tree, parts := r.Policy(), r.parts().params, shard.parts
	if parts == nil {
		parts = make([]optim.Part, len(tree))
	}
	if !policy.StochasticUpdate {
		return optim.ApplyToParts(r.GroupedOptimizer(), tree, parts, weights, grads, states, number)
	}
	newWeights, newStates = optim.ApplyToParts(r.GroupedOptimizer(), tree.As(dtypes.Float32), parts,
		precision.Cast(weights, dtypes.Float32), grads, states, number)
	for i, w := range newWeights {
		site := i
		if shard.Places != nil {
			site = shard.Places[i]
		}
		newWeights[i] = precision.CastStochastic(w, policy.Params,
			noise.BitsAt(key, updateSite+uint32(site), shard.place(i, w)...))
	}
	return newWeights, newStates
}

// place returns which elements of parameter i the rank has.
func (s Shard) place(i int, w *graph.Node) []noise.Axis {
	if s.axes != nil {
		return s.axes[i]
	}
	return noise.Full(w.Shape().Dimensions)
}

// updateSite is the first site of the random bits that round updates; the sites of dropout are lower.
const updateSite = 1 << 31
