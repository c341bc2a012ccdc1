package engine

import (
	"slices"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// own is what a rank has of the model and of the recipe's state. Parameters are numbered as in its own list.
type own struct {
	*common
	rank    int           // of the plan
	recipe  train.Recipe  // of a model of the rank's blocks alone
	whole   params.Tree   // its parameters
	tree    params.Tree   // they as a device has them before they are sharded, in the type that they are kept in
	places  []int         // theirs in the model's list
	cuts    []*params.Cut // how devices share them
	counted []bool        // whether, of all ranks that have a parameter, this one counts it in sums over all
	homes   [][]int       // by block of the model: its parameters
	passes  chain.Passes  // of the model as a device has it
	update  train.Recipe  // whose model has the parameters as an update takes them
	units   map[int]*unit // by number in the plan
	order   []int         // theirs, ascending
	unitOf  []*unit       // by parameter
	idle    map[int]bool  // parameters on which the loss does not depend, once that is known

	entries  []entry
	statesOf [][]int // by parameter: the entries of its states
	cells    []cell
	weights  []int // by parameter: the cell of what passes use, or of the rank's shard of it
}

// unit is how the parameters of a unit lie: in a matrix with a row for each shard, in which each has some columns.
type unit struct {
	step.Unit
	number  int
	members []int // parameters
	idle    []int // those on which the loss does not depend, and of which there are no gradients
	lengths []int // columns of each member
	offsets []int // the first of them
	size    int   // columns
	cuts    int   // how many of a rank's devices have other matrices, because they share layers
}

// newOwn lists what a rank of the plans has.
func (c *common) newOwn(rank int) *own {
	o := &own{common: c, rank: rank, recipe: c.Recipe, update: c.Recipe, idle: map[int]bool{}}
	on := c.Plans[0].On(rank)
	part := only(c.model, on)
	if c.Serve != nil {
		part.Buffers, o.recipe.Optimizer, o.update.Optimizer = nil, given{}, given{}
	}
	o.recipe.Model, o.update.Model, o.whole = part, part, part.Params()
	o.tree = c.partsOf(o.whole).As(c.policy.Params)
	all := c.model.Params()
	for _, s := range o.whole {
		o.places, o.cuts = append(o.places, all.Index(s.Name)), append(o.cuts, c.cuts[s.Name])
	}
	local := c.model
	local.Blocks = nil
	for _, b := range c.model.Blocks {
		b.Params = c.partsOf(b.Params)
		local.Blocks = append(local.Blocks, b)
		var home []int
		for _, s := range b.Params {
			home = append(home, o.whole.Index(s.Name))
		}
		o.homes = append(o.homes, home)
	}
	o.passes = chain.Passes{Model: local, Precision: c.policy, Keep: true}
	if c.flat {
		part.Blocks = only(local, on).Blocks
		o.update.Model = part
	}
	o.listUnits()
	o.listCounted()
	o.listEntries()
	o.listCells()
	return o
}

// only is a model of some of the blocks.
func only(m chain.Model, blocks []int) chain.Model {
	all := m.Blocks
	m.Blocks = nil
	for _, b := range blocks {
		m.Blocks = append(m.Blocks, all[b])
	}
	return m
}

// partsOf is the parameters of a tree as devices have them that share layers.
func (c *common) partsOf(tree params.Tree) params.Tree {
	tree = slices.Clone(tree)
	for i, s := range tree {
		tree[i].Shape = c.cuts[s.Name].Part(s.Shape)
	}
	return tree
}

func (o *own) listUnits() {
	o.unitOf, o.units, o.order = make([]*unit, len(o.whole)), map[int]*unit{}, nil
	for number, members := range o.Members {
		u := &unit{Unit: o.Plans[0].Units[number], number: number, cuts: 1}
		for _, place := range members {
			at := slices.Index(o.places, place)
			if at < 0 {
				continue
			}
			if o.unitOf[at] = u; o.idle[at] {
				u.idle = append(u.idle, at)
				continue
			}
			length := o.tree[at].Size()
			if o.flat {
				length = optim.FlatLength(o.Recipe.GroupedOptimizer(), o.tree[at], o.shards)
			}
			u.members = append(u.members, at)
			u.lengths, u.offsets = append(u.lengths, length), append(u.offsets, u.size)
			u.size += length
			u.cuts = max(u.cuts, ranks(o.cuts[at]))
		}
		if len(u.members)+len(u.idle) > 0 {
			o.units[number] = u
			o.order = append(o.order, number)
		}
	}
}

// ranks is how many devices have other parts of an array.
func ranks(cut *params.Cut) int {
	if cut == nil {
		return 1
	}
	return cut.Ranks()
}

// without is what a rank has where the loss does not depend on some parameters of the model, by their names: their
// gradients are zeros, which are not kept nor sent. (In PyTorch they would have to be looked for at each step,
// find_unused_parameters, or a bucket would wait for them for ever.) Where units lie as matrices, or servers update,
// they have a place like all others.
func (o *own) without(idle map[string]bool) *own {
	if len(idle) == 0 || o.flat || o.Serve != nil {
		return o
	}
	less := *o
	less.idle = map[int]bool{}
	for i, s := range o.whole {
		less.idle[i] = idle[s.Name]
	}
	less.listUnits()
	return &less
}

// length is the elements of a parameter's shard, and offset where it begins in its unit's.
func (o *own) length(at int) int {
	u := o.unitOf[at]
	return u.lengths[slices.Index(u.members, at)]
}

func (o *own) offset(at int) int {
	u := o.unitOf[at]
	return u.offsets[slices.Index(u.members, at)]
}

// updated are the parameters that an update of a unit, or of all units, makes anew.
func (o *own) updated(unit int) []int {
	if unit >= 0 {
		return slices.Concat(o.units[unit].members, o.units[unit].idle)
	}
	all := make([]int, len(o.whole))
	for i := range all {
		all[i] = i
	}
	return all
}

// listCounted says which parameters count here: the first rank that has one counts it, and where shards of it lie with
// several ranks those of the first one's group. Buffers count nowhere. In local SGD each rank counts its own.
func (o *own) listCounted() {
	buffers := train.Buffers(o.model)
	local := o.local()
	for _, s := range o.whole {
		counts := local || slices.Contains(o.sharers(o.firsts[s.Name]), o.rank)
		o.counted = append(o.counted, counts && !buffers[s.Name])
	}
}

// sharers are the ranks that have the shards of what a rank has: itself alone, where its own devices have them all.
func (c *common) sharers(rank int) []int {
	a, _ := c.Plans[0].Axis(c.axis)
	return a.Group(rank)
}
