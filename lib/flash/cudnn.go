package flash

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
)

// cudnn returns cuDNN's output, whose gradient GoMLX knows.
func (c call) cudnn() *graph.Node {
	out, _ := graph.BackendFusedScaledDotProductAttention(c.q, c.k, c.v, compute.AttentionAxesLayoutBSHD,
		&compute.ScaledDotProductAttentionConfig{Scale: c.Scale, Causal: c.Causal})
	return out
}
