package main

import (
	"cmp"
	"fmt"

	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

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
