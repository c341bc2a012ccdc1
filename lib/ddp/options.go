package ddp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// Sync is a way in which ranks share what they learn.
type Sync string

const (
	// Naive all-reduces each gradient by itself, after the backward pass.
	Naive Sync = "naive"
	// Overlap all-reduces each gradient as soon as it is there, while the backward pass of earlier blocks goes on.
	Overlap Sync = "overlap"
	// Bucketed is Overlap with gradients in buckets: fewer and larger messages.
	Bucketed Sync = "bucket"
	// Server pushes gradients to parameter servers, which have the parameters and their optimizer states in parts and
	// update them when all ranks' gradients are there; new parameters are pulled (Li et al. 2014, "Scaling Distributed
	// Machine Learning with the Parameter Server").
	Server Sync = "ps"
	// Async is Server without waiting: a rank's gradient is applied when it comes, to parameters that others may have
	// changed since the rank pulled them (Dean et al. 2012, "Large Scale Distributed Deep Networks", §4.1).
	Async Sync = "async"
)

// Syncs are all of them.
func Syncs() []Sync { return []Sync{Naive, Overlap, Bucketed, Server, Async} }

// ParseSync returns the way of a name. An unknown one is an error that lists them.
func ParseSync(name string) (Sync, error) {
	if s := Sync(strings.ToLower(name)); slices.Contains(Syncs(), s) {
		return s, nil
	}
	return "", fmt.Errorf("ddp: no way to synchronise is called %q: choose one of %q", name, Syncs())
}

// Served says whether there are parameter servers.
func (s Sync) Served() bool { return s == Server || s == Async }

// Options say how ranks train together. The zero value is [Bucketed], with all gradients averaged at each step.
type Options struct {
	Sync Sync // "" is Bucketed

	// BucketBytes is the largest size of a bucket; 0 is DefaultBucketBytes. Naive and Overlap have a bucket for each
	// parameter.
	BucketBytes int64

	// Accumulate is into how many micro-batches, one after another, a rank's rows of a batch are divided; 0 is 1.
	// Gradients add up in the buckets.
	Accumulate int
	// EachMicroBatch synchronises gradients after each micro-batch, not after the last alone: for Accumulate times the
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

	// Servers is on how many ranks, from rank 0 on, there is a parameter server; 0 is on all. Buckets are theirs in turn.
	Servers int

	// Recompute has the backward pass compute each block again from its input. Otherwise the products and the like
	// that it needs are kept from the forward pass.
	Recompute bool

	// Trace, where it is not nil, gets spans of the rank on the streams of package trace: Compute (forward and backward
	// passes, updates), Reduce or Send (what ranks do together), Wait (for that), Copy (of batches); and the counter
	// "bytes communicated", of what was given to the group.
	Trace *trace.Recorder
}

func (o Options) withDefaults() Options {
	o.Sync = cmp.Or(o.Sync, Bucketed)
	o.BucketBytes = cmp.Or(o.BucketBytes, DefaultBucketBytes)
	o.Accumulate = cmp.Or(o.Accumulate, 1)
	o.Every = cmp.Or(o.Every, 1)
	if o.Sync == Naive || o.Sync == Overlap {
		o.BucketBytes = 1
	}
	return o
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (o Options) Validate() error {
	o = o.withDefaults()
	if _, err := ParseSync(string(o.Sync)); err != nil {
		return err
	}
	for _, n := range []struct {
		name  string
		value int64
		least int64
	}{{"BucketBytes", o.BucketBytes, 1}, {"Accumulate", int64(o.Accumulate), 1}, {"Every", int64(o.Every), 1}, {"Servers", int64(o.Servers), 0}} {
		if n.value < n.least {
			return fmt.Errorf("ddp: Options.%s is %d: set it to at least %d, or to 0 for the default", n.name, n.value, n.least)
		}
	}
	switch {
	case o.EachMicroBatch && o.Hook != nil:
		return errors.New("ddp: Options.EachMicroBatch and Options.Hook: leave one out, since gradients that were reduced " +
			"once would be compressed again")
	case o.Every > 1 && (o.Sync.Served() || o.EachMicroBatch || o.Hook != nil):
		return fmt.Errorf("ddp: Options.Every is %d, so that no gradients are synchronised: leave out Sync %q, EachMicroBatch and Hook",
			o.Every, o.Sync)
	case o.Sync.Served() && (o.EachMicroBatch || o.Hook != nil):
		return fmt.Errorf("ddp: Options.Sync is %q, which has no all-reduce: leave out EachMicroBatch and Hook", o.Sync)
	case o.Servers > 0 && !o.Sync.Served():
		return fmt.Errorf("ddp: Options.Servers is %d and Sync %q, which has no servers: choose %q or %q, or leave it out",
			o.Servers, o.Sync, Server, Async)
	}
	return nil
}

// validFor returns an error if a recipe cannot be trained with the options.
func (o Options) validFor(r train.Recipe) error {
	if err := errors.Join(o.Validate(), r.Validate()); err != nil {
		return err
	}
	o = o.withDefaults()
	scales := r.Precision.Scaling != precision.Scaling{}
	switch {
	case r.Replicas != nil:
		return errors.New("ddp: Recipe.Replicas is set, which is for one program on several devices: leave it nil")
	case o.Sync.Served() && (r.Clip > 0 || scales || r.Precision.StochasticUpdate):
		return fmt.Errorf("ddp: Options.Sync is %q, and a server sees a part of the gradients only: it cannot clip all of them "+
			"(Recipe.Clip), scale losses or round updates stochastically (Recipe.Precision)", o.Sync)
	case o.Every > 1 && scales:
		return fmt.Errorf("ddp: Options.Every is %d, and Recipe.Precision scales losses, by as much as each rank finds right: use "+
			"float32 or bfloat16", o.Every)
	}
	return nil
}
