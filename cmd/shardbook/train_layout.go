package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	layouts "github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// layout is what the flags say: where each device is, and what it has.
func (j *job) layout() (l layouts.Layout, err error) {
	p := j.Parallel
	l = layouts.Layout{Tensor: p.Tensor, TensorSequence: p.TensorSequence, Partition: p.TensorPartition,
		ZeRO: p.Zero, Prefetch: p.Prefetch, Shards: p.Shards, Offload: offload.Host{Update: p.Offload},
		RingRanks: p.SeqRanks, Microbatches: p.Accumulate, Recompute: p.RecomputeStages, BucketBytes: int64(p.BucketBytes), Every: p.Every}
	switch {
	case p.meshed():
		l.Replicas, l.Data = p.Replicas, p.Data
	case p.oneProgram(): // for those that share one copy of the state
		l.Data, l.Shards = cmp.Or(p.Shards, p.Data), 0
		l.Replicas = p.Data / l.Data
	default:
		l.Replicas = p.Data
	}
	if slices.Contains(ddp.Syncs(), ddp.Sync(p.Sync)) {
		l.Sync = ddp.Sync(p.Sync)
	}
	if p.Compress != "" {
		if l.Hook, err = ddp.ParseHook(p.Compress); err != nil {
			return l, fmt.Errorf("--compress-gradients: %w", err)
		}
	}
	if l.Replicas == 1 && !p.meshed() && p.Pipe == 0 { // a run that goes on without others
		l.Hook, l.Every = nil, 1
	}
	if l.Ring, l.Ulysses, err = p.degrees(j.keyHeads()); err != nil || p.Pipe == 0 {
		return l, err
	}
	if l.Plan, err = p.schedule(j.Batch); err != nil {
		return l, err
	}
	l.Cut, err = p.cutList()
	return l, err
}

// laidOut is the job's layout, or an error that names the flags at fault.
func (j *job) laidOut() (layouts.Layout, error) {
	if err := j.Parallel.validate(); err != nil {
		return layouts.Layout{}, err
	}
	l, err := j.layout()
	if err != nil {
		return l, err
	}
	if j.Parallel.planned() {
		err = inFlags(l.Validate())
	}
	micro := l.Microbatches
	if l.Plan != nil {
		micro = l.Plan.Micro
	}
	if n := max(1, l.Replicas) * max(1, l.Data) * micro; err == nil && j.Batch%n != 0 {
		err = fmt.Errorf("--batch=%d cannot be divided into equal parts for --data %d and --replicas %d, "+
			"of %d micro-batches each (--accumulate, --microbatches): choose a multiple of %d", j.Batch, j.Parallel.Data, max(1, j.Parallel.Replicas), micro, n)
	}
	return l, err
}

// plan puts a recipe into the job's layout, if it fits the memory of the devices by the estimate.
func (j *job) plan(recipe train.Recipe, l layouts.Layout) (*layouts.Plan, error) {
	if memory := int64(j.Parallel.DeviceMemory); memory > 0 {
		setup := memest.Setup{Model: cost.FromGPT(j.Model), Seq: j.Model.Seq, Precision: recipe.Precision, Optimizer: recipe.Optimizer,
			Recompute: j.Model.Recompute, Flash: j.Model.Flash, Dropout: j.Model.Dropout, Clip: recipe.Clip > 0}
		if err := l.Fits(setup, j.Batch, memory); err != nil {
			return nil, inFlags(err)
		}
	}
	plan, err := layouts.NewPlan(recipe, l)
	return plan, inFlags(err)
}

// planOn is [job.plan] on devices, which can be measured. With a crew it is a collective call.
func (j *job) planOn(ctx context.Context, backend *xla.Backend, recipe train.Recipe, batch batchFunc, c *crew) (*layouts.Plan, error) {
	l, err := j.layout()
	if err == nil && j.Parallel.Cut == cutMeasured {
		l.Cut, err = measuredCut(ctx, backend, recipe, l, batch, c)
	}
	if err != nil {
		return nil, err
	}
	return j.plan(recipe, l)
}
