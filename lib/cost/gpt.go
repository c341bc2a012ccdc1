package cost

import (
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/gpt"
)

// FromGPT returns the architecture of a configuration of lib/gpt. It ignores Matmul, Recompute and Compress. Of the
// buffers of a router only the bias counts as a parameter, not the loads, which are statistics.
func FromGPT(c gpt.Config) Model {
	m := Model{
		Layers: c.Layers, Width: c.Width, Heads: c.Heads, KVHeads: c.KVHeads, Hidden: c.Hidden, Vocab: c.Vocab,
		Context: c.Seq,
		Gated:   c.Gated, Tied: c.Tied, QKVBias: !c.NoBias, OutBias: !c.NoBias, MLPBias: !c.NoBias,
		NormBias:   c.Norm != gpt.RMSNorm,
		Activation: "gelu",
	}
	if c.Positions != gpt.Rotary {
		m.PositionRows = c.Seq
	}
	if c.Gated {
		m.Activation = "silu"
	}
	if c.Activation == gpt.ReLU {
		m.Activation = "relu"
	}
	if c.QKNorm {
		m.QKNorm = "head"
	}
	if e := c.Experts; e.Experts > 0 {
		m.Experts, m.ExpertsPerToken, m.ExpertHidden = e.Experts, e.PerToken, e.Hidden
		m.SharedExperts, m.DenseLayers = c.SharedExperts, c.DenseLayers
		m.RouterBias, m.NoExpertBias = e.Router == expert.Sigmoid, !c.NoBias
	}
	return m
}
