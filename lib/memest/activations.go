package memest

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/recompute"
)

// activation is a saved activation: what an operation of a block computes and the backward pass needs.
type activation struct {
	op      recompute.Op
	parts   recompute.Set // the operations that compute it; it is not saved if one of them is recomputed
	name    string
	formula string
	bytes   int64
}

// saved lists the activations that lib/gpt saves of a block: what GoMLX's gradients refer to and XLA does not recompute
// by itself. They were read off the buffers of compiled programs. A tensor in two layouts counts twice only where both
// are live at once. Sequence and context parallelism divide tokens; tensor parallelism divides heads and the MLP's
// hidden width (Korthikanti et al. 2022, §4).
func (s Setup) saved(v *sheet) ([]activation, error) {
	const (
		tokens  = "b*s*h*p/(c*r)"         // [b, s, h]
		heads   = "b*s*a*d*p/(c*t)"       // [b, s, a, d]
		inner   = "b*s*f*p/(c*t)"         // [b, s, f]
		scores  = "4*b*a*s*s/(c*t)"       // [b, a, s, s] in float32
		perHead = "2*4*b*a*s/(c*t)"       // two of [b, a, s] in float32
		stats   = "4*4*b*s/(c*r)"         // four of [b, s] in float32
		rms     = "3*4*b*s/(c*r)"         // three of [b, s] in float32
		keyval  = "2*b*s*ceil(k/t)*d*p/c" // two of [b, s, k, d]
	)
	half := s.Precision.Compute.IsHalfPrecision()
	norm := stats
	if !s.Model.NormBias {
		norm = rms
	}
	list := []activation{
		{op: recompute.Norm1, name: "first normalization", formula: tokens},
		{op: recompute.Norm1, name: "first normalization's statistics", formula: norm},
		{op: recompute.QKV, name: "queries", formula: heads},
		{op: recompute.QKV, name: "keys and values", formula: keyval},
	}
	add := func(op recompute.Op, name, formula string) {
		list = append(list, activation{op: op, name: name, formula: formula})
	}
	switch {
	case s.Flash:
		add(recompute.Scores, "largest scores and their sums", perHead)
	default:
		add(recompute.Scores, "attention weights", scores)
		add(recompute.Scores, "softmax statistics", perHead)
		if half {
			add(recompute.Scores, "scaled queries", heads)
			add(recompute.Scores, weights, "p*b*a*s*s/(c*t)")
		}
		if s.Dropout > 0 && !half { // in a half type these are the rounded ones
			add(recompute.Scores, weights, scores)
		}
		if !half { // the softmax's sum divides the matmul's output
			add(recompute.Mix, "attention output before the division", heads)
		}
	}
	add(recompute.Mix, "attention output", heads)
	add(recompute.Mid, "sum after attention", tokens)
	add(recompute.Norm2, "second normalization", tokens)
	add(recompute.Norm2, "second normalization's statistics", norm)
	add(recompute.Up, "MLP up projection", inner)
	if s.Model.Gated {
		add(recompute.Up, "MLP gate projection", inner)
	}
	for _, name := range s.activationNames() {
		add(recompute.Act, name, inner)
	}
	first := len(list) - len(s.activationNames())
	for i := range list {
		list[i].parts = recompute.SetOf(list[i].op)
		if i >= first && i < len(list)-1 { // the activation's intermediate values depend on the projections alone
			list[i].parts |= recompute.SetOf(recompute.Up)
		}
	}
	list = append(list, activation{op: recompute.Down, parts: recompute.SetOf(recompute.Down), name: "block output",
		formula: tokens})
	for i := range list {
		one, err := v.compute(list[i].formula)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", list[i].name, err)
		}
		list[i].bytes = one.bytes
	}
	return list, nil
}

// weights names the input of the matmul with the values, where it is not the softmax's output.
const weights = "attention weights, dropped or rounded"

// activationNames names the tensors of the MLP's hidden width that its activation saves. The last is the input of the
// down projection.
func (s Setup) activationNames() []string {
	half := s.Method == Compiled && s.Precision.Compute.IsHalfPrecision()
	switch {
	case s.Model.Activation == "relu":
		return []string{"activation"}
	case s.Model.Gated:
		return []string{"sigmoid of the gate", "gate's activation", "gated activation"}
	case half: // XLA saves every step of GELU, since each is rounded to the half type
		return []string{"GELU's square", "GELU's cube", "GELU's half", "GELU's tanh", "activation"}
	}
	return []string{"GELU's tanh", "activation"}
}
