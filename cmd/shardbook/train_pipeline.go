package main

import (
	"fmt"
	"io"
	"time"

	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
)

// pipeResult is what --json prints of a pipeline.
type pipeResult struct {
	Schedule     string `json:"schedule"`
	Ranks        int    `json:"ranks"`
	Stages       int    `json:"stages"`
	Microbatches int    `json:"microbatches"`
	Cut          []int  `json:"cut"` // blocks of each stage
	// Bubble is the fraction of a step in which a rank is idle, if the forward pass and both parts of the backward pass
	// took equally long.
	Bubble float64 `json:"bubble"`
	// Idle is the mean fraction of the traced time in which a rank was idle; nil without a trace.
	Idle *float64 `json:"idle,omitempty"`
	// PeakActivations is, for each rank, the largest number of micro-batches whose activations it holds at once,
	// counted once for each of its stages.
	PeakActivations []int `json:"peak_activations,omitempty"`
}

// pipelineResult describes the pipelines of the run; nil if there are none.
func (t *training) pipelineResult() (*pipeResult, error) {
	if t.job.Parallel.Pipe == 0 {
		return nil, nil
	}
	s, cut := t.run.plan.Layout().Plan, t.run.plan.Layout().Cut
	r := &pipeResult{Schedule: s.Name, Ranks: len(s.Ranks), Stages: len(s.Blocks), Microbatches: s.Micro, Cut: cut,
		PeakActivations: s.PeakActivations()}
	timeline, err := s.Simulate(step.Equal())
	if err != nil {
		return nil, err
	}
	r.Bubble = timeline.Bubble
	if t.traced != nil {
		r.Idle = &t.traced.idle
	}
	return r, nil
}

// print writes the result as text.
func (r *pipeResult) print(out io.Writer) {
	if r == nil {
		return
	}
	fmt.Fprintf(out, "pipeline      %s on %d devices, %d micro-batches, stages of %s blocks\n",
		r.Schedule, r.Ranks, r.Microbatches, join(r.Cut))
	fmt.Fprintf(out, "bubble        %.0f%% of a step if all passes took equally long", 100*r.Bubble)
	if r.Idle != nil {
		fmt.Fprintf(out, "; in the trace ranks were idle for %.0f%% of the time", 100**r.Idle)
	}
	fmt.Fprintln(out)
	fmt.Fprintf(out, "activations   of at most %s micro-batches are saved at once on device 0, 1, …\n",
		join(r.PeakActivations))
}

// idle is the mean fraction of a trace's time in which a rank waited, had not begun or had ended.
func idle(tr trace.Trace) float64 {
	begin, end := tr.Range()
	ranks := ranksOf(tr)
	var nothing time.Duration
	for rank := range ranks {
		var own trace.Trace
		for _, s := range tr.Spans {
			if s.Rank == rank {
				own.Spans = append(own.Spans, s)
			}
		}
		first, last := own.Range()
		nothing += first - begin + end - last + trace.Busy(trace.Of(own.Spans, rank, trace.Wait))
	}
	all := time.Duration(len(ranks)) * (end - begin)
	if all == 0 {
		return 0
	}
	return float64(nothing) / float64(all)
}
