// Package pipeline trains a model whose blocks are spread over ranks: each has one or more stages, runs of blocks, and
// micro-batches go from stage to stage and back. Who computes what in which order is a schedule, plain data of package
// schedule; any can be played.
//
// An [Engine] has the programs of a recipe, which the ranks of a process share; a [Pipeline] is its model cut into stages, with a
// schedule; and a [Rank] has the weights of its own stages on a device of its own. A stage computes a micro-batch block by block, by
// the same few programs for every micro-batch, stage and schedule, so that schedules which differ only in their order, or in how the
// model is cut, give the same bits. That goes for a backward pass, too, which is two programs one after another where the schedule
// does not split it.
//
// [Player] plays a schedule with any [Worker], not only with a rank of a model.
package pipeline

import (
	"errors"
	"fmt"
	"time"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// Options say how a model is trained in a pipeline.
type Options struct {
	// Schedule is what the ranks of one pipeline do in a step. Its micro-batches are those of a step.
	Schedule schedule.Schedule
	// Cut is how many blocks of the model each stage has, in order; nil is [Even]. [Balance] finds one by the blocks' costs.
	Cut []int
	// Replicas is how many pipelines train together, each with its part of the batch's rows (data parallelism); 0 is 1. The
	// first ranks of the group are the first pipeline, and so on.
	Replicas int
	// Recompute keeps of each micro-batch only the input of a stage between the passes, and computes the stage again before
	// the backward pass (Huang et al. 2019, "GPipe", §2.3). Otherwise what is costly to make again is kept.
	Recompute bool
	// Fused has one program for a backward pass that the schedule does not split. It is somewhat faster than the two programs of
	// its parts, one after another, but is rounded otherwise: then schedules that split and those that do not have other bits.
	Fused bool
	// Timeout is how long one pass may take: see [PlayOptions].
	Timeout time.Duration
	// Trace, where it is not nil, gets what [PlayOptions] say; spans of gradients and parameters that ranks share; and the counters
	// "stashed activations", micro-batches that a rank keeps something of, and "weight versions".
	Trace *trace.Recorder
}

// Pipeline is an engine's model in a pipeline: who has what, and who does what. It is made for the ranks of a process, which
// share it.
type Pipeline struct {
	*Engine
	options Options
	player  *Player
	*Division
}

// Pipeline puts the model into a pipeline. A schedule or options that are not valid, and more stages than blocks, are errors.
func (e *Engine) Pipeline(o Options) (*Pipeline, error) {
	player, err := NewPlayer(o.Schedule)
	if err != nil {
		return nil, err
	}
	if o.Cut == nil {
		if o.Cut, err = Even(len(e.blocks), o.Schedule.Stages); err != nil {
			return nil, err
		}
	}
	if err := o.validFor(e.recipe, len(e.blocks)); err != nil {
		return nil, err
	}
	o.Replicas = max(o.Replicas, 1)
	p := &Pipeline{Engine: e, options: o, player: player}
	p.Division, err = Divide(e.recipe, e.model, o.Schedule, o.Cut)
	return p, err
}

// Cut is how many blocks each stage has.
func (p *Pipeline) Cut() []int { return p.options.Cut }

// Ranks is how many ranks train together.
func (p *Pipeline) Ranks() int { return len(p.Shares) * p.options.Replicas }

// prepare compiles what a rank needs for micro-batches of which the blocks have these sizes.
func (p *Pipeline) prepare(at int, all []sizes) error {
	for _, stage := range p.options.Schedule.On(at) {
		passes := map[schedule.Pass]bool{}
		for _, a := range p.options.Schedule.Ranks[at] {
			if a.Stage == stage {
				passes[a.Pass] = true
			}
		}
		if passes[schedule.Backward] && !p.options.Fused {
			passes[schedule.InputGrad], passes[schedule.WeightGrad], passes[schedule.Backward] = true, true, false
		}
		for _, i := range p.Stages[stage] { // beside other ranks, which prepare theirs
			if err := p.blocks[i].prepare(all[i], passes); err != nil {
				return err
			}
		}
	}
	if p.options.Schedule.Weights != schedule.Flush {
		return nil // there are two updates, and not each rank has both
	}
	update, err := p.updateOf(p.Shares[at], false)
	if err != nil {
		return err
	}
	return update.Prepare()
}

// validFor returns an error if a model of so many blocks cannot be trained with the options.
func (o Options) validFor(r train.Recipe, blocks int) error {
	if o.Replicas < 0 {
		return fmt.Errorf("pipeline: Options.Replicas is %d: set it to at least 1, or to 0 for 1", o.Replicas)
	}
	if err := CheckCut(o.Cut, o.Schedule, blocks); err != nil {
		return err
	}
	if r.Replicas != nil {
		return errors.New("pipeline: Recipe.Replicas is set, which is for one program on several devices: leave it nil, and set Options.Replicas")
	}
	if o.Schedule.Weights != schedule.Flush && (r.Clip > 0 || len(r.Policy().Scaling.States()) > 0) {
		return fmt.Errorf("pipeline: the schedule %s updates while other ranks are at other micro-batches, and Recipe.Clip or loss scaling "+
			"wait for all of them: leave them out, or use a schedule that flushes", o.Schedule.Name)
	}
	return nil
}

// chainOf returns the recipe's model as a chain, and the recipe with it.
func chainOf(r train.Recipe) (chain.Model, train.Recipe, error) {
	if err := r.Validate(); err != nil {
		return chain.Model{}, r, err
	}
	model, err := chain.Of(r.Model)
	r.Model = model // whose parameters may be in another order
	return model, r, err
}
