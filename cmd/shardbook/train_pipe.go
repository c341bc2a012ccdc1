package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/pipeline"
)

// Ways to cut a model into stages besides a list.
const (
	cutEven     = "even"
	cutMeasured = "measured"
)

// pipeSettings say how a model is spread over the ranks of a pipeline.
type pipeSettings struct {
	Pipe            int           `json:"pipe,omitempty"` // ranks; 0 is no pipeline
	PipeSchedule    pipeline.Kind `json:"pipe_schedule,omitempty"`
	Microbatches    int           `json:"microbatches,omitempty"` // 0 is for the schedule and the batch to say
	Chunks          int           `json:"chunks,omitempty"`       // 0 is the schedule's
	Cut             string        `json:"cut,omitempty"`
	RecomputeStages bool          `json:"recompute_stages,omitempty"`
	ScheduleText    string        `json:"pipe_schedule_text,omitempty"` // of a schedule that was read from a file
	file            string        // to read it from
}

func (p *pipeSettings) flags(f *pflag.FlagSet) {
	f.IntVar(&p.Pipe, "pipe", p.Pipe, "devices of a pipeline, each of which has some of the model's blocks; 0 is no pipeline")
	f.StringVar((*string)(&p.PipeSchedule), pipelineFlag, string(p.PipeSchedule), "see --schedule")
	f.StringVar(&p.file, "schedule-file", p.file, "in place of --schedule, a file that has one, as CSV (see shardbook schedule) "+
		"or in this project's text")
	f.IntVar(&p.Microbatches, "microbatches", p.Microbatches, "with --pipe, parts into which each pipeline divides its rows of a batch "+
		"(default the smallest that is at least twice --pipe, divides them and suits the schedule; else the largest below)")
	f.IntVar(&p.Chunks, "chunks", p.Chunks, "with --pipe, stages that a device has, of the schedules that let one choose (default 2)")
	f.StringVar(&p.Cut, "cut", p.Cut, fmt.Sprintf("with --pipe, how many blocks each stage has, the embedding and the head among them, "+
		"as 3,2,1; or %s; or %s, for stages that take about equally long on a device (default %[1]s)", cutEven, cutMeasured))
	f.BoolVar(&p.RecomputeStages, "recompute-stages", p.RecomputeStages, "with --pipe, keep of each micro-batch only the inputs of stages, "+
		"and compute stages again in the backward pass")
}

// given is a flag that was given and that only pipelines know, or "".
func (p *pipeSettings) given() string {
	for _, f := range []struct {
		name  string
		given bool
	}{{"schedule", p.PipeSchedule != ""}, {"schedule-file", p.ScheduleText != ""}, {"microbatches", p.Microbatches != 0},
		{"chunks", p.Chunks != 0}, {"cut", p.Cut != ""}, {"recompute-stages", p.RecomputeStages}} {
		if f.given {
			return f.name
		}
	}
	return ""
}

func (p *pipeSettings) normalize() {
	p.PipeSchedule = pipeline.Kind(strings.ToLower(string(p.PipeSchedule)))
	p.Cut = strings.ToLower(strings.ReplaceAll(p.Cut, " ", ""))
}

// readFile reads the schedule that a flag names a file of. The file says how many ranks there are.
func (p *pipeSettings) readFile() error {
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

// cutList is the list of a cut that is one, else nil.
func (p *pipeSettings) cutList() (cut []int, err error) {
	if p.Cut == "" || p.Cut == cutEven || p.Cut == cutMeasured {
		return nil, nil
	}
	for _, text := range strings.Split(p.Cut, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("--cut=%.60s: want %s, %s, or how many blocks each stage has, at least 1, as 3,2,1", p.Cut, cutEven, cutMeasured)
		}
		cut = append(cut, n)
	}
	return cut, nil
}
