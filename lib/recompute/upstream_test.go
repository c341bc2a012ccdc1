package recompute_test

import (
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
)

// See docs/upstream.md, "custom gradients before Checkpoint".
func TestUpstreamCustomGradientBeforeCheckpoint(t *testing.T) {
	same := func(_, v *graph.Node) *graph.Node { return v }
	_, err := devicetest.CallOn(devicetest.WithBarriers(), func(in []*graph.Node) []*graph.Node {
		x := graph.IdentityWithCustomGradient(in[0], same).Checkpoint()
		return graph.Gradient(graph.Mul(x, graph.Sin(x)), in[0])
	}, tensors.FromValue(float32(1)))
	if err == nil {
		t.Fatal("upstream has mended custom gradients before Checkpoint: remove the workaround in " +
			"lib/recompute/call.go")
	}
	t.Log(err)
}
