package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
)

// Rank is one of the ranks that train together: it has the stages that the schedule gives it, on a device of its own. It is not
// safe for use by several goroutines at once.
//
// A step that fails leaves the rank lost, and all others: what is asked of it after is an error. The error says which rank failed,
// and in which pass of which stage for which micro-batch. Go on in a new group, from the last checkpoint: batches are functions of the
// step's number, so none is lost and none comes twice.
type Rank struct {
	pipeline *Pipeline
	world    group.Group
	pipe     group.Group         // of the ranks of this pipeline
	sets     map[int]group.Group // of the ranks, of all pipelines, that have parameters in common: see Division.Sets
	at       int                 // the rank's number in its pipeline
	own      Share
	local    map[int]int // the places of the rank's parameters in its own list, by those in the model's
	device   int
	pool     *rank.Pool

	weights map[int][]*tensors.Tensor // the rank's parameters, by version
	version int                       // the newest one
	rest    []*tensors.Tensor         // of the state: the optimizer's, the loss scaling's, counters
	sums    map[int][]*tensors.Tensor // of the gradients, by block
	some    map[int]bool              // whether anything is in them
	metrics train.Metrics             // of the last update
	inputs  shapes.Shape              // of the micro-batches that programs are prepared for,
	targets shapes.Shape              // and of their targets
	peak    int
	steps   int
	lost    error
}

// Join makes this process's rank of a group, which runs on one of the backend's devices, whose memory must be the host's. The group
// has Options.Replicas times as many ranks as the schedule. It is a collective call: all begin with rank 0's initial state.
func (p *Pipeline) Join(ctx context.Context, g group.Group, device int) (*Rank, error) {
	n := len(p.Shares)
	if g.Size() != p.Ranks() {
		return nil, fmt.Errorf("pipeline: a group of %d ranks for %d pipelines of %d: make it %d", g.Size(), p.options.Replicas, n, p.Ranks())
	}
	at := g.Rank() % n
	r := &Rank{pipeline: p, world: g, at: at, own: p.Shares[at], device: device, local: map[int]int{},
		pool:    rank.NewPool(p.backend, device),
		weights: map[int][]*tensors.Tensor{}, sums: map[int][]*tensors.Tensor{}, some: map[int]bool{}}
	for k, place := range r.own.Places {
		r.local[place] = k
	}
	var err error
	if r.pipe, r.sets, err = p.Groups(ctx, g, p.options.Replicas); err != nil {
		return nil, err
	}
	state, err := r.own.Initial(ctx, g, p.recipe)
	if err != nil {
		return nil, err
	}
	if err := r.place(state); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// place takes a state, of the host, in place of the one that is there.
func (r *Rank) place(state []*tensors.Tensor) error {
	on := make([]*tensors.Tensor, len(state))
	for i, v := range state {
		var err error
		if on[i], err = r.pipeline.backend.Put(v, r.device); err != nil {
			return errors.Join(err, rank.Free(on[:i]...))
		}
	}
	err := r.freeState()
	n := len(r.own.Tree)
	r.version, r.weights[0], r.rest = 0, on[:n:n], on[n:]
	return err
}

func (r *Rank) freeState() error {
	var errs []error
	for _, version := range r.weights {
		errs = append(errs, rank.Free(version...))
	}
	clear(r.weights)
	return errors.Join(append(errs, rank.Free(r.rest...))...)
}

// Step trains on one batch, inputs and targets of shape (B,…): the same on all ranks. Its rows are divided by the pipelines and then
// by the micro-batches of the schedule; a B that cannot be is an error. Of the metrics the loss is the rank's part of the mean over
// the pipeline's rows, which is all of it where the last stage is and 0 elsewhere, so that no rank waits for it: [Rank.Loss] adds up.
// With a schedule that updates several times in a step, the others are those of the last update; such a step ends by emptying the
// pipeline, so have it be of many micro-batches.
func (r *Rank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	if r.lost != nil {
		return train.Metrics{}, r.lost
	}
	pipelines := r.pipeline.options.Replicas
	if err := train.CheckBatch(r.pipeline.recipe.Model, inputs, targets); err != nil {
		return train.Metrics{}, err
	}
	parts, err := rank.MicroBatches(inputs, targets, r.world.Rank()/len(r.pipeline.Shares), pipelines, r.pipeline.options.Schedule.Microbatches)
	if err != nil {
		return train.Metrics{}, err
	}
	if err := r.step(ctx, parts); err != nil {
		return train.Metrics{}, r.lose(fmt.Errorf("step %d: %w", r.steps, err))
	}
	r.steps++
	return r.metrics, nil
}

func (r *Rank) step(ctx context.Context, parts []rank.MicroBatch) (err error) {
	inputs, targets := parts[0].Inputs.Shape(), parts[0].Targets.Shape()
	sizes, err := r.pipeline.sizesOf(inputs, targets)
	if err != nil {
		return err
	}
	if !inputs.Equal(r.inputs) || !targets.Equal(r.targets) {
		if err := r.pipeline.prepare(r.at, sizes); err != nil {
			return err
		}
		r.inputs, r.targets = inputs, targets
	}
	w := &worker{Rank: r, sizes: sizes, parts: parts, stashed: map[place]*stash{}}
	defer func() {
		for _, s := range w.stashed { // of a step that failed
			err = errors.Join(err, s.free())
		}
		r.peak = w.peak
	}()
	o := r.pipeline.options
	if err := r.pipeline.player.Play(ctx, r.pipe, w, PlayOptions{Timeout: o.Timeout, Trace: o.Trace, First: r.world.Rank() - r.at}); err != nil {
		return err
	}
	r.metrics.Loss = w.loss / float64(len(parts))
	r.weights = map[int][]*tensors.Tensor{0: r.weights[r.version]} // the next step begins at version 0 again
	r.version = 0
	if o.Schedule.Weights == schedule.Flush {
		return nil
	}
	// Each of several updates has counted one batch.
	_, _, counters := train.Tail(r.own.Recipe, r.rest)
	steps, err := r.pipeline.backend.Put(int32(r.steps+1), r.device)
	if err != nil {
		return err
	}
	old := counters[0]
	counters[0] = steps
	return rank.Free(old)
}

// Loss returns the mean loss over the whole batch, from the metrics of all ranks. It is a collective call.
func (r *Rank) Loss(ctx context.Context, m train.Metrics) (float64, error) {
	sum := []float64{m.Loss}
	err := group.AllReduce(ctx, r.world, sum, group.Sum)
	return sum[0] / float64(r.pipeline.options.Replicas), err
}

// Steps is the number of batches trained on, and so the number of the next one, from 0.
func (r *Rank) Steps() int { return r.steps }

// PeakActivations is the most micro-batches of which the rank kept something at once in the last step, one for each of its
// stages: what schedule.Timeline.PeakActivations foretells.
func (r *Rank) PeakActivations() int { return r.peak }

// Params returns copies of the parameters that the rank has, by the names of the model's list and in the type that they are kept
// in.
func (r *Rank) Params() (params.Named[*tensors.Tensor], error) {
	if r.lost != nil {
		return nil, r.lost
	}
	copies := params.Named[*tensors.Tensor]{}
	for i, s := range r.own.Tree {
		var err error
		if copies[s.Name], err = r.weights[r.version][i].LocalClone(); err != nil {
			return nil, err
		}
	}
	return copies, nil
}

// lose remembers what the rank was lost by.
func (r *Rank) lose(by error) error {
	err := rank.LostBy("pipeline", r.world.Rank(), by)
	r.lost = err
	return errors.Join(err, r.Close())
}

// Close frees what the rank has, and waits for nobody.
func (r *Rank) Close() error {
	if r.lost == nil {
		r.lost = errors.New("pipeline: the rank is closed: join again")
	}
	errs := []error{r.freeState(), r.pool.Close()}
	for _, sums := range r.sums {
		errs = append(errs, rank.Free(sums...))
	}
	clear(r.sums)
	r.rest = nil
	return errors.Join(errs...)
}
