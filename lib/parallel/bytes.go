package parallel

import (
	"fmt"

	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/train"
)

// Bytes is what each device of a rank holds besides activations, by kind, in bytes: memest.Parameters, which the passes use;
// memest.Master where these are of another type than those that are kept; memest.Optimizer; and memest.Gradients, from the first
// micro-batch to the update. Loss scale and counters, a few bytes, are not counted. A rank that the layout does not have is an error.
func (p *Plan) Bytes(rank int) (map[memest.Kind]int64, error) {
	if rank < 0 || rank >= p.layout.Ranks() {
		return nil, fmt.Errorf("parallel: rank %d of %d: count from 0", rank, p.layout.Ranks())
	}
	o := p.own(rank % p.layout.Pipe)
	kinds := map[memest.Kind]int64{}
	n := len(o.tree)
	parameters := memest.Parameters
	if o.besides() {
		parameters = memest.Master
		kinds[memest.Parameters] = o.tree.As(o.policy.Compute).Bytes()
	}
	entries, _, _ := train.Tail(p.recipe, o.entries)
	for i, e := range entries {
		kind := memest.Optimizer
		if i < n {
			kind = parameters
		}
		kinds[kind] += e.bytes()
	}
	for i := range o.tree {
		kinds[memest.Gradients] += shapes.Make(p.policy.Reduce, o.sumDims(i)...).ByteSize()
	}
	return kinds, nil
}

// bytes is what a device has of an entry.
func (e entry) bytes() int64 {
	if e.flat > 0 {
		return shapes.Make(e.whole.Shape.DType, e.flat).ByteSize()
	}
	return e.local.ByteSize()
}
