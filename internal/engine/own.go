package engine

import (
	"slices"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// own is a rank's part of the model and of the recipe's state. Parameters are numbered as in its own list.
type own struct {
	*common
	rank   int          // of the plan
	recipe train.Recipe // with a model of the rank's blocks
	full   params.Tree  // the parameters of this model
	// the same as a device has them, tensor-parallel but not sharded by ZeRO, in the type of the master weights
	tree        params.Tree
	places      []int         // their indices in the list of the full model
	cuts        []*params.Cut // between tensor-parallel devices
	counted     []bool        // whether this rank counts a parameter in sums over all ranks
	blockParams [][]int       // by block of the model
	passes      chain.Passes  // of the model as a device has it
	update      train.Recipe  // with a model whose parameters are as an update takes them
	units       map[int]*unit // by number in the plan
	order       []int         // their numbers, ascending
	all         []int         // the parameters' numbers
	unitOf      []*unit       // by parameter
	lengths     []int         // by parameter: columns of its unit's matrix
	offsets     []int         // the first of them
	idle        map[int]bool  // parameters that the loss does not depend on, once these are known

	entries  []entry
	statesOf [][]int // by parameter: the entries of its optimizer states
	cells    []cell
	weights  []int // by parameter: the cell that passes use, or that has the rank's shard
}

// unit is the layout of a unit's parameters: a matrix with a row for each shard, in which each parameter has columns.
type unit struct {
	step.Unit
	number  int
	members []int // its parameters
	idle    []int // parameters that the loss does not depend on, which have no gradients
	size    int   // columns
	cuts    int   // devices with different matrices, along the mesh axes in along
	along   []string
	shards
}

// newOwn returns a rank's part.
func (c *common) newOwn(rank int) *own {
	o := &own{common: c, rank: rank, recipe: c.Recipe, update: c.Recipe, idle: map[int]bool{}}
	on := c.Plans[0].On(rank)
	part := only(c.model, on)
	if c.Serve != nil {
		part.Buffers, o.recipe.Optimizer, o.update.Optimizer = nil, pulled{}, pulled{}
	}
	o.recipe.Model = part
	part = held(part, c.experts)
	o.update.Model, o.full = part, part.Params()
	o.tree = partsOf(o.full, c.cuts).As(c.policy.Params)
	all := c.model.Params()
	for i, s := range o.full {
		o.all = append(o.all, i)
		o.places, o.cuts = append(o.places, all.Index(s.Name)), append(o.cuts, c.cuts[s.Name])
	}
	local := held(held(c.model, c.experts), c.cuts)
	for _, b := range local.Blocks {
		var home []int
		for _, s := range b.Params {
			home = append(home, o.full.Index(s.Name))
		}
		o.blockParams = append(o.blockParams, home)
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

// only returns a model of some of the blocks.
func only(m chain.Model, blocks []int) chain.Model {
	all := m.Blocks
	m.Blocks = nil
	for _, b := range blocks {
		m.Blocks = append(m.Blocks, all[b])
	}
	return m
}

// held returns a model of whose parameters one part is there.
func held(m chain.Model, cuts map[string]*params.Cut) chain.Model {
	m.Blocks = slices.Clone(m.Blocks)
	for i, b := range m.Blocks {
		m.Blocks[i].Params = partsOf(b.Params, cuts)
	}
	return m
}

// partsOf returns the parts of parameters.
func partsOf(tree params.Tree, cuts map[string]*params.Cut) params.Tree {
	tree = slices.Clone(tree)
	for i, s := range tree {
		tree[i].Shape = cuts[s.Name].Part(s.Shape)
	}
	return tree
}

func (o *own) listUnits() {
	n := len(o.full)
	o.unitOf, o.lengths, o.offsets = make([]*unit, n), make([]int, n), make([]int, n)
	o.units, o.order = map[int]*unit{}, nil
	for number, members := range o.Members {
		u := &unit{Unit: o.Plans[0].Units[number], number: number, cuts: 1, shards: o.shards[number]}
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
				length = optim.FlatLength(o.Recipe.GroupedOptimizer(), o.tree[at], u.n)
			}
			u.members, o.lengths[at], o.offsets[at] = append(u.members, at), length, u.size
			u.size += length
			if cut := o.cuts[at]; cut != nil {
				u.cuts, u.along = cut.Ranks(), cut.Along
			}
		}
		if len(u.members)+len(u.idle) > 0 {
			o.units[number] = u
			o.order = append(o.order, number)
		}
	}
}

// ranks returns the number of devices with different parts of an array.
func ranks(cut *params.Cut) int {
	if cut == nil {
		return 1
	}
	return cut.Ranks()
}

// without returns the rank's part if the loss does not depend on some parameters, by name: their gradients are zeros,
// which are neither stored nor sent. (PyTorch has to look for such parameters in each step, find_unused_parameters, or
// their buckets would never be reduced.) If units are matrices, or servers update, they are like others.
func (o *own) without(idle map[string]bool) *own {
	if len(idle) == 0 || o.flat || o.Serve != nil {
		return o
	}
	less := *o
	less.idle = map[int]bool{}
	for i, s := range o.full {
		less.idle[i] = idle[s.Name]
	}
	less.listUnits()
	return &less
}

// updated returns the parameters of a unit, or of all units if that is -1.
func (o *own) updated(unit int) []int {
	if unit >= 0 {
		return slices.Concat(o.units[unit].members, o.units[unit].idle)
	}
	return o.all
}

// listCounted sets which parameters this rank counts: those that no earlier rank has; shards count on all ranks of the
// first one's group. Buffers count nowhere. In local SGD each rank counts its own.
func (o *own) listCounted() {
	buffers := train.Buffers(o.model)
	local := o.local()
	for i, s := range o.full {
		counts := local || slices.Contains(o.sharers(i), o.rank)
		o.counted = append(o.counted, counts && !buffers[s.Name])
	}
}

// sharers returns the ranks with the shards of a parameter's first copy, or of the first with this rank's experts: one
// rank if its own devices have them all.
func (o *own) sharers(at int) []int {
	first := o.firsts[o.full[at].Name]
	if cut := o.experts[o.full[at].Name]; cut != nil {
		experts, _ := o.Plans[0].Axis(cut.Along[0])
		first = experts.Group(first)[slices.Index(experts.Group(o.rank), o.rank)]
	}
	a, _ := o.Plans[0].Axis(o.unitOf[at].axis)
	return a.Group(first)
}
