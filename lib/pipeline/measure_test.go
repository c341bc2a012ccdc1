package pipeline_test

import (
	"context"
	"math"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// TestMeasure measures blocks, and has a schedule simulated with what a cut of them costs. Nothing is left on the device.
func TestMeasure(t *testing.T) {
	e, inputs, targets := freeEngine(t), shapes.Make(dtypes.Float32, microRows, 4), shapes.Make(dtypes.Float32, microRows, 3)
	if _, err := e.Measure(t.Context(), 0, inputs, targets); err != nil { // which compiles
		t.Fatal(err)
	}
	leaks := devicetest.NoLeaks(t, devices())
	blocks, err := e.Measure(t.Context(), 0, inputs, targets)
	if err != nil {
		t.Fatal(err)
	}
	leaks()
	for i, b := range freeChain().Blocks {
		c := blocks[i]
		if c.Name != b.Name || c.Weights != b.Params.Bytes() || c.Stash < inputs.ByteSize() {
			t.Errorf("block %s: %+v", b.Name, c)
		}
		if c.Forward <= 0 || c.Backward <= 0 || c.WeightGrad <= 0 || (c.InputGrad > 0) != (i > 0) {
			t.Errorf("block %s: %+v", b.Name, c)
		}
	}
	twin := blocks[1]
	if twin.Name = "h1"; len(blocks) != 4 || blocks[2] != twin {
		t.Errorf("equal blocks: %+v and %+v", blocks[1], blocks[2])
	}
	costs := pipeline.Costs(blocks, []int{1, 3})
	if want := (blocks[1].Forward + blocks[2].Forward + blocks[3].Forward).Seconds(); math.Abs(costs.Forward[1]-want) > 1e-12 {
		t.Errorf("the forward pass of the second stage costs %g, want %g", costs.Forward[1], want)
	}
	if costs.Activation[0] != float64(blocks[0].Stash) || costs.InputGrad[0] != 0 {
		t.Errorf("the first stage: %+v", costs)
	}
	timeline, err := newSchedule(t, schedule.KindZBH1, 2, 4, 0).Simulate(costs)
	if err != nil || !(timeline.Makespan > 4*costs.Forward[1]) {
		t.Errorf("simulated: %g, %v", timeline.Makespan, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Measure(cancelled, 0, inputs, targets); err == nil {
		t.Error("cancelled: no error")
	}
	_, err = e.Measure(t.Context(), deviceCount, inputs, targets)
	checkError(t, "no such device", err, "device 4 of 4")
	_, err = e.Measure(t.Context(), 0, shapes.Make(dtypes.Float32, 2, 5), targets)
	checkError(t, "another width", err, `block "in"`)
}
