package paramserver

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/train"
)

// Worker is one of the ranks that train together: a train.Trainer, with the differences below. It is not safe for
// concurrent use.
//
// A step that fails on this rank alone, and any error of the group, makes the rank unusable: later calls return an
// error. Errors name the rank at fault. (Asynchronous ranks notice a failure in the next collective call, such as
// [Mean]. If a rank stalls within a step, others may wait for its answers and be late themselves; the error then names
// one of these and lists them all.) Continue in a new group from the last checkpoint: batches are functions of the
// step's number, so none is skipped or repeated.
//
// Each server writes its part of a checkpoint. Close is a collective call: a rank waits until no other rank needs its
// server, however long that takes. If a rank may be gone, call [Mean] first to find out. A rank that fails for reasons
// of its own should return, not close; it may close once the group has ended.
type Worker struct {
	train.Trainer
	client *client
}

// Metrics is what a step reports.
type Metrics struct {
	// Metrics has the loss of the rank's own shard of the batch, before the update, and nothing else; use [Mean] for
	// the loss of the full batch.
	train.Metrics
	// Staleness is the number of updates, by other ranks' gradients, that the parameters had seen when this rank's
	// gradients were applied and this rank had not: the mean over the buckets. It is 0 without [Options.Async].
	Staleness float64
}

// Step trains on one batch, which all ranks give in full: inputs and targets of shape (B,T). Each rank takes its shard,
// the first rank the first examples. It returns an error if the ranks times Options.Accumulate do not divide B.
func (r *Worker) Step(ctx context.Context, inputs, targets *tensors.Tensor) (Metrics, error) {
	r.client.staleness = 0
	m, err := r.Trainer.Step(ctx, inputs, targets)
	m.Loss = r.mean(m.Loss)
	return Metrics{m, r.client.staleness}, err
}

// Evaluate returns the loss of the rank's own shard of a batch, without noise. It changes nothing.
func (r *Worker) Evaluate(ctx context.Context, inputs, targets *tensors.Tensor) (float64, error) {
	loss, err := r.Trainer.Evaluate(ctx, inputs, targets)
	return r.mean(loss), err
}

// mean returns the loss of the rank's shard, from the sum over its micro-batches.
func (r *Worker) mean(sum float64) float64 {
	if o := r.client.engine.options; !o.SumLoss {
		return sum / float64(o.Accumulate)
	}
	return sum
}

// Mean returns the mean of a number over the ranks, such as the loss of the full batch. It is a collective call.
func Mean(ctx context.Context, g group.Group, x float64) (float64, error) {
	sum := []float64{x}
	err := group.AllReduce(ctx, g, sum, group.Mean)
	return sum[0], err
}
