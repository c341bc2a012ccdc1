package main

import (
	"math"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/pipeline"
)

// TestPipelineSimulated compares a step with the closed form of Narayanan et al. 2021, "Efficient Large-Scale Language
// Model Training on GPU Clusters Using Megatron-LM", §2.2: m+(p−1)/v passes of a rank's share, forward and backward.
func TestPipelineSimulated(t *testing.T) {
	for kind, chunks := range map[pipeline.Kind]float64{pipeline.KindGPipe: 1, pipeline.Kind1F1B: 1,
		pipeline.KindInterleaved: 2} {
		c := pipelineCase{pipelineSize{Layers: 8, Microbatches: 8, ForwardMS: 5}, kind, pipelineRanks,
			pipelineRanks * int(chunks)}
		plan := must.Get(c.schedule())(t)
		line := must.Get(plan.Simulate(c.costs()))(t)
		if want := 2 * 15 * (8 + 3/chunks); math.Abs(line.Makespan-want) > 1e-9 {
			t.Errorf("%s takes %v ms, want %v", kind, line.Makespan, want)
		}
	}
}
