package engine

import (
	"slices"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
)

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
	rows := o.shards
	if o.reducesEach() {
		rows = 1
	}
	for _, number := range o.order {
		kinds[memest.Gradients] += shapes.Make(o.policy.Reduce, rows, o.units[number].size).ByteSize()
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
			full := int64(o.shards * u.size)
			sizes.Full[number] = full * int64(o.policy.Compute.Size())
			sizes.Sum[number] = full * int64(o.policy.Reduce.Size())
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

// reducesEach reports whether the gradients of each micro-batch are reduced to shards, so that full gradients are not
// accumulated.
func (o *own) reducesEach() bool {
	return o.shards > 1 && slices.ContainsFunc(o.Plans[0].Ranks[o.rank], func(op step.Op) bool {
		return op.Kind == step.Wait && op.Of == step.Reduce
	})
}
