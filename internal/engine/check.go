package engine

import (
	"slices"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
)

// Check returns an error if a spec cannot be carried out, before any device is touched.
func Check(s Spec) error {
	_, err := newCommon(s)
	return err
}

// Bytes is what each device of a rank holds besides activations, by kind, in bytes: what lies there between steps, and
// memest.Gradients, from the first micro-batch to the update. Gradients of parameters that the loss does not depend on are counted,
// too: which these are is known with the first batch.
func Bytes(s Spec, rank int) (map[memest.Kind]int64, error) {
	c, err := newCommon(s)
	if err != nil {
		return nil, err
	}
	o := c.newOwn(rank)
	kinds := map[memest.Kind]int64{}
	for i, cell := range o.cells {
		if kind := o.kindOf(i); kind != batchKind {
			kinds[kind] += cell.shape.ByteSize()
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

// reducesEach says whether gradients are reduced to shards as soon as there are some, so that no others are kept.
func (o *own) reducesEach() bool {
	return o.shards > 1 && slices.ContainsFunc(o.Plans[0].Ranks[o.rank], func(op step.Op) bool {
		return op.Kind == step.Wait && op.Of == step.Reduce
	})
}
