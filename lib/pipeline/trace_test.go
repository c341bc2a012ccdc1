package pipeline_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/trace"
)

// TestTrace: a rank's spans of computing are its actions in their order, named as the schedule has them; those of what ranks have in
// common name the ranks of a pipeline; and the counters count what is kept.
func TestTrace(t *testing.T) {
	const m, replicas = 4, 2
	for _, kind := range []schedule.Kind{schedule.Kind1F1B, schedule.KindZBV, schedule.KindDualPipe} {
		s, recorder := newSchedule(t, kind, 2, m, 0), trace.New()
		o := pipeline.Options{Schedule: s, Replicas: replicas, Trace: recorder}
		training{engine: tiedEngine(t), options: o, steps: 1, batches: toyBatches(replicas * m * microRows)}.run(t)
		got := recorder.Take()
		peaks := s.PeakActivations()
		for rank := range 2 * replicas {
			name := fmt.Sprintf("%s, rank %d", kind, rank)
			var want []string
			for _, a := range s.Ranks[rank%2] {
				want = append(want, a.String())
			}
			compute := trace.Of(got.Spans, rank, trace.Compute)
			if names := spanNames(compute); !slices.Equal(names, want) {
				t.Errorf("%s: computes %v, want %v", name, names, want)
			}
			for _, span := range trace.Of(got.Spans, rank, trace.Reduce) {
				last := compute[len(compute)-1]
				if span.Start < last.Start || span.End > last.End {
					t.Errorf("%s: %s is not in the last update", name, span.Name)
				}
			}
			names := spanNames(trace.Of(got.Spans, rank, trace.Reduce))
			if kind != schedule.KindZBV && !slices.Contains(names, "gradients of ranks [0 1]") { // there one rank has both blocks
				t.Errorf("%s: adds up %q", name, names)
			}
			if most := highest(got, rank, "stashed activations"); most != int64(peaks[rank%2]) {
				t.Errorf("%s: keeps %d micro-batches, want %d", name, most, peaks[rank%2])
			}
			if n := len(got.Counters); n == 0 || lastOf(got, rank, "stashed activations") != 0 {
				t.Errorf("%s: keeps micro-batches at the end of a step", name)
			}
			if most := highest(got, rank, "weight versions"); most != 1 {
				t.Errorf("%s: has %d versions of the weights", name, most)
			}
		}
	}
}

// lastOf is the last value of a rank's counter.
func lastOf(t trace.Trace, rank int, name string) (last int64) {
	for _, c := range t.Counters { // in the order of time
		if c.Rank == rank && c.Name == name {
			last = c.Value
		}
	}
	return last
}
