package main

import (
	"context"
	"math"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	layouts "github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// layoutEngine has the ranks of a layout, each of which drives several devices.
type layoutEngine struct {
	*layouts.Plan
	backend *xla.Backend
	options layouts.Options
}

func newLayoutEngine(backend *xla.Backend, j *job, recipe train.Recipe, in around) (engine, int, error) {
	plan, err := j.plan(recipe)
	if err != nil {
		return nil, 0, err
	}
	return layoutEngine{plan, backend, layouts.Options{Timeout: patience, Trace: in.recorder}}, plan.Layout().Ranks(), nil
}

// plan deals the job out, if it fits the memory of the devices by the estimate.
func (j *job) plan(recipe train.Recipe) (*layouts.Plan, error) {
	l, err := j.layout()
	if err != nil {
		return nil, err
	}
	setup := memest.Setup{Model: cost.FromGPT(j.Model), Seq: j.Model.Seq, Precision: recipe.Precision, Rule: recipe.Rule,
		Recompute: j.Model.Recompute, Flash: j.Model.Flash, Dropout: j.Model.Dropout, Clip: recipe.Clip > 0}
	memory := int64(j.Parallel.DeviceMemory)
	if memory == 0 {
		memory = math.MaxInt64
	}
	if known := slices.Contains(memest.Schedules(), memest.Schedule(l.Schedule)); known || l.Schedule == "" || memory < math.MaxInt64 {
		if err := l.Fits(setup, j.Batch, memory); err != nil {
			return nil, err
		}
	}
	return layouts.NewPlan(recipe, l)
}

// Join gives each of the process's ranks devices of its own.
func (e layoutEngine) Join(ctx context.Context, g group.Group, number int) (rank, error) {
	r, err := e.Plan.Join(ctx, g, e.backend, number*e.Layout().PerRank(), e.options)
	if err != nil {
		return nil, err
	}
	bytes, err := e.Bytes(g.Rank())
	return planRank{r, byName(bytes)}, err
}

// Close has nothing to do: ranks have programs of their own.
func (e layoutEngine) Close() {}

// planRank is a rank that carries a plan out.
type planRank struct {
	train.Trainer
	memory map[string]int64
}

func (r planRank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (metrics, error) {
	m, err := r.Trainer.Step(ctx, inputs, targets)
	return metrics{Metrics: m}, err
}

func (r planRank) Memory() map[string]int64 { return r.memory }

// sentByAxis is what ranks of a layout sent in the last step: of each kind the most. It is nil for other runs. With a crew it is a
// collective call.
func (t *training) sentByAxis() (map[string]int64, error) {
	run, _ := t.run.(*ranks)
	if run == nil || len(t.records) == 0 {
		return nil, nil
	}
	if _, ok := run.engine.(layoutEngine); !ok {
		return nil, nil
	}
	most := map[string]int64{}
	for _, one := range run.ranks {
		own, err := one.(planRank).Traffic()
		if err != nil {
			return nil, err
		}
		for axis, n := range own {
			most[axis] = max(most[axis], n)
		}
	}
	return t.crew.most(most)
}
