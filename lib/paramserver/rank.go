package paramserver

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/train"
)

// Rank is one of the ranks that train together. It is not safe for use by several goroutines at once.
//
// A step that fails for a reason that the other ranks do not share, and any error of the group, leaves the rank lost:
// what is asked of it after is an error. The errors name the rank at fault. (Asynchronous ranks notice in the next call
// that all make, such as [Mean]. Where one has stalled in mid-step, others may wait for its answers, and be late
// themselves: the failure then names one of these and lists them all.) Go on in a new group, from the last checkpoint:
// batches are functions of the step's number, so none is lost and none comes twice.
//
// Besides what its own methods say it is a train.Trainer. Each server writes its part of a checkpoint. Close is a
// collective call, in which each rank waits until the others need its server no more, however long that takes: where
// one may be gone, let [Mean] tell first. A rank that fails for reasons of its own returns rather than closes; it may
// close when the group has ended.
type Rank struct {
	train.Trainer
	client *client
}

// Metrics is what a step reports.
type Metrics struct {
	// Metrics are those of the rank: the loss is that of its own rows, before the update; [Mean] gives the whole
	// batch's. Only the loss is there.
	train.Metrics
	// Staleness is how many updates by other ranks' gradients a parameter had seen, when the rank's gradient was
	// applied to it, that the rank had not: the mean over the buckets. Only [Options.Async] has any.
	Staleness float64
}

// Step trains on one batch, inputs and targets of shape (B,T): the same on all ranks, each of which takes its part of
// the rows, the first rank the first. A B that the ranks, times Options.Accumulate, do not divide is an error.
func (r *Rank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (Metrics, error) {
	r.client.staleness = 0
	m, err := r.Trainer.Step(ctx, inputs, targets)
	m.Loss = r.mean(m.Loss)
	return Metrics{m, r.client.staleness}, err
}

// Evaluate returns the loss of the rank's own rows of a batch, without noise, and changes nothing.
func (r *Rank) Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
	loss, err := r.Trainer.Evaluate(ctx, inputs, targets)
	return r.mean(loss), err
}

// mean is the loss of the rank's rows, of the sum over its micro-batches.
func (r *Rank) mean(sum float64) float64 {
	if o := r.client.engine.options; !o.SumLoss {
		return sum / float64(o.Accumulate)
	}
	return sum
}

// Mean returns the mean of a number over the ranks, such as the loss of the whole batch. It is a collective call.
func Mean(ctx context.Context, g group.Group, x float64) (float64, error) {
	sum := []float64{x}
	err := group.AllReduce(ctx, g, sum, group.Mean)
	return sum[0], err
}
