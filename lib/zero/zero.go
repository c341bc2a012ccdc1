// Package zero is data parallelism that does not hold everything everywhere: the Zero Redundancy Optimizer (Rajbhandari et
// al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"). Ranks train as in lib/ddp, each on its
// part of every batch, but each keeps only its shard
//
//   - of the optimizer's states and the master copy of parameters, in stage 1,
//   - of the gradients as well, in stage 2,
//   - of the parameters as well, in stage 3, which PyTorch calls fully sharded data parallelism (FSDP).
//
// A model is a chain of blocks (package chain), any other a chain of one. The parameters of a block form a unit, and
// what several blocks have in common forms a unit of its own: units are gathered, and their gradients reduced, in one
// message. A rank's shard of a parameter is a run of its elements in row-major order, as many for each rank; the last
// ranks' are padded with zeros (optim.FlatLength).
//
// There are two engines, which learn the same:
//
//   - [New] compiles a step to one program for all devices of a mesh, with the collectives in it ([Run]).
//   - [NewEngine] has ranks with programs of their own, a few for each block, which talk through a group.Group: goroutines
//     of this process, or processes on many hosts. It brings parameters in the background ahead of their use, and a trace
//     shows it ([Rank]).
//
// Both add up in the same order. Compiled without XLA's optimizer they have the same bits, in all stages; with it, as users run
// them, they may differ by roundings, since it contracts multiplications and additions in each program in its own way.
//
// Stages 1 and 2 send as many bytes as an all-reduce of the gradients, stage 3 half as many again: see [Plan]. lib/zero/residual
// has what the paper calls ZeRO-R.
package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// Trainer is what both engines give: [Run], which has all devices, and [Rank], which has one. Each method of a Rank but Steps and Bytes
// is a collective call.
type Trainer interface {
	// Step trains on one batch, inputs and targets of shape (B,T), the same on all ranks, each of which takes its part of
	// the rows, the first rank the first. A B that the ranks, times Options.Accumulate, do not divide is an error.
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error)
	// Steps is the number of batches trained on since the run began, and so the number of the next one, from 0.
	Steps() int
	// Params returns the whole parameters, on the host, in the type that they are kept in.
	Params(ctx context.Context) (params.Named[*tensors.Tensor], error)
	// Bytes is the most that a device has held of each kind at once, in the last step: see [Bytes].
	Bytes() Bytes
	// Save writes the run as the checkpoint of its step into the folder dir, as train.Run.Save does, but each rank writes
	// its own shards. What is saved is a train.Recipe's state: whoever trains the recipe can load it.
	Save(ctx context.Context, dir string, meta any, keep int) error
	// Load puts a checkpoint's state, of any world, stage and engine, in the place of the run's. It is as in train.Run.Load.
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	Close() error
}

// Bytes is memory by kind: memest.Parameters in the type to compute in, memest.Master, memest.Gradients,
// memest.Optimizer, and memest.Communication for what is whole for a moment only: the gathered parameters of stage 3, and
// the gradients of a block before they are reduced, of stages 2 and 3.
type Bytes map[memest.Kind]int64

// Total is the sum of all kinds.
func (b Bytes) Total() (sum int64) {
	for _, n := range b {
		sum += n
	}
	return sum
}

// Options say what is sharded, and how.
type Options struct {
	// Stage is 1, 2 or 3: each shards what the ones before it do, and more.
	Stage int
	// Prefetch is how many blocks ahead of the one that computes parameters are gathered, in stage 3. With 0 they are
	// gathered when they are needed, behind the gradients that are being reduced: a rank's stream does one thing after another.
	Prefetch int
	// Accumulate is into how many micro-batches, one after another, a rank's rows of a batch are divided; 0 is 1. Stage 1
	// adds up whole gradients and reduces them once; stages 2 and 3 reduce those of each micro-batch.
	Accumulate int
	// Recompute has the backward pass compute each block again from its input. Otherwise the products and the like that it
	// needs are kept from the forward pass.
	Recompute bool

	// Shards is how many neighbouring ranks share one copy of the state; 0 is all. With fewer there are several copies, each in
	// a sharding group, whose ranks of equal place average their gradients: hybrid sharding (HSDP; Zhao et al. 2023, "PyTorch FSDP:
	// Experiences on Scaling Fully Sharded Data Parallel", §3.2.2). It is for [NewEngine]; [New] takes the mesh's axes.
	Shards int
	// Offload keeps the optimizer's states and the master copy in the host's memory and updates them there, in plain Go:
	// ZeRO-Offload (Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training", §4.1). For [NewEngine].
	Offload bool
	// Activations is where the inputs of blocks lie between the passes, where Recompute is set: on the Device, or on the Host,
	// which the paper calls P_a+cpu (§6.1; package residual). For [NewEngine].
	Activations offload.Where
	// Trace, where it is not nil, gets spans of the rank on the streams of package trace (Compute, Gather, Reduce, Copy, Wait),
	// and counters of the bytes held of each kind. For [NewEngine].
	Trace *trace.Recorder
}

func (o Options) withDefaults() Options {
	o.Accumulate = max(o.Accumulate, 1)
	return o
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (o Options) Validate() error {
	switch {
	case o.Stage < 1 || o.Stage > 3:
		return fmt.Errorf("zero: Options.Stage is %d: set it to 1, 2 or 3; what shards nothing is lib/ddp", o.Stage)
	case o.Prefetch < 0:
		return fmt.Errorf("zero: Options.Prefetch is %d: set it to a number of blocks, at least 0", o.Prefetch)
	case o.Prefetch > 0 && o.Stage < 3:
		return fmt.Errorf("zero: Options.Prefetch is %d in stage %d, whose parameters are there already: leave it 0", o.Prefetch, o.Stage)
	case o.Accumulate < 0:
		return fmt.Errorf("zero: Options.Accumulate is %d: set it to at least 1, or to 0 for 1", o.Accumulate)
	case o.Activations != offload.Device && !(o.Activations == offload.Host && o.Recompute):
		return fmt.Errorf("zero: Options.Activations is %s, and Recompute %v: set it to offload.Host with Recompute, or leave it out", o.Activations, o.Recompute)
	case o.Shards < 0:
		return fmt.Errorf("zero: Options.Shards is %d: set it to at least 1, or to 0 for all ranks", o.Shards)
	}
	return nil
}

// chainOf returns the blocks of a recipe's model, and the recipe with these as its model: the parameters may be in another order.
func chainOf(r train.Recipe, o Options) (chain.Model, train.Recipe, error) {
	if err := errors.Join(o.Validate(), r.Validate()); err != nil {
		return chain.Model{}, r, err
	}
	if r.Replicas != nil {
		return chain.Model{}, r, errors.New("zero: Recipe.Replicas is set, which is for devices that hold the same: leave it nil")
	}
	model, err := chain.Of(r.Model)
	r.Model = model
	return model, r, err
}
