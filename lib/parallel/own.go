package parallel

import (
	"slices"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// own is what a rank's devices have of the model and of the recipe's state.
type own struct {
	*Plan
	pipeline.Share
	cuts    []*params.Cut // of the rank's parameters
	tree    params.Tree   // they as a device has them before ZeRO shards them, in the type that they are kept in
	lengths []int         // of their shards
	// update is the recipe of the update: its model has the whole parameters where devices have cuts of them, and what a device has
	// where they have shards.
	update  train.Recipe
	entries []entry // of the state, the parameters first
	passes  chain.Passes
	homes   [][]int // by block of the model: its parameters, as places in tree
	units   [][]int // the parameters of each of the rank's blocks, each once: what is gathered or scattered together
}

// entry is one of the arrays of a rank's state, and what devices have of it.
type entry struct {
	whole params.Spec
	cut   *params.Cut  // between the devices that share layers; nil is none
	local shapes.Shape // what a device has, and
	flat  int          // if it is sharded besides, the elements of a shard; else 0
}

// own lists what the rank at a place of a pipeline has.
func (p *Plan) own(at int) *own {
	o := &own{Plan: p, Share: p.Shares[at]}
	local := chain.Model{Criterion: p.model.Criterion, Initial: p.model.Initial, Matmul: p.model.Matmul, Noisy: p.model.Noisy}
	for _, b := range p.model.Blocks {
		b.Params = p.local(b.Params)
		local.Blocks = append(local.Blocks, b)
	}
	o.passes = chain.Passes{Model: local, Precision: p.policy, Keep: true}
	o.tree = p.local(o.Tree).As(p.policy.Params)
	for _, b := range p.model.Blocks {
		var places []int
		for _, s := range b.Params {
			places = append(places, o.tree.Index(s.Name))
		}
		o.homes = append(o.homes, places)
	}
	seen := map[int]bool{}
	for _, b := range o.Blocks {
		var unit []int
		for _, at := range o.homes[b] {
			if !seen[at] {
				seen[at], unit = true, append(unit, at)
			}
		}
		if len(unit) > 0 {
			o.units = append(o.units, unit)
		}
	}
	for i, s := range o.Tree {
		o.cuts = append(o.cuts, p.cuts[s.Name])
		o.lengths = append(o.lengths, optim.FlatLength(p.recipe.Rule, o.tree[i], p.shards()))
	}
	o.update = o.Recipe
	if p.zero(1) {
		part := local
		part.Blocks = nil
		for _, b := range o.Blocks {
			part.Blocks = append(part.Blocks, local.Blocks[b])
		}
		o.update.Model = part
	}
	o.list()
	return o
}

// local is the parameters of a tree as devices have them that share layers.
func (p *Plan) local(tree params.Tree) params.Tree {
	tree = slices.Clone(tree)
	for i, s := range tree {
		tree[i].Shape = p.cuts[s.Name].Part(s.Shape)
	}
	return tree
}

// parts are the parts that a device has of the parameters, as the rule lists its states for them.
func (o *own) parts() (parts []optim.Part) {
	for i, cut := range o.cuts {
		if o.zero(1) {
			parts = append(parts, optim.Flat{Length: o.lengths[i]})
		} else {
			parts = append(parts, optim.CutOf(cut))
		}
	}
	return parts
}

// list makes the entries.
func (o *own) list() {
	tree := o.tree
	if !o.zero(1) {
		tree = o.Tree.As(o.policy.Params)
	}
	var states []optim.State
	var of []int // their parameters
	for i, part := range o.parts() {
		for _, s := range o.recipe.Rule.States(tree[i], part) {
			states, of = append(states, s), append(of, i)
		}
	}
	n := len(o.Tree)
	for i, whole := range o.Recipe.State() {
		e := entry{whole: whole, local: whole.Shape}
		switch {
		case i < n:
			if e.cut, e.local = o.cuts[i], o.tree[i].Shape; o.keepsShards() {
				e.flat = o.lengths[i]
			}
		case i < n+len(states):
			s, at := states[i-n], of[i-n]
			if cut := o.cuts[at]; cut != nil && s.Axis >= 0 {
				e.cut = cut
				if !o.zero(1) {
					e.cut = &params.Cut{Axis: s.Axis, Index: cut.Index}
				}
				e.local = e.cut.Part(whole.Shape)
			}
			if o.zero(1) && s.Axis >= 0 {
				e.flat = s.Spec.Size()
			}
		}
		o.entries = append(o.entries, e)
	}
}

// keepsShards says whether the state has shards of the parameters. In stages 1 and 2 it has them whole, but in mixed precision,
// where they are kept besides those that the passes use.
func (o *own) keepsShards() bool {
	return o.zero(3) || o.zero(1) && o.policy.Mixed()
}

// besides says whether the devices have whole parameters that are not in the state, in the type of the passes.
func (o *own) besides() bool { return o.keepsShards() && !o.zero(3) }

// placement says how an entry lies on a rank's mesh.
func (o *own) placement(e entry) xla.Placement {
	switch {
	case e.flat > 0 && e.cut != nil:
		return xla.Shard(0, append([]string{o.shares.Axis}, o.averaged()...)...)
	case e.flat > 0:
		return xla.Shard(0, o.averaged()...)
	case e.cut != nil:
		return xla.Shard(e.cut.Axis, o.shares.Axis)
	}
	return xla.Replicated()
}

// entryPlacements are those of the whole state.
func (o *own) entryPlacements() (all []xla.Placement) {
	for _, e := range o.entries {
		all = append(all, o.placement(e))
	}
	return all
}

// weights are the placements of what the passes use.
func (o *own) weights() (all []xla.Placement) {
	for i, e := range o.entries[:len(o.tree)] {
		if o.besides() {
			e = entry{cut: o.cuts[i]}
		}
		all = append(all, o.placement(e))
	}
	return all
}

// activations is the placement of what stages give each other.
func (o *own) activations() xla.Placement {
	on := xla.Shard(0, train.Axis)
	if len(o.shares.Between) > 0 {
		on = on.And(1, o.shares.Between...)
	}
	return on
}

// apart is the placement of values of which every device has its own. Scalars have to be vectors for it.
func (o *own) apart() xla.Placement {
	var names []string
	for _, axis := range o.layout.axes() {
		names = append(names, axis.Name)
	}
	return xla.Shard(0, names...)
}
