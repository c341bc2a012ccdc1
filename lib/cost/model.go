// Package cost computes what training a decoder-only Transformer costs, before anything runs: parameters, FLOPs,
// training time, the time of communication on a cluster, and whether computation hides it.
//
// A [Model] is an architecture: of a published model ([Preset]), of a Hugging Face config.json ([ReadConfig]) or of
// lib/gpt ([FromGPT]). [Model.Params] counts its parameters, [Model.FLOPs] its FLOPs. [Hardware] and [Cluster] describe
// devices and links; [TrainingTime], [Utilization] (MFU), [Link] and [Rates] convert between counts and time.
//
// Parameters are exact integers; FLOPs, bytes and times are float64. Bandwidths are bytes a second in one direction.
package cost

import (
	"cmp"
	"fmt"
	"slices"
)

// Model is the architecture of a decoder-only Transformer: embeddings, blocks of attention and MLP with a normalization
// before each, a last normalization, and the head.
type Model struct {
	Name string `json:"name,omitempty"`

	Layers    int `json:"layers"`               // blocks
	Width     int `json:"width"`                // model dimension, h
	Heads     int `json:"heads"`                // query heads, a
	KVHeads   int `json:"kv_heads,omitempty"`   // key and value heads; defaults to Heads
	HeadWidth int `json:"head_width,omitempty"` // dimension of a head of queries and keys; defaults to Width/Heads
	Hidden    int `json:"hidden,omitempty"`     // hidden width of the MLP; defaults to 4·Width
	Vocab     int `json:"vocab"`                // vocabulary size, V
	Context   int `json:"context"`              // longest sequence, in tokens
	// PositionRows is the number of learned position embeddings; 0 with rotary positions.
	PositionRows int `json:"position_rows,omitempty"`

	Gated    bool `json:"gated,omitempty"`     // the MLP is gated (SwiGLU): three matrices instead of two
	Tied     bool `json:"tied,omitempty"`      // the head and the token embedding are one parameter
	QKVBias  bool `json:"qkv_bias,omitempty"`  // biases of the query, key and value projections
	OutBias  bool `json:"out_bias,omitempty"`  // bias of the attention's output projection
	MLPBias  bool `json:"mlp_bias,omitempty"`  // biases of the MLP
	NormBias bool `json:"norm_bias,omitempty"` // normalizations have a bias: LayerNorm, not RMSNorm

	// Activation of the MLP: "gelu" (the default), "silu" or "relu". It does not change any count.
	Activation string `json:"activation,omitempty"`

	// QKNorm says which normalizations queries and keys have: "" for none, "head" for one of each head, with a scale
	// that all heads share (Qwen3), or "all" for one over all heads together (OLMoE).
	QKNorm string `json:"qk_norm,omitempty"`
	Sinks  bool   `json:"sinks,omitempty"` // each head has a learned score that no value belongs to (gpt-oss)

	// A KVRank makes the attention multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", §2.1): keys and values
	// are computed from a vector of this width, and queries from one of width QueryRank; 0 computes them directly. Of
	// each head's HeadWidth, RopeWidth have rotary positions, and these are one key for all heads.
	KVRank     int `json:"kv_rank,omitempty"`
	QueryRank  int `json:"query_rank,omitempty"`
	RopeWidth  int `json:"rope_width,omitempty"`
	ValueWidth int `json:"value_width,omitempty"` // dimension of a head of values; defaults to that of queries

	// Experts is the number of routed experts in each block after the first DenseLayers; 0 means that there are only
	// MLPs. A router, a matmul with the tokens, sends each token to ExpertsPerToken of them; SharedExperts more have
	// all tokens (Shazeer et al. 2017, §2; Dai et al. 2024, "DeepSeekMoE", §3). All are MLPs of hidden width
	// ExpertHidden, which defaults to that of the MLP.
	Experts         int  `json:"experts,omitempty"`
	ExpertsPerToken int  `json:"experts_per_token,omitempty"`
	SharedExperts   int  `json:"shared_experts,omitempty"`
	ExpertHidden    int  `json:"expert_hidden,omitempty"`
	DenseLayers     int  `json:"dense_layers,omitempty"` // blocks before them with an MLP, of width Hidden
	RouterBias      bool `json:"router_bias,omitempty"`  // the router has one number more for each expert
	// NoExpertBias leaves out the biases of routed experts, with MLPBias.
	NoExpertBias bool `json:"no_expert_bias,omitempty"`
}

// KV returns the number of key and value heads.
func (m Model) KV() int { return cmp.Or(m.KVHeads, m.Heads) }

// HeadDim returns the dimension of a head.
func (m Model) HeadDim() int {
	if m.HeadWidth != 0 || m.Heads == 0 {
		return m.HeadWidth
	}
	return m.Width / m.Heads
}

// ValueDim returns the dimension of a head of values.
func (m Model) ValueDim() int { return cmp.Or(m.ValueWidth, m.HeadDim()) }

// MLPWidth returns the hidden width of the MLP.
func (m Model) MLPWidth() int { return cmp.Or(m.Hidden, 4*m.Width) }

// ExpertWidth returns the hidden width of an expert.
func (m Model) ExpertWidth() int { return cmp.Or(m.ExpertHidden, m.MLPWidth()) }

// ExpertLayers returns the number of blocks with experts. The others have an MLP and come first.
func (m Model) ExpertLayers() int {
	if m.Experts == 0 {
		return 0
	}
	return m.Layers - m.DenseLayers
}

// attentionWidth is the dimension of all query heads together.
func (m Model) attentionWidth() int { return m.Heads * m.HeadDim() }

// fieldError is an error of a field, which readers of other formats report with their own name of the field.
type fieldError struct{ field, problem string }

func (e *fieldError) Error() string { return "cost: Model." + e.field + " " + e.problem }

// Validate returns an error that names the first invalid field, its value and what to do. Its upper limits ensure that
// 16 bytes for each parameter do not overflow an int64.
func (m Model) Validate() error {
	if err := m.check(); err != nil {
		return err
	}
	return nil
}

func (m Model) check() *fieldError {
	for _, f := range []struct {
		name               string
		value, least, most int
	}{
		{"Layers", m.Layers, 1, 1 << 14}, {"Width", m.Width, 1, 1 << 20}, {"Heads", m.Heads, 1, 1 << 20},
		{"KVHeads", m.KVHeads, 0, 1 << 20}, {"HeadWidth", m.HeadWidth, 0, 1 << 20}, {"Hidden", m.Hidden, 0, 1 << 22},
		{"Vocab", m.Vocab, 2, 1 << 24}, {"Context", m.Context, 1, 1 << 28},
		{"PositionRows", m.PositionRows, 0, 1 << 28},
		{"KVRank", m.KVRank, 0, 1 << 20}, {"QueryRank", m.QueryRank, 0, 1 << 20},
		{"RopeWidth", m.RopeWidth, 0, 1 << 20}, {"ValueWidth", m.ValueWidth, 0, 1 << 20},
		{"Experts", m.Experts, 0, 1 << 16}, {"ExpertsPerToken", m.ExpertsPerToken, 0, 1 << 16},
		{"SharedExperts", m.SharedExperts, 0, 1 << 16}, {"ExpertHidden", m.ExpertHidden, 0, 1 << 22},
		{"DenseLayers", m.DenseLayers, 0, 1 << 14},
	} {
		if f.value < f.least {
			return &fieldError{f.name, fmt.Sprintf("is %d: set it to at least %d", f.value, f.least)}
		}
		if f.value > f.most {
			return &fieldError{f.name, fmt.Sprintf("is %d: set it to at most %d", f.value, f.most)}
		}
	}
	switch {
	case m.HeadWidth == 0 && m.Width%m.Heads != 0:
		return &fieldError{"Heads", fmt.Sprintf("is %d, which does not divide the width %d: choose a divisor, or set "+
			"the width of a head", m.Heads, m.Width)}
	case m.attentionWidth() > 1<<22:
		return &fieldError{"HeadWidth", fmt.Sprintf("is %d, which with %d heads is %d in total: choose at most %d in "+
			"total", m.HeadWidth, m.Heads, m.attentionWidth(), 1<<22)}
	case m.Heads%m.KV() != 0:
		return &fieldError{"KVHeads", fmt.Sprintf("is %d, which does not divide the %d heads: choose a divisor",
			m.KVHeads, m.Heads)}
	case !slices.Contains([]string{"", "gelu", "silu", "relu"}, m.Activation):
		return &fieldError{"Activation", fmt.Sprintf("is %q: set it to gelu, silu or relu", m.Activation)}
	case !slices.Contains([]string{"", "head", "all"}, m.QKNorm):
		return &fieldError{"QKNorm", fmt.Sprintf("is %q: set it to head or all, or leave it empty", m.QKNorm)}
	}
	if err := m.checkLatent(); err != nil {
		return err
	}
	return m.checkExperts()
}

// checkLatent checks the fields of multi-head latent attention.
func (m Model) checkLatent() *fieldError {
	for _, f := range []struct {
		name  string
		value int
	}{{"QueryRank", m.QueryRank}, {"RopeWidth", m.RopeWidth}, {"ValueWidth", m.ValueWidth}} {
		if m.KVRank == 0 && f.value != 0 {
			return &fieldError{f.name, fmt.Sprintf("is %d, which only latent attention has: set KVRank, or this to 0",
				f.value)}
		}
	}
	switch {
	case m.KVRank == 0:
		return nil
	case m.KV() != m.Heads:
		return &fieldError{"KVHeads", fmt.Sprintf("is %d, but latent attention has as many as its %d heads: set it to 0",
			m.KVHeads, m.Heads)}
	case m.RopeWidth >= m.HeadDim():
		return &fieldError{"RopeWidth", fmt.Sprintf("is %d: set it to less than the width of a head, %d", m.RopeWidth,
			m.HeadDim())}
	case m.Heads*m.ValueDim() > 1<<22:
		return &fieldError{"ValueWidth", fmt.Sprintf("is %d, which with %d heads is %d in total: choose at most %d in "+
			"total", m.ValueDim(), m.Heads, m.Heads*m.ValueDim(), 1<<22)}
	case m.QKVBias:
		return &fieldError{"QKVBias", "is true, which latent attention does not have: set it to false"}
	case m.QKNorm != "":
		return &fieldError{"QKNorm", fmt.Sprintf("is %q, which latent attention does not have: leave it empty",
			m.QKNorm)}
	}
	return nil
}

// checkExperts checks the fields of mixtures of experts.
func (m Model) checkExperts() *fieldError {
	for _, f := range []struct {
		name  string
		value int
	}{{"ExpertsPerToken", m.ExpertsPerToken}, {"SharedExperts", m.SharedExperts}, {"ExpertHidden", m.ExpertHidden},
		{"DenseLayers", m.DenseLayers}} {
		if m.Experts == 0 && f.value != 0 {
			return &fieldError{f.name, fmt.Sprintf("is %d without experts: set Experts, or this to 0", f.value)}
		}
	}
	switch {
	case m.Experts == 0 && m.RouterBias:
		return &fieldError{"RouterBias", "is true without experts: set Experts, or this to false"}
	case m.NoExpertBias && (m.Experts == 0 || !m.MLPBias):
		return &fieldError{"NoExpertBias", "is true without experts or MLPBias: set both, or this to false"}
	case m.Experts == 0:
		return nil
	case m.ExpertsPerToken < 1 || m.ExpertsPerToken > m.Experts:
		return &fieldError{"ExpertsPerToken", fmt.Sprintf("is %d: set it to at least 1 and at most the %d experts",
			m.ExpertsPerToken, m.Experts)}
	case m.DenseLayers >= m.Layers:
		return &fieldError{"DenseLayers", fmt.Sprintf("is %d of %d layers: leave at least one with experts",
			m.DenseLayers, m.Layers)}
	}
	if all := (m.Experts + m.SharedExperts) * m.ExpertWidth(); all > 1<<22 {
		return &fieldError{"ExpertHidden", fmt.Sprintf("is %d, which with %d experts is %d in total: choose at most %d "+
			"in total", m.ExpertWidth(), m.Experts+m.SharedExperts, all, 1<<22)}
	}
	return nil
}
