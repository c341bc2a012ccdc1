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

// Options say how workers and servers train together. The zero value has a server on each rank, which waits for the
// gradients of all ranks at each step.
type Options struct {
	// Async applies a rank's gradient when it comes, to parameters that others may have changed since the rank pulled
	// them: nobody waits for the others (Dean et al. 2012, "Large Scale Distributed Deep Networks", §4.1). No run is
	// like another.
	Async bool
	// Servers is on how many ranks, from rank 0 on, there is a parameter server; 0 is on all. Buckets are theirs in
	// turn.
	Servers int
	// BucketBytes is the largest size of a bucket, in which gradients are pushed and parameters pulled; 0 is
	// ddp.DefaultBucketBytes.
	BucketBytes int64
	// Accumulate is into how many micro-batches, one after another, a rank's rows of a batch are divided; 0 is 1.
	// Gradients add up in the buckets.
	Accumulate int
	// SumLoss says that the model's loss is a sum over the rows of the batch, not a mean: losses and gradients are then
	// added up over micro-batches and ranks, not averaged.
	SumLoss bool
	// Recompute has the backward pass compute each block again from its input. Otherwise the products and the like
	// that it needs are kept from the forward pass.
	Recompute bool
	// Trace, where it is not nil, gets a span for each operation of the rank's plan, on the streams of package trace:
	// Compute (passes, and the server's updates), Reduce (gradients pushed and parameters pulled) and Wait (for that);
	// and counters of the bytes held of each kind, and of the "bytes communicated" so far, of all that the rank has
	// sent.
	Trace *trace.Recorder
}

func (o Options) withDefaults() Options {
	o.BucketBytes = cmp.Or(o.BucketBytes, ddp.DefaultBucketBytes)
	o.Accumulate = cmp.Or(o.Accumulate, 1)
	return o
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (o Options) Validate() error {
	o = o.withDefaults()
	for _, n := range []struct {
		name  string
		value int64
		least int64
	}{{"BucketBytes", o.BucketBytes, 1}, {"Accumulate", int64(o.Accumulate), 1}, {"Servers", int64(o.Servers), 0}} {
		if n.value < n.least {
			return fmt.Errorf("paramserver: Options.%s is %d: set it to at least %d, or to 0 for the default", n.name, n.value, n.least)
		}
	}
	return nil
}

// validFor returns an error if a recipe cannot be trained with the options.
func (o Options) validFor(r train.Recipe) error {
	if err := errors.Join(o.Validate(), r.Validate()); err != nil {
		return err
	}
	switch {
	case r.Replicas != nil:
		return errors.New("paramserver: Recipe.Replicas is set, which is for one program on several devices: leave it nil")
	case r.Clip > 0 || r.Precision.Scaling != precision.Scaling{} || r.Precision.StochasticUpdate:
		return errors.New("paramserver: a server sees a part of the gradients only: it cannot clip all of them (Recipe.Clip), " +
			"scale losses or round updates stochastically (Recipe.Precision): leave these out")
	}
	return nil
}
