package engine

import (
	"slices"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// entry is one of the arrays that train.Recipe.State lists, and which part of it a device has.
type entry struct {
	spec  params.Spec // of the array, or, with apart, of the rank's part of it
	first int         // the first rank that has it
	apart *params.Cut // between ranks; nil is none
	cut   *params.Cut // between the rank's devices; nil is none
	shards
	flat   int // elements of a ZeRO shard; 0 if it is not sharded
	cell   int // index of the cell that has it, in the type of the master weights
	offset int // its first column there, if it is sharded
}

// cell is an array that a rank's devices hold between steps: an entry, or the matrix of a unit of sharded entries, with
// a row for each shard. A rank has all rows, or those of its own shards.
type cell struct {
	kind  memest.Kind
	shape shapes.Shape // on each device
	on    xla.Placement
	of    []int // entries
	cuts  int   // devices with different parts
	full  bool  // all rows, on each device
	host  bool  // in host memory between steps
}

// batchKind is the memory of batches and counters.
const batchKind memest.Kind = "batch"

func (o *own) listEntries() {
	rule, n := o.recipe.GroupedOptimizer(), len(o.full)
	o.statesOf = make([][]int, n)
	all := o.recipe.State()
	for i := range o.full {
		name := all[i].Name
		e := entry{spec: all[i], first: o.firsts[name], apart: o.experts[name], cut: o.cuts[i],
			shards: o.unitOf[i].shards}
		if e.spec.Shape = e.apart.Part(e.spec.Shape); o.flat {
			e.flat = o.lengths[i]
		}
		o.entries = append(o.entries, e)
	}
	for i := range o.full {
		param, part := o.full.As(o.policy.Params)[i], optim.CutOf(o.cuts[i])
		if o.flat {
			param, part = o.tree[i], optim.Flat{Length: o.lengths[i]}
		}
		of := o.entries[i]
		whole := rule.States(all[i], optim.CutOf(of.apart))
		for j, s := range rule.States(param, part) {
			k := len(o.entries)
			e := entry{spec: all[k], first: of.first, shards: of.shards}
			if of.apart != nil && whole[j].Axis >= 0 {
				e.apart = of.apart.On(whole[j].Axis)
				e.spec.Shape = e.apart.Part(e.spec.Shape)
			}
			switch {
			case s.Axis >= 0 && o.flat:
				e.cut, e.flat = of.cut, s.Spec.Size()
			case s.Axis >= 0 && of.cut != nil:
				e.cut = of.cut.On(s.Axis)
			}
			o.entries, o.statesOf[i] = append(o.entries, e), append(o.statesOf[i], k)
		}
	}
	for _, s := range all[len(o.entries):] {
		o.entries = append(o.entries, entry{spec: s})
	}
}

// listCells lists the arrays: first the parameters in the compute type (of sharded units the full matrix or a shard);
// then shards of the master weights, if they have another type or are on the host; then the other entries.
func (o *own) listCells() {
	n := len(o.full)
	o.weights = make([]int, n)
	if o.flat {
		resident := o.resident()
		for _, number := range o.order {
			u := o.units[number]
			o.addUnit(u, memest.Parameters, resident[number] || u.Shard == "")
			for _, at := range u.members {
				o.weights[at] = o.entries[at].cell
			}
		}
		for _, number := range o.order {
			if o.policy.Mixed() || o.hosts {
				o.addUnit(o.units[number], memest.Master, false)
			}
		}
	}
	_, scaling, counters := train.Tail(o.recipe, o.entries)
	for i := range o.entries {
		e := &o.entries[i]
		if o.flat && i < n {
			continue
		}
		c := cell{kind: memest.Optimizer, of: []int{i}, shape: e.cut.Part(e.spec.Shape), cuts: ranks(e.cut),
			on: xla.Replicated()}
		switch {
		case e.flat > 0 && e.cut != nil:
			c.shape, c.on = shapes.Make(e.spec.Shape.DType, e.flat), rows(e.cut.Along, e.within)
		case e.flat > 0:
			c.shape, c.on = shapes.Make(e.spec.Shape.DType, e.flat), rows(e.within)
		case e.cut != nil:
			c.on = xla.Shard(e.cut.Axis, e.cut.Along...)
		}
		if e.cell = len(o.cells); i < n {
			c.kind, o.weights[i] = memest.Parameters, e.cell
		} else if i >= len(o.entries)-len(scaling)-len(counters) {
			c.kind = batchKind
		}
		o.cells = append(o.cells, c)
	}
	o.listHosted()
}

// addUnit adds the cell of a unit's parameters: all rows, or the rank's.
func (o *own) addUnit(u *unit, kind memest.Kind, full bool) {
	c := cell{kind: kind, of: u.members, cuts: u.cuts, on: o.unitPlacement(u, !full), full: full}
	if c.shape = shapes.Make(o.policy.Compute, u.size); kind == memest.Master {
		c.shape.DType = o.policy.Params
	} else if full {
		c.shape = shapes.Make(o.policy.Compute, u.n, u.size)
	}
	for _, at := range u.members {
		o.entries[at].cell, o.entries[at].offset = len(o.cells), o.offsets[at]
	}
	o.cells = append(o.cells, c)
}

// resident returns the units whose full parameters are there between steps.
func (o *own) resident() map[int]bool {
	f, err := o.Plans[0].Flow(o.rank)
	if err != nil { // Check has returned it
		return nil
	}
	return f.Resident
}

// statesOn returns the cells of a unit's optimizer states, and of its master weights if they are separate.
func (o *own) statesOn(unit int) (cells []int) {
	for i, c := range o.cells {
		if c.kind == memest.Master && o.unitOf[c.of[0]].number == unit {
			cells = append(cells, i)
		}
	}
	for _, at := range o.updated(unit) {
		for _, e := range o.statesOf[at] {
			cells = append(cells, o.entries[e].cell)
		}
	}
	return cells
}

// cellsOf returns the cells of a unit's parameters: one, that of cellOf, if they are in a matrix.
func (o *own) cellsOf(u *unit) (cells []int) {
	for _, at := range u.members {
		if k := o.weights[at]; !slices.Contains(cells, k) {
			cells = append(cells, k)
		}
	}
	return cells
}

func (o *own) cellOf(unit int) int { return o.cellsOf(o.units[unit])[0] }

// firstShared returns the first cell that belongs to no unit: the states of loss scaling, then counters.
func (o *own) firstShared() int {
	before, _, _ := train.Tail(o.recipe, o.cells)
	return len(before)
}

// scalingCells returns the cells of the states of loss scaling.
func (o *own) scalingCells() (cells []int) {
	for i := range o.policy.Scaling.States() {
		cells = append(cells, o.firstShared()+i)
	}
	return cells
}

// listHosted sets which cells are on the host between steps: all states, or those of units that a plan fetches first.
func (o *own) listHosted() {
	hosted := map[int]bool{} // by unit
	for _, u := range o.order {
		if o.hosts {
			hosted[u] = true
		}
	}
	for _, op := range o.Plans[0].Ranks[o.rank] {
		if _, seen := hosted[op.Unit]; !seen && op.What == step.State && (op.Kind == step.Fetch ||
			op.Kind == step.Store) {
			hosted[op.Unit] = op.Kind == step.Fetch
		}
	}
	for u, is := range hosted {
		for _, k := range o.statesOn(u) {
			o.cells[k].host = is
		}
	}
}

// unitPlacement returns the placement of a unit's matrix, or of a shard of it.
func (o *own) unitPlacement(u *unit, sharded bool) xla.Placement {
	if sharded {
		return rows(u.along, u.within)
	}
	return rows(u.along)
}

// rows returns the placement of a matrix whose rows are on different devices along mesh axes.
func rows(along ...[]string) xla.Placement {
	axes := slices.Concat(along...)
	if len(axes) == 0 {
		return xla.Replicated()
	}
	return xla.Shard(0, axes...)
}

// apart is the placement of values that differ on each device. Scalars must be vectors for it.
func (o *own) apart() xla.Placement {
	return xla.Shard(0, o.axes()...)
}

// activations is the placement of the activations between blocks.
func (o *own) activations() xla.Placement {
	on := xla.Shard(0, o.examples()...)
	if len(o.Shards.Between) > 0 {
		on = on.And(1, o.Shards.Between...)
	}
	return on
}

// Bytes returns the memory of each device of a rank without activations, by kind, in bytes: what is there between
// steps, and memest.Gradients, from the first micro-batch to the update. Gradients include those of parameters that the
// loss does not depend on, since these are known with the first batch only. Parameters include older versions of the
// weights in asynchronous schedules. Kinds in host memory begin with [OnHost].
func Bytes(s Spec, rank int) (map[memest.Kind]int64, error) {
	c, err := newCommon(s)
	if err != nil {
		return nil, err
	}
	o := c.newOwn(rank)
	kinds := map[memest.Kind]int64{}
	for _, c := range o.cells[:o.firstShared()] {
		kind := c.kind
		if o.hosts && kind != memest.Parameters {
			kind = OnHost + kind
		}
		kinds[kind] += c.shape.ByteSize()
	}
	if p := s.Plans[0]; p.Weights != step.Flush { // older versions of the weights
		kept, err := p.WeightVersions()
		if err != nil {
			return nil, err
		}
		for number, u := range o.units {
			for _, k := range o.cellsOf(u) {
				kinds[memest.Parameters] += int64(max(1, kept[rank][number])-1) * o.cells[k].shape.ByteSize()
			}
		}
	}
	each := o.reducesEach()
	for _, number := range o.order {
		u, rows := o.units[number], 1
		if !each {
			rows = u.n
		}
		kinds[memest.Gradients] += shapes.Make(o.policy.Reduce, rows, u.size).ByteSize()
	}
	return kinds, nil
}

// Sizes returns the sizes of the units of a spec's plans, padding included, on each device of the first rank that has
// the unit. States include the master weights.
func Sizes(s Spec) (step.Sizes, error) {
	c, err := newCommon(s)
	if err != nil {
		return step.Sizes{}, err
	}
	n := len(s.Plans[0].Units)
	list := func() []int64 { return make([]int64, n) }
	sizes := step.Sizes{Full: list(), Sum: list(), Reduced: list(), Resident: list(), States: list()}
	for rank := range s.Plans[0].Ranks {
		o := c.newOwn(rank)
		gathered := o.resident()
		for number, u := range o.units {
			if sizes.Full[number] > 0 {
				continue
			}
			full := int64(u.n * u.size)
			sizes.Full[number] = full * int64(o.policy.Compute.Size())
			sizes.Sum[number] = full * int64(o.policy.Reduce.Size())
			sizes.Reduced[number] = sizes.Sum[number] / int64(u.n)
			for _, k := range o.statesOn(number) {
				sizes.States[number] += o.cells[k].shape.ByteSize()
			}
			if u.n > 1 && gathered[number] {
				continue
			}
			for _, k := range o.cellsOf(u) {
				sizes.Resident[number] += o.cells[k].shape.ByteSize()
			}
		}
	}
	return sizes, nil
}

// reducesEach reports whether the gradients of each micro-batch are reduced to shards, not accumulated in full.
func (o *own) reducesEach() bool {
	return o.sharded && slices.ContainsFunc(o.Plans[0].Ranks[o.rank], func(op step.Op) bool {
		return op.Kind == step.Wait && op.Of == step.Reduce
	})
}
