// Package parallel composes the techniques that spread the training of one model over many devices: data, pipeline, tensor and
// sequence parallelism and ZeRO, in one [Layout].
//
// A [Rank] has the blocks of its pipeline stages, and drives the devices of a mesh by programs of its own, one for each pass of a
// stage, in which lib/collective's operations do what its devices share: other rows (the axis "data"), parts of a layer ("tensor")
// and other tokens ("ring", "ulysses"). What lies between ranks, activations from stage to stage and the gradients of replicas, goes
// by messages of a group.Group: between goroutines of one process ([New]), or between processes and hosts (lib/collective/mpi).
//
// A model is a chain of blocks (package chain), any other a chain of one. Where devices share layers or sequences, it
// must say what each of them has (train.Shared), as gpt.Parallel does.
package parallel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// Plan says which rank has what of a recipe's model, and who does what when. It needs no devices.
type Plan struct {
	layout Layout
	recipe train.Recipe
	policy precision.Policy
	model  chain.Model
	player *pipeline.Player
	shares params.Shares
	cuts   map[string]*params.Cut // of the parameters that devices share, by name
	*pipeline.Division
}

// NewPlan deals a recipe's model to the ranks of a layout. It is an error if the layout or the recipe is not valid, or if they do
// not fit each other.
func NewPlan(r train.Recipe, l Layout) (*Plan, error) {
	if err := errors.Join(l.Validate(), r.Validate()); err != nil {
		return nil, err
	}
	l = l.whole()
	p := &Plan{layout: l, policy: r.Policy(), cuts: map[string]*params.Cut{}}
	if err := p.share(r.Model); err != nil {
		return nil, err
	}
	var err error
	if p.model, err = chain.Of(r.Model); err != nil {
		return nil, err
	}
	r.Model = p.model
	p.recipe = r
	if r.Replicas != nil {
		return nil, errors.New("parallel: Recipe.Replicas is set, and the layout says itself what is averaged: leave it nil")
	}
	s, err := l.schedule()
	if err != nil {
		return nil, err
	}
	if p.player, err = pipeline.NewPlayer(s); err != nil {
		return nil, err
	}
	if l.Cut == nil {
		if p.layout.Cut, err = pipeline.Even(len(p.model.Blocks), s.Stages); err != nil {
			return nil, err
		}
	}
	if err := pipeline.CheckCut(p.layout.Cut, s, len(p.model.Blocks)); err != nil {
		return nil, err
	}
	if p.Division, err = pipeline.Divide(r, p.model, s, p.layout.Cut); err != nil {
		return nil, err
	}
	for rank, share := range p.Shares {
		if len(share.Tree) == 0 {
			return nil, fmt.Errorf("parallel: rank %d has the blocks %v, which have no parameters: choose another Layout.Cut", rank, share.Blocks)
		}
	}
	return p, p.fits()
}

// share asks the model what devices share.
func (p *Plan) share(model train.Model) (err error) {
	sizes := map[string]int{}
	for _, axis := range p.layout.axes() {
		sizes[axis.Name] = axis.Size
	}
	shared, ok := model.(train.Shared)
	if !ok {
		if p.layout.PerRank() > p.layout.Data {
			return fmt.Errorf("parallel: a %T does not say what devices share, and the layout has tensor=%d, ring=%d, ulysses=%d: "+
				"give a model that does (train.Shared), as gpt.Parallel, or leave these at 1", model, p.layout.Tensor, p.layout.Ring, p.layout.Ulysses)
		}
		return nil
	}
	p.shares, err = shared.Shares(func(axis string) (int, error) {
		if n, ok := sizes[axis]; ok {
			return n, nil
		}
		return 0, fmt.Errorf("parallel: the model shares along the axis %q, and a layout has %q, %q and %q: use Layout.TensorGroup and SequenceGroup",
			axis, Ring, Ulysses, Tensor)
	})
	if err != nil {
		return err
	}
	for _, axis := range p.layout.axes()[1:] {
		if axis.Size > 1 && axis.Name != p.shares.Axis && !slices.Contains(p.shares.Tokens, axis.Name) {
			return fmt.Errorf("parallel: the layout has %s=%d, and the model shares nothing along it: use Layout.TensorGroup and SequenceGroup",
				axis.Name, axis.Size)
		}
	}
	for i, s := range model.Params() {
		if p.shares.Cuts != nil && p.shares.Cuts[i] != nil && p.layout.Tensor > 1 {
			p.cuts[s.Name] = p.shares.Cuts[i]
		}
	}
	return nil
}

// fits returns an error if the rule cannot work on what devices have.
func (p *Plan) fits() error {
	for _, s := range p.recipe.Model.Params() {
		cut := p.cuts[s.Name]
		if cut == nil {
			continue
		}
		if !optim.Joins(p.recipe.Rule, s, optim.CutOf(cut)) {
			return fmt.Errorf("parallel: the optimizer keeps numbers of blocks of %s, which is cut, and the blocks with it: choose another "+
				"optimizer, or tensor=1", s)
		}
		for _, state := range optim.States(p.recipe.Rule, params.Tree{s}) {
			if p.zero(1) && !slices.Equal(state.Shape.Dimensions, s.Shape.Dimensions) {
				return fmt.Errorf("parallel: the optimizer's %s is not of the shape of %s, of which tensor=%d and ZeRO %d leave no run: choose "+
					"one of the two, or an optimizer whose states are, such as adamw", state, s, p.layout.Tensor, p.layout.ZeRO)
			}
		}
		if p.zero(1) && p.policy.StochasticUpdate {
			return fmt.Errorf("parallel: stochastic rounding numbers the elements of %s, of which tensor=%d and ZeRO %d leave no run: "+
				"leave one of them out", s, p.layout.Tensor, p.layout.ZeRO)
		}
	}
	return nil
}

// zero says whether ZeRO shards what it does from a stage on: 1 for the optimizer's states, 2 for gradients, 3 for parameters.
func (p *Plan) zero(stage int) bool { return p.shards() > 1 && p.layout.ZeRO >= stage }

// shards is how many devices of a rank ZeRO shards over: all those that have the same parameters, and other rows or tokens.
func (p *Plan) shards() int { return p.layout.shards() }

// Layout is the plan's layout, with the numbers that were left at 0.
func (p *Plan) Layout() Layout { return p.layout }

// Schedule is that of one pipeline.
func (p *Plan) Schedule() schedule.Schedule { return p.player.Schedule }

// averaged are the mesh axes over which gradients are averaged.
func (p *Plan) averaged() []string { return append([]string{train.Axis}, p.shares.Tokens...) }
