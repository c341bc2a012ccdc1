package paramserver

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// Options configure training with parameter servers. The zero value has a server on each rank, which waits in each step
// for the gradients of all ranks.
type Options struct {
	// Async applies a rank's gradients as soon as they arrive, to parameters that others may have updated since the
	// rank pulled them: ranks do not wait for each other (Dean et al. 2012, "Large Scale Distributed Deep Networks",
	// §4.1). Runs are not reproducible.
	Async bool
	// Servers is the number of ranks, from rank 0 on, that have a parameter server; 0 means all. Buckets are dealt to
	// them in turn.
	Servers int
	// BucketBytes is the maximal size of a bucket, in which gradients are pushed and parameters pulled; 0 means
	// ddp.DefaultBucketBytes.
	BucketBytes int64
	// Accumulate is the number of micro-batches per step whose gradients are accumulated; 0 means 1.
	Accumulate int
	// SumLoss says that the model's loss is a sum over the examples of the batch, not a mean: losses and gradients are
	// then summed over micro-batches and ranks, not averaged.
	SumLoss bool
	// Recompute saves only the input of each block and recomputes the block before its backward pass. Otherwise all
	// activations that are costly to recompute are saved.
	Recompute bool
	// Trace, if not nil, records a span for each operation of the rank's plan, on the streams Compute (passes, and the
	// server's updates), Reduce (push and pull) and Wait of package trace; counters of memory by kind; and the total of
	// "bytes communicated" that the rank has sent.
	Trace *trace.Recorder
}

func (o Options) withDefaults() Options {
	o.BucketBytes = cmp.Or(o.BucketBytes, ddp.DefaultBucketBytes)
	o.Accumulate = cmp.Or(o.Accumulate, 1)
	return o
}

// Validate returns an error that names the invalid option, its value and what to do.
func (o Options) Validate() error {
	o = o.withDefaults()
	for _, n := range []struct {
		name  string
		value int64
		least int64
	}{{"BucketBytes", o.BucketBytes, 1}, {"Accumulate", int64(o.Accumulate), 1}, {"Servers", int64(o.Servers), 0}} {
		if n.value < n.least {
			return fmt.Errorf("paramserver: Options.%s is %d: set it to at least %d, or to 0 for the default", n.name,
				n.value, n.least)
		}
	}
	return nil
}

// validFor returns an error if a recipe cannot be trained with these options.
func (o Options) validFor(r train.Recipe) error {
	if err := errors.Join(o.Validate(), r.Validate()); err != nil {
		return err
	}
	switch {
	case r.Replicas != nil:
		return errors.New("paramserver: Recipe.Replicas is set, which is for one program on several devices: leave " +
			"it nil")
	case r.Clip > 0 || r.Precision.Scaling != precision.Scaling{} || r.Precision.StochasticUpdate:
		return errors.New("paramserver: a server has a part of the gradients only, so it cannot clip them " +
			"(Recipe.Clip), scale losses or round updates stochastically (Recipe.Precision): leave these out")
	}
	return nil
}
