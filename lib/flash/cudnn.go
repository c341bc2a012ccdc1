package flash

import (
	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
)

// cudnn returns cuDNN's output, whose gradient GoMLX knows, and the log-sum-exp, which is computed only if it is used.
func (c call) cudnn() (out, logSumExp *graph.Node) {
	out, _ = graph.BackendFusedScaledDotProductAttention(c.q, c.k, c.v, compute.AttentionAxesLayoutBSHD,
		&compute.ScaledDotProductAttentionConfig{Scale: c.Scale, Causal: c.Causal})
	_, m, d := c.with(mapped(c.inputs(), graph.StopGradient)).blocksForward(c.q.DType())
	return out, graph.StopGradient(logSumExpOf(m, d))
}
