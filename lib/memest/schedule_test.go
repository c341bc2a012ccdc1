package memest_test

import (
	"testing"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/pipeline"
)

// TestInFlight compares the activations in flight with the schedules of lib/pipeline. For ZB-V with too few
// micro-batches to fill the pipeline, inFlight is an upper bound.
func TestInFlight(t *testing.T) {
	compared := map[memest.Schedule]int{}
	for _, kind := range memest.Schedules() {
		for v := 1; v <= 3 && (v == 1 || kind == memest.Interleaved); v++ {
			for d := 1; d <= 8; d++ {
				for m := 1; m <= 24; m++ {
					s, err := pipeline.NewSchedule(pipeline.Kind(kind), d, m, v)
					if err != nil {
						continue // the schedule does not exist in these sizes
					}
					for r, peak := range s.PeakActivations() {
						compared[kind]++
						n, of := memest.InFlight(memest.Parallelism{Pipeline: d, Schedule: kind, Chunks: v}, r, m)
						stages := int64(len(s.On(r))) // of the device
						if n*stages != int64(peak)*of &&
							!(kind == memest.ZBV && m < 2*d-1 && n*stages > int64(peak)*of) {
							t.Errorf("%s, %d chunks: device %d of %d holds %d/%d of %d micro-batches, the schedule's "+
								"%d of %d stages", kind, v, r, d, n, of, m, peak, stages)
						}
					}
				}
			}
		}
	}
	for _, kind := range memest.Schedules() {
		if compared[kind] < 100 {
			t.Errorf("%s was compared %d times", kind, compared[kind])
		}
	}
}
