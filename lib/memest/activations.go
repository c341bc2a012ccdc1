package memest

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/recompute"
)

// kept is something that an operation of a block makes and the backward pass needs.
type kept struct {
	op      recompute.Op
	made    recompute.Set // operations that it is made in: it is not kept if one of them is recomputed
	name    string
	formula string
	bytes   int64
}

// keeps lists what lib/gpt keeps of a block: what GoMLX's gradients refer to and XLA does not make again by itself, as
// the buffers of compiled programs show. A tensor that exists in two layouts is there twice only where both are alive
// at once. Sequence and context parallelism divide tokens, tensor parallelism heads and the MLP's width (Korthikanti et
// al. 2022, §4).
func (s Setup) keeps(v *sheet) ([]kept, error) {
	const (
		tokens  = "b*s*h*p/(c*r)"         // a number for each feature of each token
		heads   = "b*s*a*d*p/(c*t)"       // for each feature of each query head
		inner   = "b*s*f*p/(c*t)"         // for each feature inside the MLP
		scores  = "4*b*a*s*s/(c*t)"       // in float32 for each pair of positions and query head
		perHead = "2*4*b*a*s/(c*t)"       // two float32 for each position and query head
		stats   = "4*4*b*s/(c*r)"         // four float32 for each position
		rms     = "3*4*b*s/(c*r)"         // three
		keyval  = "2*b*s*ceil(k/t)*d*p/c" // keys and values
	)
	half := s.Precision.Compute.IsHalfPrecision()
	norm := stats
	if !s.Model.NormBias {
		norm = rms
	}
	list := []kept{
		{op: recompute.Norm1, name: "first normalization", formula: tokens},
		{op: recompute.Norm1, name: "first normalization's statistics", formula: norm},
		{op: recompute.QKV, name: "queries", formula: heads},
		{op: recompute.QKV, name: "keys and values", formula: keyval},
	}
	add := func(op recompute.Op, name, formula string) {
		list = append(list, kept{op: op, name: name, formula: formula})
	}
	switch {
	case s.Flash:
		add(recompute.Scores, "largest scores and their sums", perHead)
	default:
		add(recompute.Scores, "attention weights", scores)
		add(recompute.Scores, "softmax statistics", perHead)
		if half {
			add(recompute.Scores, "scaled queries", heads)
			add(recompute.Scores, multiplied, "p*b*a*s*s/(c*t)")
		}
		if s.Dropout > 0 && !half { // in a half type only those are kept
			add(recompute.Scores, multiplied, scores)
		}
		if !half { // the division by the softmax's sum comes after the product with the values
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
		list[i].made = recompute.SetOf(list[i].op)
		if i >= first && i < len(list)-1 { // what the activation makes on the way is made of the projections alone
			list[i].made |= recompute.SetOf(recompute.Up)
		}
	}
	list = append(list, kept{op: recompute.Down, made: recompute.SetOf(recompute.Down), name: "block output",
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

// multiplied names the weights that are multiplied with the values, where they are not those of the softmax.
const multiplied = "attention weights, dropped or rounded"

// activationNames names the tensors of the MLP's width that its activation keeps; the last is what the down projection
// multiplies.
func (s Setup) activationNames() []string {
	half := s.Engine == Compiled && s.Precision.Compute.IsHalfPrecision()
	switch {
	case s.Model.Activation == "relu":
		return []string{"activation"}
	case s.Model.Gated:
		return []string{"sigmoid of the gate", "gate's activation", "gated activation"}
	case half: // every step of GELU is rounded to the half type, so none can be made again in passing
		return []string{"GELU's square", "GELU's cube", "GELU's half", "GELU's tanh", "activation"}
	}
	return []string{"GELU's tanh", "activation"}
}
