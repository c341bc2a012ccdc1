package ddp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
)

// Sync says when gradients are all-reduced, and in which pieces.
type Sync string

const (
	// Naive all-reduces each parameter's gradient by itself, after the backward pass.
	Naive Sync = "naive"
	// Overlap all-reduces each gradient as soon as it is computed, while the backward pass of earlier blocks runs.
	Overlap Sync = "overlap"
	// Bucketed is Overlap with gradients in buckets: fewer and larger messages.
	Bucketed Sync = "bucket"
)

// Syncs returns all of them.
func Syncs() []Sync { return []Sync{Naive, Overlap, Bucketed} }

// Options configure data parallelism. The zero value is [Bucketed] and averages the gradients of each step.
type Options struct {
	Sync Sync // "" means Bucketed

	// BucketBytes is the maximal size of a bucket; 0 means DefaultBucketBytes. Naive and Overlap have a bucket per
	// parameter.
	BucketBytes int64

	// Accumulate is the number of micro-batches per step whose gradients are accumulated; 0 means 1.
	Accumulate int
	// EachMicroBatch reduces gradients after each micro-batch, not only after the last one: the same result up to
	// rounding, with Accumulate times the traffic. It shows what PyTorch's no_sync is for.
	EachMicroBatch bool

	// SumLoss says that the model's loss is a sum over the examples of the batch, not a mean: losses and gradients are
	// then summed over micro-batches and ranks, not averaged.
	SumLoss bool

	// Hook creates each rank's replacement for the all-reduce of buckets: see [Hook].
	Hook func() Hook

	// Every, if more than 1, is local SGD (Stich 2019, "Local SGD Converges Fast and Communicates Little"): a rank
	// updates with its own gradients, and in each Every-th step the ranks' parameters and optimizer states are
	// averaged. Sync has no effect then.
	Every int

	// Recompute saves only the input of each block and recomputes the block before its backward pass. Otherwise all
	// activations that are costly to recompute are saved.
	Recompute bool

	// Timeout is the maximal time of a block's pass; an update may take twice as long. 0 means group.DefaultTimeout, or
	// an hour if all ranks are in one process. If a rank takes longer, training fails on all ranks with an error that
	// names the operation.
	Timeout time.Duration

	// Trace, if not nil, records a span for each operation, on the streams Compute (passes and updates), Reduce
	// (communication) and Wait of package trace; counters of memory by kind; and after each step the total of "bytes
	// communicated".
	Trace *trace.Recorder
}

// Validate returns an error that names the invalid option, its value and what to do.
func (o Options) Validate() error {
	if o.Sync != "" && !slices.Contains(Syncs(), o.Sync) {
		return fmt.Errorf("ddp: Options.Sync is %q: choose one of %q", o.Sync, Syncs())
	}
	for _, n := range []struct {
		name  string
		value int64
	}{{"BucketBytes", o.BucketBytes}, {"Accumulate", int64(o.Accumulate)}, {"Every", int64(o.Every)}} {
		if n.value < 0 {
			return fmt.Errorf("ddp: Options.%s is %d: set it to at least 1, or to 0 for the default", n.name, n.value)
		}
	}
	switch {
	case o.EachMicroBatch && o.Hook != nil:
		return errors.New("ddp: Options.EachMicroBatch and Options.Hook are set: " +
			"leave one out, or reduced gradients would be compressed again")
	case o.Every > 1 && (o.EachMicroBatch || o.Hook != nil):
		return fmt.Errorf("ddp: Options.Every is %d, so that no gradients are reduced: "+
			"leave out EachMicroBatch and Hook", o.Every)
	}
	return nil
}

// Write rewrites the plan of replicas along an axis, as [step.Plan.Replicate] makes it, for these options. Members are
// the indices of each unit's parameters in tree, whose type is that in which gradients are summed. If Sync is "", units
// are not changed to buckets. It returns the plans of the steps, in turn, and the members of their units.
func (o Options) Write(p *step.Plan, members [][]int, tree params.Tree, axis string) ([]*step.Plan, [][]int) {
	if _, several := p.Axis(axis); o.Every > 1 && several {
		plans := Local(p, o.Every, axis)
		for i := range plans { // gradients are still reduced along the other axes
			plans[i] = Average(plans[i], true, o.EachMicroBatch)
		}
		return plans, members
	}
	switch o.Sync {
	case Bucketed:
		p, members = IntoBuckets(p, members, sizes(tree), cmp.Or(o.BucketBytes, DefaultBucketBytes))
	case Naive, Overlap:
		p, members = IntoBuckets(p, members, sizes(tree), 0)
	}
	return []*step.Plan{Average(p, o.Sync != Naive, o.EachMicroBatch)}, members
}
