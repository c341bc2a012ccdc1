package parallel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Options say how a layout is run.
type Options struct {
	// Timeout is how long one pass may take: see pipeline.PlayOptions.
	Timeout time.Duration
	// Trace, where it is not nil, gets a span for each pass and each wait, as pipeline.PlayOptions say, and for what ranks add up.
	Trace *trace.Recorder
}

// Rank is one of the ranks that train together. It is not safe for use by several goroutines at once.
//
// A step that fails leaves the rank lost, and all others: what is asked of it after is an error. Go on in a new group, from the last
// checkpoint: batches are functions of the step's number, so none is lost and none comes twice.
type Rank struct {
	*own
	options  Options
	mesh     *xla.Mesh
	world    group.Group
	pipe     group.Group         // of the ranks of this pipeline
	sets     map[int]group.Group // of the ranks that have parameters in common: see pipeline.Division
	at       int                 // the rank's number in its pipeline
	programs *programs

	state   []*dtensor.Tensor // as own.entries lists it
	besides []*dtensor.Tensor // the whole parameters that are not in it
	sums    []*dtensor.Tensor // of the gradients, once there are some
	inputs  shapes.Shape      // of the micro-batches that bounds are known for,
	targets shapes.Shape      // and of their targets
	bounds  []shapes.Shape    // of what each stage gives the next
	metrics train.Metrics
	traffic traffic // of the last step
	steps   int
	lost    error
}

// Join makes this process's rank of a group, which drives as many of the backend's devices as [Layout.PerRank] says, from number
// first on. The group has [Layout.Ranks] ranks; those of a pipeline are neighbours. It is a collective call: all begin with rank 0's
// initial state.
func (p *Plan) Join(ctx context.Context, g group.Group, backend *xla.Backend, first int, o Options) (*Rank, error) {
	if backend == nil {
		return nil, errors.New("parallel: the backend is nil: open one with xla.Open")
	}
	if g.Size() != p.layout.Ranks() {
		return nil, fmt.Errorf("parallel: a group of %d ranks for a layout of %d: make it %d", g.Size(), p.layout.Ranks(), p.layout.Ranks())
	}
	mesh, err := backend.MeshFrom(first, p.layout.axes()...)
	if err != nil {
		return nil, err
	}
	at := g.Rank() % p.layout.Pipe
	r := &Rank{own: p.own(at), options: o, mesh: mesh, world: g, at: at}
	if r.pipe, r.sets, err = p.Groups(ctx, g, p.layout.Replicas); err != nil {
		return nil, err
	}
	outside := len(r.sets) > 0 || r.asks() && p.layout.Pipe > 1
	if r.programs, err = r.newPrograms(mesh, p.player.Schedule.On(at), outside); err != nil {
		return nil, err
	}
	if err := r.try(mesh); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	state, err := r.Initial(ctx, g, p.recipe)
	if err == nil {
		err = r.replace(state)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// replace takes a state, whole and on the host, in place of the one that is there.
func (r *Rank) replace(values []*tensors.Tensor) (err error) {
	var state, besides []*dtensor.Tensor
	for i, e := range r.entries {
		var on *dtensor.Tensor
		if on, err = r.place(r.mesh, e, values[i]); err != nil {
			break
		}
		state = append(state, on)
	}
	if err == nil && r.own.besides() {
		for i, v := range values[:len(r.tree)] {
			var on *dtensor.Tensor
			if v, err = train.Convert(v, r.policy.Compute); err == nil {
				on, err = r.place(r.mesh, entry{whole: r.Tree[i], cut: r.cuts[i], local: r.tree[i].Shape}, v)
			}
			if err != nil {
				break
			}
			besides = append(besides, on)
		}
	}
	if err != nil {
		return errors.Join(err, free(state...), free(besides...))
	}
	old := append(r.state, r.besides...)
	r.state, r.besides = state, besides
	return free(old...)
}

// weights are the parameters that the passes use.
func (r *Rank) weights() []*dtensor.Tensor {
	if r.besides != nil {
		return r.besides
	}
	return r.state[:len(r.tree)]
}

// Step trains on one batch, inputs and targets of shape (B,…): the same on all ranks. Its rows are divided by the replicas, the
// micro-batches, and the devices with other rows; a B that cannot be is an error. Of the metrics the loss is the rank's part of the
// mean over the rows of its replica, which is all of it where the last stage is and 0 elsewhere, so that no rank waits for it:
// [Rank.Loss] adds up.
func (r *Rank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error) {
	if r.lost != nil {
		return train.Metrics{}, r.lost
	}
	l := r.layout
	if err := train.CheckBatch(r.recipe.Model, inputs, targets); err != nil {
		return train.Metrics{}, err
	}
	parts, err := rank.MicroBatches(inputs, targets, r.world.Rank()/l.Pipe, l.Replicas, l.Microbatches)
	if err != nil {
		return train.Metrics{}, err
	}
	in, out := parts[0].Inputs.Shape(), parts[0].Targets.Shape()
	if !in.Equal(r.inputs) || !out.Equal(r.targets) {
		bounds, err := r.boundaries(r.mesh, in, out)
		if err != nil {
			return train.Metrics{}, err
		}
		r.inputs, r.targets, r.bounds = in, out, bounds
	}
	if err := r.step(ctx, parts); err != nil {
		return train.Metrics{}, r.lose(fmt.Errorf("step %d: %w", r.steps, err))
	}
	r.steps++
	return r.metrics, nil
}

func (r *Rank) step(ctx context.Context, parts []rank.MicroBatch) (err error) {
	r.traffic = traffic{calls: map[*xla.Program]int{}, sent: map[string]int64{}}
	if r.sums, err = r.programs.zeros.Call(); err != nil {
		return err
	}
	w := &worker{Rank: r, parts: parts, stashed: map[place]*stash{}}
	defer func() {
		for _, s := range w.stashed { // of a step that failed
			err = errors.Join(err, s.free())
		}
	}()
	return r.player.Play(ctx, r.pipe, w, pipeline.PlayOptions{Timeout: r.options.Timeout, Trace: r.options.Trace, First: r.world.Rank() - r.at})
}

// Loss returns the mean loss over the whole batch, from the metrics of all ranks. It is a collective call.
func (r *Rank) Loss(ctx context.Context, m train.Metrics) (float64, error) {
	sum := []float64{m.Loss}
	err := group.AllReduce(ctx, r.world, sum, group.Sum)
	return sum[0] / float64(r.layout.Replicas), err
}

// Steps is the number of batches trained on, and so the number of the next one, from 0.
func (r *Rank) Steps() int { return r.steps }

// Params returns copies of the parameters that the rank has, whole, by name and in the type that they are kept in.
func (r *Rank) Params() (params.Named[*tensors.Tensor], error) {
	if r.lost != nil {
		return nil, r.lost
	}
	copies := params.Named[*tensors.Tensor]{}
	for i, s := range r.Tree {
		var err error
		if copies[s.Name], err = r.join(r.entries[i], r.state[i]); err != nil {
			return nil, err
		}
	}
	return copies, nil
}

// lose remembers what the rank was lost by.
func (r *Rank) lose(by error) error {
	err := rank.LostBy("parallel", r.world.Rank(), by)
	r.lost = err
	return errors.Join(err, r.Close())
}

// Close frees what the rank has, and waits for nobody.
func (r *Rank) Close() error {
	if r.lost == nil {
		r.lost = errors.New("parallel: the rank is closed: join again")
	}
	err := errors.Join(free(r.state...), free(r.besides...), free(r.sums...))
	r.state, r.besides, r.sums = nil, nil, nil
	if r.programs != nil {
		r.programs.close()
	}
	return err
}

// free frees device memory at once: the garbage collector would come late. Values may be nil.
func free(values ...*dtensor.Tensor) error {
	var errs []error
	for _, v := range values {
		if v != nil {
			errs = append(errs, v.FinalizeAll())
		}
	}
	return errors.Join(errs...)
}
