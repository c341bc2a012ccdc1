package pipeline_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
)

// TestMeasure measures blocks, and has a schedule simulated with what a cut of them costs. Nothing is left on the
// device.
func TestMeasure(t *testing.T) {
	backend, inputs, targets := devices(t), shapes.Make(dtypes.Float32, microRows, 4), shapes.Make(dtypes.Float32,
		microRows, 3)
	leaks := devicetest.NoLeaks(t, backend)
	blocks, err := pipeline.Measure(t.Context(), backend, 0, free(), inputs, targets)
	must.Do(t, err)
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
	if want := (blocks[1].Forward + blocks[2].Forward +
		blocks[3].Forward).Seconds(); math.Abs(costs.Forward[1]-want) > 1e-12 {
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
	must.Refuse(t, "cancelled", err, "cancel")
	_, err = pipeline.Measure(t.Context(), backend, deviceCount, free(), inputs, targets)
	must.Refuse(t, "no such device", err, "device 8")
	_, err = pipeline.Measure(t.Context(), nil, 0, free(), inputs, targets)
	must.Refuse(t, "no backend", err, "the backend is nil")
	_, err = pipeline.Measure(t.Context(), backend, 0, free(), shapes.Make(dtypes.Float32, 2, 5), targets)
	must.Refuse(t, "another width", err, `block "in"`)
}

// TestPace has each pass of a stage take a time of its own: all of them are asked for, none takes less, and all ranks
// are in a pass at once, on any number of cores.
func TestPace(t *testing.T) {
	const ranks, m, unit = 4, 4, time.Millisecond
	backend, r, batches := devices(t), deep(false), toy.Batches(m*microRows)
	for _, kind := range []pipeline.Kind{pipeline.Kind1F1B, pipeline.KindZBH1, pipeline.KindInterleaved} {
		for _, fused := range []bool{false, true} {
			name, s, recorder := fmt.Sprintf("%s, fused %v", kind, fused), scheduled(t, kind, ranks, m), trace.New()
			var mu sync.Mutex
			asked := map[step.Op]bool{}
			var all sync.WaitGroup // ranks that have to come to the end of the first ramp
			all.Add(ranks)
			pace := func(op step.Op) time.Duration {
				mu.Lock()
				first := !asked[op]
				asked[op] = true
				mu.Unlock()
				if op.Kind == step.Forward && op.Block < ranks && op.Block+op.Micro == ranks-1 {
					if first {
						all.Done()
					}
					all.Wait() // for ever, unless all ranks are here
				}
				return time.Duration(step.Equal().Time(op) * float64(unit))
			}
			trained(t, backend, r, pipeline.Options{Schedule: s, Fused: fused, Pace: pace, Trace: recorder}, 1, batches)
			want := map[step.Op]bool{}
			for rank, list := range s.Ranks {
				var least, took time.Duration
				for _, op := range list {
					least += time.Duration(step.Equal().Time(op) * float64(unit))
					switch {
					case op.Kind == step.Update:
						want[step.Op{Kind: step.Update, Unit: -1, Micro: m - 1}] = true
					case op.Kind == step.Backward && !fused:
						for _, op.Kind = range []step.Kind{step.InputGrad, step.WeightGrad} {
							want[op] = true
						}
					default:
						want[op] = true
					}
				}
				for _, span := range trace.Of(recorder.Spans(), rank, trace.Compute) {
					took += span.End - span.Start
				}
				if took < least {
					t.Errorf("%s: the passes of rank %d took %v, less than %v", name, rank, took, least)
				}
			}
			if !maps.Equal(asked, want) {
				t.Errorf("%s: asked for %v, want %v", name, asked, want)
			}
		}
	}
}
