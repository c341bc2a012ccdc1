package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/gpt"
	layouts "github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Ways to cut a model into stages besides a list.
const (
	cutEven     = "even"
	cutMeasured = "measured"
)

// readFile reads the schedule that a flag names a file of. The file says how many ranks there are.
func (p *parallel) readFile() error {
	if p.file == "" {
		return nil
	}
	s, err := readSchedule("schedule-file", p.file, os.Stdin)
	if err != nil {
		return err
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("--schedule-file: %s: %w", p.file, err)
	}
	n := len(s.Ranks)
	if p.Pipe != 0 && p.Pipe != n {
		return fmt.Errorf("--pipe=%d: %s is a schedule of %d ranks: leave --pipe out, or choose another file", p.Pipe, p.file, n)
	}
	p.Pipe, p.ScheduleText = n, s.String()
	return nil
}

// validatePipe is validate for pipelines.
func (p *parallel) validatePipe() error {
	switch {
	case p.PipeSchedule != "" && !slices.Contains(pipeline.Kinds(), p.PipeSchedule):
		return fmt.Errorf("--schedule=%.40s: want one of %q", p.PipeSchedule, pipeline.Kinds())
	case p.Microbatches < 0:
		return fmt.Errorf("--microbatches=%d: want at least 1, or 0 for a number that suits the schedule", p.Microbatches)
	case p.Chunks < 0:
		return fmt.Errorf("--chunks=%d: want at least 1, or 0 for the usual number", p.Chunks)
	case p.ScheduleText != "" && (p.PipeSchedule != "" || p.Microbatches > 0 || p.Chunks > 0):
		return fmt.Errorf("--schedule, --microbatches and --chunks are said by the schedule of --schedule-file: leave them out")
	}
	_, err := p.cutList()
	return err
}

// cutList is the list of a cut that is one, else nil.
func (p *parallel) cutList() (cut []int, err error) {
	if p.Cut == "" || p.Cut == cutEven || p.Cut == cutMeasured {
		return nil, nil
	}
	for _, text := range strings.Split(p.Cut, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxCut {
			return nil, fmt.Errorf("--cut=%.60s: want %s, %s, or how many blocks each stage has, at least 1, as 3,2,1", p.Cut, cutEven, cutMeasured)
		}
		cut = append(cut, n)
	}
	return cut, nil
}

// maxCut is more blocks than a stage can have, and so few that sums of them are exact.
const maxCut = 1 << 30

// schedule makes the schedule of a pipeline, whose part of a batch it can divide where the number of micro-batches is left to it.
func (p *parallel) schedule(batch int) (*step.Plan, error) {
	if p.ScheduleText != "" {
		s, err := step.Parse(p.ScheduleText)
		if err == nil {
			err = s.Check()
		}
		if err == nil && len(s.Ranks) != p.Pipe {
			err = fmt.Errorf("it has %d ranks, --pipe is %d", len(s.Ranks), p.Pipe)
		}
		if err != nil {
			err = fmt.Errorf("--schedule-file: %w", err)
		}
		return s, err
	}
	kind, rows := cmp.Or(p.PipeSchedule, pipeline.Kind1F1B), batch/p.Data/max(p.Replicas, 1)
	build := func(microbatches int) (*step.Plan, error) {
		s, err := pipeline.NewSchedule(kind, p.Pipe, microbatches, p.Chunks)
		if err != nil {
			err = fmt.Errorf("--pipe, --schedule, --microbatches, --chunks: %w", err)
		}
		return s, err
	}
	if p.Microbatches > 0 {
		return build(p.Microbatches)
	}
	usual := 2 * p.Pipe
	for _, m := range usualMicrobatches(usual) {
		if rows%m != 0 {
			continue
		}
		if s, err := build(m); err == nil {
			return s, nil
		}
	}
	if s, err := build(usual); err != nil {
		return s, err
	}
	return nil, fmt.Errorf("--batch=%d: the schedule %s takes no number of micro-batches that divides a pipeline's %d rows: "+
		"choose a multiple of %d", batch, kind, rows, usual*p.Data*max(p.Replicas, 1))
}

// usualMicrobatches are numbers to try, the best first.
func usualMicrobatches(usual int) (all []int) {
	for m := usual; m <= 4*usual; m++ {
		all = append(all, m)
	}
	for m := usual - 1; m > 0; m-- {
		all = append(all, m)
	}
	return all
}

// suitsPipe returns an error if the learning rate cannot change with the steps of a job, whose pipelines update several times in each.
func (j *job) suitsPipe(s *step.Plan) error {
	if s == nil || s.Weights == step.Flush || j.Schedule == "constant" && j.Warmup == 0 {
		return nil
	}
	if updates := s.Micro / max(s.Every, 1); updates > 1 {
		return fmt.Errorf("--schedule=%s makes %d updates in a step, and each would change the learning rate: leave out --lr-schedule and --warmup",
			s.Name, updates)
	}
	return nil
}

// measuredCut balances the stages of a layout by how long blocks that no devices share take for a micro-batch on device 0. With a crew
// it is a collective call.
func measuredCut(ctx context.Context, backend *xla.Backend, recipe train.Recipe, l layouts.Layout, batch batchFunc, c *crew) ([]int, error) {
	inputs, targets, err := batch(0)
	if err != nil {
		return nil, err
	}
	if m, ok := recipe.Model.(gpt.Parallel); ok {
		recipe.Model = m.Config
	}
	part := func(whole *tensors.Tensor) shapes.Shape {
		dims := slices.Clone(whole.Shape().Dimensions)
		dims[0] /= max(1, l.Replicas) * max(1, l.Data) * l.Plan.Micro
		return shapes.Make(whole.DType(), dims...)
	}
	blocks, err := pipeline.Measure(ctx, backend, 0, recipe, part(inputs), part(targets))
	if err != nil {
		return nil, err
	}
	var costs []float64
	for _, b := range blocks {
		costs = append(costs, (b.Forward + b.InputGrad + b.WeightGrad).Seconds())
	}
	cut, err := pipeline.Balance(costs, nil, math.Inf(1), len(l.Plan.Blocks))
	if err != nil {
		return nil, err
	}
	all, err := shared(c, cut)
	if err != nil {
		return nil, err
	}
	return all[0], nil // each process has measured other times
}
