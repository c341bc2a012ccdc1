package pipeline_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

// TestMeasure measures blocks, and has a schedule simulated with what a cut of them costs. Nothing is left on the
// device.
func TestMeasure(t *testing.T) {
	backend, inputs, targets := devices(t), shapes.Make(dtypes.Float32, microRows, 4), shapes.Make(dtypes.Float32, microRows, 3)
	leaks := devicetest.NoLeaks(t, backend)
	blocks, err := pipeline.Measure(t.Context(), backend, 0, free(), inputs, targets)
	check(t, err)
	leaks()
	for i, b := range free().Model.(chain.Model).Blocks {
		c := blocks[i]
		if c.Name != b.Name || c.Weights != b.Params.Bytes() || c.Saved < inputs.ByteSize() {
			t.Errorf("block %s: %+v", b.Name, c)
		}
		if c.Forward <= 0 || c.Backward <= 0 || c.WeightGrad <= 0 || (c.InputGrad > 0) != (i > 0) {
			t.Errorf("block %s: %+v", b.Name, c)
		}
	}
	twin := blocks[1]
	if twin.Name = "h1"; len(blocks) != 4 || blocks[2] != twin {
		t.Errorf("blocks that are alike: %+v and %+v", blocks[1], blocks[2])
	}
	costs := pipeline.Costs(blocks, []int{1, 3})
	if want := (blocks[1].Forward + blocks[2].Forward + blocks[3].Forward).Seconds(); math.Abs(costs.Forward[1]-want) > 1e-12 {
		t.Errorf("the forward pass of the second stage costs %g, want %g", costs.Forward[1], want)
	}
	if costs.Activation[0] != float64(blocks[0].Saved) || costs.InputGrad[0] != 0 {
		t.Errorf("the first stage: %+v", costs)
	}
	if line := simulated(t, scheduled(t, pipeline.KindZBH1, 2, 4), costs); !(line.Makespan > 4*costs.Forward[1]) {
		t.Errorf("simulated: %g", line.Makespan)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = pipeline.Measure(cancelled, backend, 0, free(), inputs, targets)
	checkError(t, "cancelled", err, "cancel")
	_, err = pipeline.Measure(t.Context(), backend, deviceCount, free(), inputs, targets)
	checkError(t, "no such device", err, "device 8")
	_, err = pipeline.Measure(t.Context(), nil, 0, free(), inputs, targets)
	checkError(t, "no backend", err, "the backend is nil")
	_, err = pipeline.Measure(t.Context(), backend, 0, free(), shapes.Make(dtypes.Float32, 2, 5), targets)
	checkError(t, "another width", err, `block "in"`)
}

// TestPace has passes take a time of their own, which overlap on any number of cores: a step takes at least as long as
// its simulation, and not much longer.
func TestPace(t *testing.T) {
	const m, unit = 4, 5 * time.Millisecond
	backend, r, batches := devices(t), deep(false), toyBatches(m*microRows)
	for _, kind := range []pipeline.Kind{pipeline.Kind1F1B, pipeline.KindZBH1, pipeline.KindInterleaved} {
		for _, fused := range []bool{false, true} {
			s := scheduled(t, kind, 4, m)
			run := start(t, backend, r, pipeline.Options{Schedule: s, Fused: fused, Pace: func(op step.Op) time.Duration {
				return time.Duration(step.Equal().Took(op) * float64(unit))
			}})
			var all result
			all.train(t, run, 1, batches) // which compiles
			begin := time.Now()
			all.train(t, run, 2, batches)
			took, want := time.Since(begin), time.Duration(simulated(t, s, step.Equal()).Makespan*float64(unit))
			if name := fmt.Sprintf("%s, fused %v", kind, fused); took < want || took > 4*want {
				t.Errorf("%s: a step takes %v, the simulation says %v", name, took, want)
			}
			check(t, run.Close())
		}
	}
}
