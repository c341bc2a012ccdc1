// Package cost works out what a decoder-only Transformer costs before any device is touched: parameters, floating-point
// operations, training time, the time of its communication on a described cluster, and whether that communication hides
// behind the computation.
//
// A [Model] is the architecture, of a published model ([Preset]), a Hugging Face config.json ([ReadConfig]) or a
// configuration of this project's own ([FromGPT]). [Model.Params] counts its parameters, [Model.FLOPs] its operations.
// [Hardware] and [Cluster] describe devices and the links between them; [TrainingTime], [Link] and [Rates] turn counts
// into time.
//
// All is plain arithmetic on the formulas that the functions name. Counts of parameters are exact; operations, bytes
// and time are float64. Bytes are bytes, never elements, and bandwidths are bytes a second in one direction.
package cost

import (
	"cmp"
	"fmt"
	"slices"
)

// Model is the architecture of a decoder-only Transformer: tables, then blocks of attention and a multi-layer
// perceptron (MLP) with a normalization before each, a last normalization, and the head.
type Model struct {
	Name string `json:"name,omitempty"`

	Layers int `json:"layers"` // blocks
	Width  int `json:"width"`  // features of a position, h
	Heads  int `json:"heads"`  // query heads, a
	// KVHeads is the number of key and value heads, each shared by Heads/KVHeads query heads. 0 is Heads.
	KVHeads int `json:"kv_heads,omitempty"`
	// HeadWidth is the features of a head. 0 is Width/Heads; few models have another.
	HeadWidth int `json:"head_width,omitempty"`
	Hidden    int `json:"hidden,omitempty"` // width inside the MLP; 0 is 4·Width
	Vocab     int `json:"vocab"`            // tokens, V
	Context   int `json:"context"`          // positions of the longest sequence, s
	// PositionRows is the rows of a learned position table. 0 is none, as with rotary positions.
	PositionRows int `json:"position_rows,omitempty"`

	Gated    bool `json:"gated,omitempty"`     // the MLP has a gate beside its up projection: three matrices, not two
	Tied     bool `json:"tied,omitempty"`      // the head is the token table
	QKVBias  bool `json:"qkv_bias,omitempty"`  // biases of the query, key and value projections
	OutBias  bool `json:"out_bias,omitempty"`  // bias of the attention's output projection
	MLPBias  bool `json:"mlp_bias,omitempty"`  // biases of the MLP
	NormBias bool `json:"norm_bias,omitempty"` // normalizations have a bias (LayerNorm) beside their scale (RMSNorm)

	// Activation is what the MLP applies: "gelu", which "" is too, "silu" or "relu". It has no effect on counts.
	Activation string `json:"activation,omitempty"`
}

// KV returns the number of key and value heads.
func (m Model) KV() int { return cmp.Or(m.KVHeads, m.Heads) }

// HeadDim returns the features of a head.
func (m Model) HeadDim() int {
	if m.HeadWidth != 0 || m.Heads == 0 {
		return m.HeadWidth
	}
	return m.Width / m.Heads
}

// MLPWidth returns the width inside the MLP.
func (m Model) MLPWidth() int { return cmp.Or(m.Hidden, 4*m.Width) }

// attentionWidth is the features of all query heads together: Width, but for an unusual HeadWidth.
func (m Model) attentionWidth() int { return m.Heads * m.HeadDim() }

// fieldError says what is wrong with a field, so that a reader of another format can say it in that format's words.
type fieldError struct{ field, problem string }

func (e *fieldError) Error() string { return "cost: Model." + e.field + " " + e.problem }

// Validate returns an error that names the first field that is not valid, with its value and what to do. The upper
// limits are such that of a valid model neither the parameters nor 16 bytes for each overflow an int64.
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
		{"Vocab", m.Vocab, 2, 1 << 24}, {"Context", m.Context, 1, 1 << 28}, {"PositionRows", m.PositionRows, 0, 1 << 28},
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
			"the width of a head",
			m.Heads, m.Width)}
	case m.attentionWidth() > 1<<22:
		return &fieldError{"HeadWidth", fmt.Sprintf("is %d, which with %d heads makes attention %d wide: at "+
			"most %d is possible",
			m.HeadWidth, m.Heads, m.attentionWidth(), 1<<22)}
	case m.Heads%m.KV() != 0:
		return &fieldError{"KVHeads", fmt.Sprintf("is %d, which does not divide the %d heads: choose a divisor",
			m.KVHeads, m.Heads)}
	case !slices.Contains([]string{"", "gelu", "silu", "relu"}, m.Activation):
		return &fieldError{"Activation", fmt.Sprintf("is %q: set it to gelu, silu or relu", m.Activation)}
	}
	return nil
}
