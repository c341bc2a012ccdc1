package engine

import (
	"slices"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// own is what a rank has of the model and of the recipe's state. Parameters are numbered as in its own list.
type own struct {
	*common
	rank    int // of the plan
	blocks  []int
	recipe  train.Recipe  // of a model of the rank's blocks alone
	whole   params.Tree   // its parameters
	tree    params.Tree   // they as a device has them before they are sharded, in the type that they are kept in
	places  []int         // theirs in the model's list
	counted []bool        // whether, of all ranks that have a parameter, this one counts it in sums over all
	cuts    []*params.Cut // how devices share them
	homes   [][]int       // by block of the model: its parameters
	units   map[int]*unit // by number in the plan
	order   []int         // theirs, ascending
	idle    map[int]bool  // parameters on which the loss does not depend, once that is known
	unitOf  []*unit       // by parameter
	passes  chain.Passes  // of the model as a device has it
	update  train.Recipe  // whose model has the parameters as an update takes them
	entries []entry
	cells   []cell
	// cellOf are the cells of parameters (by parameter, or by unit where they are sharded) and masters (by unit).
	weights, masters map[int]int
	rest             int     // the first cell behind them
	statesOf         [][]int // by parameter: the entries of its states
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
}

// entry is one of the arrays that train.Recipe.State lists, and what a device has of it.
type entry struct {
	spec  params.Spec  // of the whole
	cut   *params.Cut  // between the devices that share layers; nil is none
	local shapes.Shape // what a device has, and
	flat  int          // if it is sharded besides, the elements of a shard; else 0
}

// newOwn lists what a rank of the plans has.
func (c *common) newOwn(rank int) *own {
	p := c.Plans[0]
	o := &own{common: c, rank: rank, blocks: p.On(rank), idle: map[int]bool{}, weights: map[int]int{}, masters: map[int]int{}}
	part := c.model
	part.Blocks = nil
	for _, b := range o.blocks {
		part.Blocks = append(part.Blocks, c.model.Blocks[b])
	}
	o.recipe = c.Recipe
	o.recipe.Model = part
	if c.Serve != nil {
		part.Buffers = nil
		o.recipe.Model, o.recipe.Rule = part, given{}
	}
	o.whole = part.Params()
	o.tree = c.local(o.whole).As(c.policy.Params)
	whole := c.model.Params()
	for _, s := range o.whole {
		o.places, o.cuts = append(o.places, whole.Index(s.Name)), append(o.cuts, c.cuts[s.Name])
	}
	local := chain.Model{Criterion: c.model.Criterion, Initial: c.model.Initial, Matmul: c.model.Matmul, Noisy: c.model.Noisy}
	for _, b := range c.model.Blocks {
		b.Params = c.local(b.Params)
		local.Blocks = append(local.Blocks, b)
		var home []int
		for _, s := range b.Params {
			home = append(home, o.whole.Index(s.Name))
		}
		o.homes = append(o.homes, home)
	}
	o.passes = chain.Passes{Model: local, Precision: c.policy, Keep: true}
	o.listUnits(p)
	o.listCounted(p)
	o.update = o.recipe
	if c.flat {
		part.Blocks = nil
		for _, b := range o.blocks {
			part.Blocks = append(part.Blocks, local.Blocks[b])
		}
		o.update.Model = part
	}
	o.listEntries()
	o.listCells(p)
	return o
}

// local is the parameters of a tree as devices have them that share layers.
func (c *common) local(tree params.Tree) params.Tree {
	tree = slices.Clone(tree)
	for i, s := range tree {
		tree[i].Shape = c.cuts[s.Name].Part(s.Shape)
	}
	return tree
}

func (o *own) listUnits(p *step.Plan) {
	o.unitOf, o.units, o.order = make([]*unit, len(o.whole)), map[int]*unit{}, nil
	for number, members := range o.Members {
		u := &unit{Unit: p.Units[number], number: number}
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
				length = optim.FlatLength(o.Recipe.Optimizer(), o.tree[at], o.shards)
			}
			u.members, u.lengths, u.offsets = append(u.members, at), append(u.lengths, length), append(u.offsets, u.size)
			u.size += length
		}
		if len(u.members)+len(u.idle) > 0 {
			o.units[number] = u
			o.order = append(o.order, number)
		}
	}
}

// without is what a rank has where the loss does not depend on some parameters of the model, by their names: their gradients are
// zeros, which are not kept nor sent. (In PyTorch they would have to be looked for at each step, find_unused_parameters, or a bucket
// would wait for them for ever.) Where units lie as matrices, or servers update, they have a place like all others.
func (o *own) without(idle map[string]bool) *own {
	if len(idle) == 0 || o.flat || o.Serve != nil {
		return o
	}
	less := *o
	less.idle = map[int]bool{}
	for i, s := range o.whole {
		less.idle[i] = idle[s.Name]
	}
	less.listUnits(o.Plans[0])
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

// listCounted says which parameters count here: the first rank that has one counts it, and where shards of it lie with
// several ranks those of the first one's group. Buffers count nowhere. In local SGD each rank counts its own.
func (o *own) listCounted(p *step.Plan) {
	buffers := train.Buffers(o.model)
	local := o.local()
	for i, place := range o.places {
		first := 0
		for !o.has(p, first, place) {
			first++
		}
		counts := first == o.rank || local
		if o.shards > 1 && !o.inside {
			a, _ := p.Axis(o.axis)
			counts = slices.Contains(a.Group(first), o.rank)
		}
		o.counted = append(o.counted, counts && !buffers[o.whole[i].Name])
	}
}

// has says whether a rank has a parameter of the model.
func (o *own) has(p *step.Plan, rank, place int) bool {
	name := o.model.Params()[place].Name
	return slices.ContainsFunc(p.On(rank), func(b int) bool { return o.model.Blocks[b].Params.Index(name) >= 0 })
}

// parts are the parts that a device has of the parameters, as the rule lists its states for them.
func (o *own) parts() (parts []optim.Part) {
	for i, cut := range o.cuts {
		if o.flat {
			parts = append(parts, optim.Flat{Length: o.length(i)})
		} else {
			parts = append(parts, optim.CutOf(cut))
		}
	}
	return parts
}

func (o *own) listEntries() {
	tree := o.tree
	if !o.flat {
		tree = o.whole.As(o.policy.Params)
	}
	var states []optim.State
	var of []int // their parameters
	for i, part := range o.parts() {
		for _, s := range o.recipe.Optimizer().States(tree[i], part) {
			states, of = append(states, s), append(of, i)
		}
	}
	n := len(o.whole)
	o.statesOf = make([][]int, n)
	for i, at := range of {
		o.statesOf[at] = append(o.statesOf[at], n+i)
	}
	for i, whole := range o.recipe.State() {
		e := entry{spec: whole, local: whole.Shape}
		switch {
		case i < n:
			if e.cut, e.local = o.cuts[i], o.tree[i].Shape; o.flat {
				e.flat = o.length(i)
			}
		case i < n+len(states):
			s, at := states[i-n], of[i-n]
			if cut := o.cuts[at]; cut != nil && s.Axis >= 0 {
				if e.cut = cut; !o.flat {
					e.cut = &params.Cut{Axis: s.Axis, Index: cut.Index}
				}
				e.local = e.cut.Part(whole.Shape)
			}
			if o.flat && s.Axis >= 0 {
				e.flat = s.Spec.Size()
			}
		}
		o.entries = append(o.entries, e)
	}
}

// cell is one of the arrays that a rank's devices keep between steps.
type cell struct {
	shape shapes.Shape // what a device has
	on    xla.Placement
	unit  int // of cells that are of a unit; else −1
	entry int // of those that are an entry; else −1
	shard bool
}

// listCells lists the arrays: the parameters, or of units that are sharded the whole or a shard, in the type to compute in, and then
// shards in the type that they are kept in, where that is another; and the other entries.
func (o *own) listCells(p *step.Plan) {
	if !o.flat {
		for i, e := range o.entries {
			o.cells = append(o.cells, cell{shape: e.local, on: o.placement(e.cut, false), unit: -1, entry: i})
			if o.rest = len(o.whole); i < o.rest {
				o.weights[i] = i
			}
		}
		return
	}
	flow := o.resident(p)
	for _, number := range o.order {
		u := o.units[number]
		c := cell{shape: shapes.Make(o.policy.Compute, u.size), on: o.unitPlacement(u, true), unit: number, entry: -1, shard: true}
		if flow[number] || u.Shard == "" {
			c.shape, c.on, c.shard = shapes.Make(o.policy.Compute, o.shards, u.size), o.unitPlacement(u, false), false
		}
		o.weights[number] = len(o.cells)
		o.cells = append(o.cells, c)
	}
	if o.policy.Mixed() || o.hosts {
		for _, number := range o.order {
			u := o.units[number]
			o.masters[number] = len(o.cells)
			o.cells = append(o.cells, cell{shape: shapes.Make(o.policy.Params, u.size), on: o.unitPlacement(u, true), unit: number, entry: -1, shard: true})
		}
	}
	o.rest = len(o.cells)
	for i, e := range o.entries {
		if i < len(o.whole) {
			continue
		}
		c := cell{shape: e.local, on: o.placement(e.cut, false), unit: -1, entry: i}
		if e.flat > 0 {
			c.shape, c.on, c.shard = shapes.Make(e.spec.Shape.DType, e.flat), o.placement(e.cut, true), true
		}
		o.cells = append(o.cells, c)
	}
}

// resident are the units that are whole between steps.
func (o *own) resident(p *step.Plan) map[int]bool {
	f, err := p.Flow(o.rank)
	if err != nil { // which Check has told
		return nil
	}
	return f.Resident
}

// placement says how an array lies on a rank's devices that devices along the tensor axis have cuts of, and that is sharded, or not.
func (o *own) placement(cut *params.Cut, sharded bool) xla.Placement {
	var axes []string
	if sharded && o.inside {
		axes = axisNames(o.axis)
	}
	switch {
	case sharded && cut != nil:
		return xla.Shard(0, append([]string{o.Shares.Axis}, axes...)...)
	case sharded && len(axes) > 0:
		return xla.Shard(0, axes...)
	case !sharded && cut != nil:
		return xla.Shard(cut.Axis, o.Shares.Axis)
	}
	return xla.Replicated()
}

// unitPlacement is that of a unit's matrix, or of a shard of it.
func (o *own) unitPlacement(u *unit, sharded bool) xla.Placement {
	var axes []string
	for _, at := range u.members {
		if o.cuts[at] != nil {
			axes = []string{o.Shares.Axis}
		}
	}
	if sharded && o.inside {
		axes = append(axes, axisNames(o.axis)...)
	}
	if len(axes) == 0 {
		return xla.Replicated()
	}
	return xla.Shard(0, axes...)
}

// apart is the placement of values of which every device has its own. Scalars have to be vectors for it.
func (o *own) apart() xla.Placement {
	var names []string
	for _, axis := range o.Mesh {
		names = append(names, axis.Name)
	}
	return xla.Shard(0, names...)
}

// activations is the placement of what blocks give each other.
func (o *own) activations() xla.Placement {
	on := xla.Shard(0, train.Axis)
	if len(o.Shares.Between) > 0 {
		on = on.And(1, o.Shares.Between...)
	}
	return on
}

// copies is by how many ranks the rows of a batch are divided, and which of them this one is: all ranks that have the first block, and
// the other ranks of their pipelines with them.
func (o *own) copies() (n, at int) { return copiesOf(o.Plans[0], o.rank) }

func copiesOf(p *step.Plan, of int) (n, at int) {
	for rank, list := range p.Ranks {
		if !slices.ContainsFunc(list, func(op step.Op) bool { return op.Kind == step.Forward && op.Block == 0 && op.Micro == 0 }) {
			continue
		}
		if rank <= of {
			at = n
		}
		n++
	}
	return n, at
}

// summands is how many gradients are added up to the mean over a batch: of micro-batches, and of ranks and devices with other rows
// or tokens, where these are added up. Where losses are sums it is 1.
func (o *own) summands() int {
	if o.Sum {
		return 1
	}
	n := o.Plans[0].Every
	if o.reducesCopies() {
		copies, _ := o.copies()
		n *= copies
	}
	for _, name := range o.averaged() {
		for _, a := range o.Mesh {
			if a.Name == name {
				n *= a.Size
			}
		}
	}
	return n
}

// sumsDiffer says whether devices of a rank have other sums of gradients, of other rows or tokens.
func (o *own) sumsDiffer() bool {
	return slices.ContainsFunc(o.Mesh, func(a xla.MeshAxis) bool { return a.Size > 1 && slices.Contains(o.averaged(), a.Name) })
}

// reducesCopies says whether gradients are added up over ranks with other rows; in local SGD they are not.
func (o *own) reducesCopies() bool {
	p := o.Plans[0]
	_, at := o.copies()
	for _, u := range o.units {
		for _, name := range u.Reduce {
			a, _ := p.Axis(name)
			for _, other := range a.Group(o.rank) {
				if _, of := copiesOf(p, other); of != at {
					return true
				}
			}
		}
	}
	return false
}

// local says whether ranks with other rows update with gradients of their own: local SGD, between its averages.
func (o *own) local() bool {
	copies, _ := o.copies()
	return copies > 1 && !o.reducesCopies()
}

// early says whether gradients are divided by the summands before they are added up: sums of half types might overflow where
// their mean does not.
func (o *own) early() bool { return o.policy.Reduce.Size() < 4 }
