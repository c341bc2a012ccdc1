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
	HeadWidth int `json:"head_width,omitempty"` // dimension of a head; defaults to Width/Heads
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

// MLPWidth returns the hidden width of the MLP.
func (m Model) MLPWidth() int { return cmp.Or(m.Hidden, 4*m.Width) }

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
	}
	return nil
}
