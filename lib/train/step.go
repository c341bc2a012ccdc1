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

// Key returns the key of a step's noise, a uint32 scalar, from the number of steps before it, an integer scalar.
func (r Recipe) Key(before *graph.Node) *graph.Node { return noise.Key(r.Seed, graph.OnePlus(before)) }

// Update is the part of a step that follows the gradients. It takes the state, as [Recipe.State] lists it, the mean
// loss over the batch, a float32 scalar, and the gradients of the scaled loss, means over the batch, too, in the order
// of the parameters and of any floating-point types. It returns the new state, and a vector of four: the loss, the norm
// of the gradients (0 where they are not clipped), 1 or 0 for an update made or left out, and the loss scale. It panics
// if the inputs do not fit.
func (r Recipe) Update(state []*graph.Node, loss *graph.Node, grads []*graph.Node) []*graph.Node {
	return r.updated(Shard{}, state, loss, grads)
}

// FlatShard is the share of a rank that has one flat part of each parameter, and of its gradient, padded with zeros. The
// state then has the parts in place of the parameters, and the optimizer's states of these, as optim.StatesOfParts lists
// them. All parts sum over the same ranks; they must have their Offset and Sum. No parts are the whole.
func (r Recipe) FlatShard(shards []optim.Flat) (share Shard) {
	for _, s := range shards {
		if share.Sum, share.parts = s.Sum, append(share.parts, s); r.Policy().StochasticUpdate {
			first := graph.ConvertDType(s.Offset, dtypes.Uint32)
			share.axes = append(share.axes, []noise.Axis{noise.Rows(first, s.Length)})
		}
	}
	return share
}

// Shard says what a rank has of a larger model, where the recipe's model is the rank's share of it: some of its
// parameters, each whole, or parts of them (Recipe.FlatShard, Recipe.CutShard).
type Shard struct {
	// Places are those of the share's parameters in the larger model's list: they choose the noise of stochastic
	// rounding.
	Places []int
	// Counted says, for each of the share's parameters, whether it counts here in what is said of all gradients: of
	// those that several ranks have, it is one rank's.
	Counted []bool
	// Sum adds up the ranks' x, as an all-reduce does. Only clipping and loss scaling need it, and not where All is
	// set.
	Sum func(x *graph.Node) *graph.Node
	// All is what is known of the gradients of all ranks, or nil.
	All *Global

	parts []optim.Part   // of the parameters; none are the whole, as is a nil one
	axes  [][]noise.Axis // what the parts have of each parameter
}

// Global is what clipping and loss scaling ask of all gradients.
type Global struct {
	Finite *graph.Node // whether all are finite, a boolean scalar
	Norm   *graph.Node // theirs, unscaled, as optim.GlobalNorm's
}

// UpdateShard is [Recipe.Update] for a rank that has a share of the model: norms are those of all gradients, and an
// update is made by all ranks or none. It panics if the share does not fit the recipe's model.
func (r Recipe) UpdateShard(s Shard, state []*graph.Node, loss *graph.Node, grads []*graph.Node) []*graph.Node {
	if len(s.Places) != len(grads) || len(s.Counted) != len(grads) || s.Sum == nil && s.All == nil {
		panic(fmt.Errorf("train: a share with %d places and %d counts for %d parameters, and with a Sum: "+
			"give one of each for each, and Sum or All", len(s.Places), len(s.Counted), len(grads)))
	}
	return r.updated(s, state, loss, grads)
}

func (r Recipe) updated(share Shard, state []*graph.Node, loss *graph.Node, grads []*graph.Node) []*graph.Node {
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
		finite = share.everywhere(finite)
		grads = scaler.Unscale(grads, scaling)
	}
	if r.Clip > 0 {
		buffers, tree := Buffers(r.Model), r.Model.Params()
		norm = share.norm(g, tree, buffers, grads)
		clipped := optim.ClipTo(grads, r.Clip, norm)
		for i, s := range tree {
			if buffers[s.Name] {
				clipped[i] = grads[i]
			}
		}
		grads = clipped
		finite = graph.LogicalAnd(finite, graph.IsFinite(norm)) // squares overflow before the gradients do
	}
	newWeights, newStates := r.update(share, weights, grads, states, updates, key)
	newScaling := scaling
	if len(scaling) > 0 {
		newWeights, newStates = precision.Select(finite, newWeights, weights), precision.Select(finite, newStates, states)
		updates = graph.Where(finite, updates, counters[1])
		newScaling = scaler.Update(scaling, finite)
		made, scale = graph.ConvertDType(finite, dtypes.Float32), scaling[0]
	}
	metrics := graph.Stack([]*graph.Node{loss, norm, made, scale}, 0)
	return slices.Concat(newWeights, newStates, newScaling, []*graph.Node{steps, updates, metrics})
}

// norm is the norm of all gradients of weights, a float32 scalar.
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
	case len(counted) == 0: // of this rank
		return graph.Sqrt(s.Sum(graph.Const(g, float32(0))))
	case s.parts != nil:
		return optim.NormOfParts(of, parts, counted, s.Sum)
	}
	return optim.GlobalNorm(counted, s.Sum)
}

// everywhere says whether something is so on all ranks.
func (s Shard) everywhere(is *graph.Node) *graph.Node {
	if s.All != nil {
		return s.All.Finite
	}
	if s.Sum == nil {
		return is
	}
	not := s.Sum(graph.ConvertDType(graph.LogicalNot(is), dtypes.Float32))
	return graph.Equal(not, graph.ZerosLike(not))
}

// gradients returns the mean loss over the batch, in float32, and the gradients of the scaled loss. The model computes
// in the policy's type, in which the tree lists its parameters, and the gradients come in it.
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

// loss is the model's, with noise where it has some.
func (r Recipe) loss(p params.Nodes, inputs, targets, key *graph.Node) *graph.Node {
	noisy, ok := r.Model.(Noisy)
	if !ok {
		return r.Model.Loss(p, inputs, targets)
	}
	g := inputs.Graph()
	row := graph.Const(g, uint32(0))
	if r.Replicas != nil {
		rows := graph.Const(g, uint32(inputs.Shape().Dim(0)))
		row = graph.Mul(graph.ConvertDType(r.Replicas.Rank(g), dtypes.Uint32), rows)
	}
	return noisy.NoisyLoss(p, inputs, targets, key, row)
}

// update applies the rule. Parameters of a half type that are rounded stochastically are handed to it in float32.
func (r Recipe) update(share Shard, weights, grads, states []*graph.Node,
	number, key *graph.Node) (newWeights, newStates []*graph.Node) {
	policy, tree, parts := r.Policy(), r.parts().params, share.parts
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
		if share.Places != nil {
			site = share.Places[i]
		}
		newWeights[i] = precision.CastStochastic(w, policy.Params,
			noise.BitsAt(key, updateSite+uint32(site), share.place(i, w)...))
	}
	return newWeights, newStates
}

// place says which elements of parameter i the rank has.
func (s Shard) place(i int, w *graph.Node) []noise.Axis {
	if s.axes != nil {
		return s.axes[i]
	}
	return noise.Full(w.Shape().Dimensions)
}

// updateSite is the first of the sites at which updates are rounded; those of models' dropout lie below.
const updateSite = 1 << 31
