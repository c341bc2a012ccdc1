package main

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// devices is how many are needed.
func (p *parallel) devices() int {
	return max(p.Replicas, 1) * max(p.Pipe, 1) * p.devicesOfRank()
}

// devicesOfRank is how many a rank of a layout drives.
func (p *parallel) devicesOfRank() int { return p.Data * max(p.Tensor, 1) * max(p.SeqParallel, 1) }

// enough returns an error if there cannot be so many devices.
func (p *parallel) enough() error {
	switch {
	case p.Data < 1 || p.Data > xla.MaxDevices:
		return fmt.Errorf("--data=%d: want 1 to %d devices", p.Data, xla.MaxDevices)
	case p.Pipe < 0 || p.Pipe > xla.MaxDevices:
		return fmt.Errorf("--pipe=%d: want 1 to %d devices, or 0 for no pipeline", p.Pipe, xla.MaxDevices)
	case p.Tensor < 0 || p.Tensor > xla.MaxDevices:
		return fmt.Errorf("--tensor=%d: want 2 to %d devices, or 0 or 1 to share no layers", p.Tensor, xla.MaxDevices)
	case p.SeqParallel < 0 || p.SeqParallel > xla.MaxDevices:
		return fmt.Errorf("--seq-parallel=%d: want 2 to %d devices, or 0 or 1 to share no sequences", p.SeqParallel, xla.MaxDevices)
	case p.Replicas < 0 || p.Replicas > xla.MaxDevices:
		return fmt.Errorf("--replicas=%d: want 1 to %d", p.Replicas, xla.MaxDevices)
	case p.devices() > xla.MaxDevices && p.composed():
		return fmt.Errorf("--data=%d and %s multiply to %d devices: want at most %d in all", p.Data, p.ways(), p.devices(), xla.MaxDevices)
	case p.devices() > xla.MaxDevices && p.sharing() != "":
		return fmt.Errorf("--data, --tensor and --seq-parallel multiply to %d devices: want at most %d in all", p.devices(), xla.MaxDevices)
	case p.devices() > xla.MaxDevices:
		return fmt.Errorf("--data=%d pipelines of --pipe=%d devices: want at most %d devices in all", p.Data, p.Pipe, xla.MaxDevices)
	}
	return nil
}

// validatePipe is validate where there are pipelines.
func (p *parallel) validatePipe(batch int) error {
	for _, f := range []struct {
		name, instead string
		given         bool
	}{
		{p.zeroSettings.given(), "", p.zeroSettings.given() != ""},
		{"accumulate", ", which has --microbatches for that", p.Accumulate > 1}, {"bucket-bytes", "", p.BucketBytes > 0},
		{"every", "", p.Every > 1}, {"servers", "", p.Servers > 0}, {"compress-gradients", "", p.Compress != ""},
	} {
		if f.given {
			return fmt.Errorf("--%s and --pipe=%d%s: leave one of them out", f.name, p.Pipe, f.instead)
		}
	}
	if p.Sync != syncRanks {
		return fmt.Errorf("--sync=%s and --pipe=%d, whose devices are ranks: leave out --sync, or choose --sync %s", p.Sync, p.Pipe, syncRanks)
	}
	return p.validateStages(batch)
}

// validateStages is validate for the schedule and the stages of a pipeline.
func (p *parallel) validateStages(batch int) error {
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
	if _, err := p.cutList(); err != nil {
		return err
	}
	s, err := p.schedule(batch)
	if err != nil {
		return err
	}
	if parts := p.Data * max(p.Replicas, 1); batch%parts != 0 || batch/parts%s.Micro != 0 {
		return fmt.Errorf("--batch=%d cannot be divided into equal parts for --data %d pipelines with %d micro-batches each: "+
			"choose a multiple of their product", batch, parts, s.Micro)
	}
	return nil
}

// suitsPipe returns an error if the job cannot be done by its pipelines, where there are any.
func (j *job) suitsPipe(r train.Recipe) error {
	p := j.Parallel
	if p.Pipe == 0 {
		return nil
	}
	s, err := p.schedule(j.Batch)
	if err != nil {
		return err
	}
	model, err := chain.Of(r.Model)
	if err != nil {
		return inFlags(err)
	}
	n := len(model.Blocks)
	if _, err := pipeline.Even(n, len(s.Blocks)); err != nil {
		return fmt.Errorf("--pipe=%d: %d blocks, the embedding and the head among them, cannot be the %d stages of the schedule %s: "+
			"use more --layers, or less --pipe or --chunks", p.Pipe, n, len(s.Blocks), s.Name)
	}
	if cut, _ := p.cutList(); cut != nil && (len(cut) != len(s.Blocks) || sumUpTo(cut, n+1) != n) {
		return fmt.Errorf("--cut=%.60s: want a number of blocks for each of the %d stages of the schedule %s, %d in all: "+
			"the embedding, --layers and the head", p.Cut, len(s.Blocks), s.Name, n)
	}
	if s.Weights == step.Flush {
		return nil
	}
	return j.suitsAsync(r, s)
}

// sumUpTo is the sum of numbers, or a limit that it would exceed.
func sumUpTo(numbers []int, limit int) (sum int) {
	for _, n := range numbers {
		sum = min(limit, sum+min(limit, n))
	}
	return sum
}

// suitsAsync is suitsPipe for a schedule whose ranks do not wait for each other's updates.
func (j *job) suitsAsync(r train.Recipe, s *step.Plan) error {
	way, updates := fmt.Sprintf("--schedule=%s", s.Name), s.Micro/max(s.Every, 1)
	switch {
	case r.Clip > 0:
		return fmt.Errorf("%s: each rank updates at its own time, and none knows the norm of all gradients: leave out --clip", way)
	case len(r.Policy().Scaling.States()) > 0:
		return fmt.Errorf("%s: there is no loss scale that all ranks agree on: choose --loss-scale none, or --precision bf16", way)
	case j.Model.Tied && len(s.Ranks) > 1:
		return fmt.Errorf("%s: the first and the last rank would have to update the token table together: leave out --tied", way)
	case (j.Schedule != "constant" || j.Warmup > 0) && updates > 1:
		return fmt.Errorf("%s makes %d updates in a step, and each would change the learning rate: leave out --lr-schedule and --warmup",
			way, updates)
	}
	return nil
}
