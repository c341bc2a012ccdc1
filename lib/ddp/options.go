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

// Sync is when ranks share their gradients, and in which pieces.
type Sync string

const (
	// Naive all-reduces each gradient by itself, after the backward pass.
	Naive Sync = "naive"
	// Overlap all-reduces each gradient as soon as it is there, while the backward pass of earlier blocks goes on.
	Overlap Sync = "overlap"
	// Bucketed is Overlap with gradients in buckets: fewer and larger messages.
	Bucketed Sync = "bucket"
)

// Syncs are all of them.
func Syncs() []Sync { return []Sync{Naive, Overlap, Bucketed} }

// Options say how ranks train together. The zero value is [Bucketed], with all gradients averaged at each step.
type Options struct {
	Sync Sync // "" is Bucketed

	// BucketBytes is the largest size of a bucket; 0 is DefaultBucketBytes. Naive and Overlap have a bucket for each
	// parameter.
	BucketBytes int64

	// Accumulate is into how many micro-batches, one after another, a rank's rows of a batch are divided; 0 is 1.
	// Their gradients are added up.
	Accumulate int
	// EachMicroBatch reduces gradients after each micro-batch, not after the last alone: for Accumulate times the
	// traffic the same result, but for rounding. It shows what PyTorch's no_sync is for.
	EachMicroBatch bool

	// SumLoss says that the model's loss is a sum over the rows of the batch, not a mean: losses and gradients are then
	// added up over micro-batches and ranks, not averaged.
	SumLoss bool

	// Hook makes what replaces the all-reduce of a bucket: see [Hook].
	Hook func() Hook

	// Every, where it is more than 1, is local SGD (Stich 2019, "Local SGD Converges Fast and Communicates Little"): a
	// rank updates with its own gradients, and at each Every-th step the ranks' states, parameters and optimizer's
	// alike, are averaged. Sync then says nothing.
	Every int

	// Recompute keeps of a micro-batch only the input of each block, and computes the block again before its backward
	// pass. Otherwise what is costly to compute again is kept.
	Recompute bool

	// Timeout is how long one pass of a block may take, and an update twice as long; 0 is group.DefaultTimeout, or in
	// one process an hour. A rank that takes longer fails the group, and the others learn by which operation.
	Timeout time.Duration

	// Trace, where it is not nil, gets a span for each operation, on the streams of package trace: Compute (passes and
	// updates), Reduce (what ranks do together) and Wait (for that); and counters of the bytes held of each kind, and
	// after each step of the "bytes communicated" so far.
	Trace *trace.Recorder
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (o Options) Validate() error {
	if o.Sync != "" && !slices.Contains(Syncs(), o.Sync) {
		return fmt.Errorf("ddp: no way to synchronise is called %q: choose one of %q", o.Sync, Syncs())
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
		return errors.New("ddp: Options.EachMicroBatch and Options.Hook: " +
			"leave one out, since gradients that were reduced once would be compressed again")
	case o.Every > 1 && (o.EachMicroBatch || o.Hook != nil):
		return fmt.Errorf("ddp: Options.Every is %d, so that no gradients are reduced: "+
			"leave out EachMicroBatch and Hook", o.Every)
	}
	return nil
}

// Write writes the options into the plan of ranks that have the same along an axis, as [step.Plan.Replicate] makes it: who
// reduces which gradients when, in buckets, or as the units are where Sync is "". Members are the parameters of each
// unit, by their places in a list of them in the type that gradients are summed in. It returns the plans of the steps,
// in turn, and the parameters of their units.
func (o Options) Write(p *step.Plan, members [][]int, tree params.Tree, axis string) ([]*step.Plan, [][]int) {
	if _, several := p.Axis(axis); o.Every > 1 && several {
		plans := Local(p, o.Every, axis)
		for i := range plans { // along the other axes
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
