package zero

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/train"
)

// Plan is what a rank will hold and send, known before any device is touched. Both are exact.
type Plan struct {
	// Bytes is the memory of a rank's states by kind, padding included, as [Rank] has it: gradients too, which [Run] has
	// within its program.
	Bytes Bytes
	// Padding is how many elements of the ranks' shards of the parameters, of one copy of the state, are padding.
	Padding int
	Traffic Traffic
}

// Traffic is the bytes that a rank sends in a step where each message is sent as a ring's algorithm sends it: (N−1)/N of what is gathered or
// scattered, for N ranks, and twice that of what is all-reduced. Sums within an update, of the clipping's norm and of
// Adafactor's rows and columns, are not counted.
type Traffic struct {
	Gather  int64 // parameters
	Scatter int64 // gradients, to shards
	Average int64 // shards of gradients, between the copies of the state of hybrid sharding
}

// Total is the sum.
func (t Traffic) Total() int64 { return t.Gather + t.Scatter + t.Average }

// NewPlan returns the plan for so many ranks. What NewEngine or Join refuse is an error here, too.
//
// With Ψ for the bytes of all parameters, padded, and one micro-batch, stages 1 and 2 gather Ψ and scatter Ψ (less 1/N of
// each): what an all-reduce of the gradients sends. Stage 3 gathers twice, for the forward and for the backward pass (Rajbhandari et al. 2020,
// §7); but the last block only once, since its passes follow each other, and what several blocks have in common for each
// of their passes. With k micro-batches stage 1 sends no more, stage 2 scatters k times, and stage 3 does everything k times.
func NewPlan(recipe train.Recipe, o Options, ranks int) (Plan, error) {
	model, recipe, err := chainOf(recipe, o)
	if err != nil {
		return Plan{}, err
	}
	if ranks < 1 {
		return Plan{}, fmt.Errorf("zero: a plan for %d ranks: give at least 1", ranks)
	}
	o = o.withDefaults()
	shards, err := o.shardsOf(ranks)
	if err != nil {
		return Plan{}, err
	}
	policy := recipe.Policy()
	l := newLayout(model, recipe.Optimizer(), model.Params().As(policy.Params), shards)
	all, err := entries(recipe, l)
	if err != nil {
		return Plan{}, err
	}
	shard := int64(l.shard())
	compute, reduce := int64(policy.Compute.Size()), int64(policy.Reduce.Size())
	p := Plan{Padding: l.shard()*shards - l.tree.Size()}
	p.Bytes = Bytes{memest.Parameters: shard * compute, memest.Gradients: shard * reduce}
	if o.Stage < 3 {
		p.Bytes[memest.Parameters] *= int64(shards)
	}
	if o.Stage < 2 {
		p.Bytes[memest.Gradients] *= int64(shards)
	}
	if policy.Mixed() && !o.Offload {
		p.Bytes[memest.Master] = shard * int64(policy.Params.Size())
	}
	if !o.Offload {
		optimizer, _, _ := train.Tail(recipe, all[len(l.tree):])
		for _, e := range optimizer {
			p.Bytes[memest.Optimizer] += e.part.Bytes()
		}
	}
	others, copies, micro := int64(shards-1), int64(ranks/shards), int64(o.Accumulate)
	p.Traffic = Traffic{Gather: others * shard * compute, Scatter: others * shard * reduce, Average: 2 * (copies - 1) * shard * reduce / copies}
	if o.Stage > 1 {
		p.Traffic.Scatter *= micro
	}
	if o.Stage == 3 {
		p.Traffic.Gather = 0
		for _, s := range l.stays() {
			p.Traffic.Gather += micro * others * int64(l.units[s.unit].size) * compute
		}
	}
	return p, nil
}

// shardsOf is how many of so many ranks share one copy of the state.
func (o Options) shardsOf(ranks int) (int, error) {
	switch n := o.Shards; {
	case n > ranks:
		return 0, fmt.Errorf("zero: Options.Shards is %d in a group of %d ranks: set it to at most that, or to 0 for all", n, ranks)
	case n > 0 && ranks%n != 0:
		return 0, fmt.Errorf("zero: Options.Shards is %d, which does not divide the group's %d ranks: choose a divisor, or 0 for all", n, ranks)
	case n > 0:
		return n, nil
	}
	return ranks, nil
}
