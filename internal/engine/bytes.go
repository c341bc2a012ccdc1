package engine

import (
	"slices"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
)

// Bytes is what each device of a rank holds besides activations, by kind, in bytes: what lies there between steps, and
// memest.Gradients, from the first micro-batch to the update; also those of parameters that the loss does not depend
// on: which these are is known with the first batch. Older versions of weights, of schedules that do not flush, are
// parameters, too. What is in the host's memory has [OnHost] before its kind.
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
	if p := s.Plans[0]; p.Weights != step.Flush { // older versions of weights, for passes under way
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
	rows := o.shards
	if o.reducesEach() {
		rows = 1
	}
	for _, number := range o.order {
		kinds[memest.Gradients] += shapes.Make(o.policy.Reduce, rows, o.units[number].size).ByteSize()
	}
	return kinds, nil
}

// Sizes are those of the units of a spec's plans, padding included, as a device of the first rank has them that has a
// unit. States have the master copy of the parameters with them.
func Sizes(s Spec) (step.Sizes, error) {
	c, err := newCommon(s)
	if err != nil {
		return step.Sizes{}, err
	}
	n := len(s.Plans[0].Units)
	list := func() []int64 { return make([]int64, n) }
	sizes := step.Sizes{Whole: list(), Sum: list(), Reduced: list(), Resident: list(), States: list()}
	for rank := range s.Plans[0].Ranks {
		o := c.newOwn(rank)
		gathered := o.resident()
		for number, u := range o.units {
			if sizes.Whole[number] > 0 {
				continue
			}
			whole := int64(o.shards * u.size)
			sizes.Whole[number] = whole * int64(o.policy.Compute.Size())
			sizes.Sum[number] = whole * int64(o.policy.Reduce.Size())
			sizes.Reduced[number] = sizes.Sum[number] / int64(o.shards)
			for _, k := range o.statesOn(number) {
				sizes.States[number] += o.cells[k].shape.ByteSize()
			}
			if o.shards > 1 && gathered[number] {
				continue
			}
			for _, k := range o.cellsOf(u) {
				sizes.Resident[number] += o.cells[k].shape.ByteSize()
			}
		}
	}
	return sizes, nil
}

// reducesEach says whether gradients are reduced to shards as soon as there are some, so that no others are kept.
func (o *own) reducesEach() bool {
	return o.shards > 1 && slices.ContainsFunc(o.Plans[0].Ranks[o.rank], func(op step.Op) bool {
		return op.Kind == step.Wait && op.Of == step.Reduce
	})
}
