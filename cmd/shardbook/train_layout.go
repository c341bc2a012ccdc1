package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"

	layouts "github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
)

// layoutSettings are those of layouts alone, which compose pipelines, ZeRO and devices that share layers or sequences.
type layoutSettings struct {
	Replicas     int       `json:"replicas,omitempty"` // 0 is 1
	DeviceMemory byteCount `json:"-"`                  // which a layout must fit by the estimate; 0 is any
}

func (s *layoutSettings) flags(f *pflag.FlagSet) {
	f.IntVar(&s.Replicas, "replicas", s.Replicas, "where several of --pipe, --zero, --tensor and --seq-parallel are given, how many times all of that is there, each with its part of "+
		"every batch; gradients go between them by messages, and ZeRO does not shard over them (default 1; with --engine mpi, as many as there are processes for)")
	f.Var(&s.DeviceMemory, "device-memory", "where several of these are given, the bytes of a device, as 80GB: a layout that needs more by the estimate is refused (default any)")
}

// composed says whether the devices are those of a layout.
func (p *parallel) composed() bool {
	n := 0
	for _, is := range []bool{p.Pipe > 0, p.Zero > 0, p.sharing() != "", p.Replicas > 0} {
		if is {
			n++
		}
	}
	return n > 1
}

// layout is how a job's devices share it, where they do so in several ways.
func (j *job) layout() (layouts.Layout, error) {
	ring, ulysses, err := j.Parallel.degrees(j.keyHeads())
	if err != nil {
		return layouts.Layout{}, err
	}
	return j.Parallel.layout(j.Batch, ring, ulysses)
}

// layout is that of devices of which so many are in a ring and in a group of Ulysses.
func (p *parallel) layout(batch, ring, ulysses int) (layouts.Layout, error) {
	l := layouts.Layout{Replicas: p.Replicas, Pipe: p.Pipe, Data: p.Data, Ring: ring, Ulysses: ulysses, Tensor: p.Tensor,
		TensorSequence: p.TensorSequence, ZeRO: p.Zero, Microbatches: p.Accumulate, Recompute: p.RecomputeStages}
	if p.Pipe == 0 {
		return l, nil
	}
	s, err := p.schedule(batch)
	if err != nil {
		return l, err
	}
	l.Schedule, l.Chunks, l.Microbatches = cmp.Or(p.PipeSchedule, pipeline.Kind1F1B), p.Chunks, s.Micro
	l.Cut, err = p.cutList()
	return l, err
}

// validateComposed is validate where devices share a job in several ways.
func (p *parallel) validateComposed(batch int) error {
	for _, f := range []struct {
		name, why string
		given     bool
	}{
		{"bucket-bytes", "which reduces the gradients of each block as they are", p.BucketBytes > 0},
		{"every", "whose devices are in step", p.Every > 1},
		{"servers", "which has no servers", p.Servers > 0},
		{"compress-gradients", "which sends them as they are", p.Compress != ""},
		{p.zeroSettings.given(), "whose ZeRO has no options", p.zeroSettings.given() != ""},
		{"schedule-file", "whose schedules have names", p.ScheduleText != ""},
		{"cut", "whose stages are not measured", p.Cut == cutMeasured},
		{"accumulate", "whose pipeline has --microbatches for that", p.Pipe > 0 && p.Accumulate > 1},
	} {
		if f.given {
			return fmt.Errorf("--%s and a layout of several ways (%s), %s: leave one of them out", f.name, p.ways(), f.why)
		}
	}
	if p.Sync != syncRanks {
		return fmt.Errorf("--sync=%s and a layout of several ways (%s): leave out --sync", p.Sync, p.ways())
	}
	if err := p.validateSequence(); err != nil {
		return err
	}
	rows := p.Data * max(p.Replicas, 1) * p.Accumulate
	switch flag := p.pipeSettings.given(); {
	case p.Pipe > 0:
		if err := p.validateStages(batch); err != nil {
			return err
		}
	case flag != "":
		return fmt.Errorf("--%s: there is no pipeline: leave it out, or add --pipe, the number of its stages", flag)
	case batch%rows != 0:
		return fmt.Errorf("--batch=%d cannot be divided into equal parts for --data, --replicas and --accumulate: choose a multiple of %d", batch, rows)
	}
	l, err := p.layout(batch, max(p.SeqParallel, 1), 1) // how sequences are shared makes no difference here
	if err != nil {
		return err
	}
	return inFlags(l.Validate())
}

// ways are the flags that make a layout.
func (p *parallel) ways() (text string) {
	for _, f := range []struct {
		name  string
		value int
	}{{"pipe", p.Pipe}, {"zero", p.Zero}, {"tensor", p.Tensor}, {"seq-parallel", p.SeqParallel}, {"replicas", p.Replicas}} {
		if f.value > 0 {
			text += fmt.Sprintf(", --%s=%d", f.name, f.value)
		}
	}
	return text[min(len(text), 2):]
}

// byProcess is the number that the processes of --engine mpi say where nobody else does, and its flag: of layouts the replicas, since
// all else is in each process.
func (p *parallel) byProcess() (flag string, n *int) {
	if p.sharing() != "" || p.composed() {
		return "replicas", &p.Replicas
	}
	return "data", &p.Data
}
