package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
)

// synchronous are the kinds that compute what one device would, with one copy of each stage.
func synchronous() (kinds []schedule.Kind) {
	for _, kind := range schedule.Kinds() {
		if kind.Synchronous() && kind != schedule.KindDualPipe {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// TestSchedules trains with every synchronous schedule, on 1 to 6 ranks, of one stage and of two: all give the same bits, which are
// one device's within a bound. Two blocks have a parameter in common, and one has one that nothing uses. DualPipe, in which each half
// of the batch has its own copy of a stage, has the bits of two pipelines with half of the batch each, but where a sum is of more
// than two gradients.
func TestSchedules(t *testing.T) {
	const steps, m = 3, 12
	e, batches := tiedEngine(t), toyBatches(m*microRows)
	var first *result
	train := func(o pipeline.Options) result {
		return training{engine: e, options: o, steps: steps, batches: batches}.run(t)
	}
	for ranks := 1; ranks <= 6; ranks++ {
		for _, kind := range synchronous() {
			s, err := schedule.New(kind, ranks, m, 0)
			if err != nil {
				continue // not for so many ranks
			}
			got := train(pipeline.Options{Schedule: s})
			if first == nil {
				first = &got
			}
			if name := got.differ(*first); name != "" {
				t.Errorf("%s on %d ranks: %s has other bits", kind, ranks, name)
			}
			if fmt.Sprint(got.losses) != fmt.Sprint(first.losses) {
				t.Errorf("%s on %d ranks: losses %v, want %v", kind, ranks, got.losses, first.losses)
			}
		}
	}
	one := alone(t, tiedRecipe(), steps, batches)
	off := first.apart(t, one)
	t.Logf("%g units from one device", off)
	if !(off <= bound) {
		t.Errorf("%g units from one device", off)
	}
	for _, ranks := range []int{2, 4, 6} {
		dual := train(pipeline.Options{Schedule: newSchedule(t, schedule.KindDualPipe, ranks, m, 0)})
		two := train(pipeline.Options{Schedule: newSchedule(t, schedule.KindGPipe, ranks, m/2, 0), Replicas: 2})
		if name := dual.differ(two); name != "" {
			t.Logf("dualpipe on %d ranks: %s has other bits than two pipelines, %g units", ranks, name, dual.apart(t, two))
		}
		for what, got := range map[string]result{"dualpipe": dual, "two pipelines": two} {
			if off := got.apart(t, one); !(off <= bound) {
				t.Errorf("%s on %d ranks: %g units from one device", what, ranks, off)
			}
		}
	}
}

var _ = toy.Batch
var _ train.Recipe
