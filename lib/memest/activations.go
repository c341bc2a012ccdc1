package memest

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/recompute"
)

// activation is a saved activation: what an operation of a block computes and the backward pass needs.
type activation struct {
	op      recompute.Op
	parts   recompute.Set // the operations that compute it; it is not saved if one of them is recomputed
	only    cost.Part     // only blocks of this kind have it, as of [stage.kind]; "" if all have
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
		values  = "b*s*a*V*p/(c*t)"       // [b, s, a, V]
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
	var list []activation
	add := func(op recompute.Op, name, formula string) {
		list = append(list, activation{op: op, parts: recompute.SetOf(op), name: name, formula: formula})
	}
	add(recompute.Norm1, "first normalization", tokens)
	add(recompute.Norm1, "first normalization's statistics", norm)
	if s.Model.KVRank > 0 { // what is computed before the heads, and its normalization
		if s.Model.QueryRank > 0 {
			add(recompute.QKV, "compressed queries and their normalization", "2*b*s*Q*p/(c*r)")
			add(recompute.QKV, "statistics of the compressed queries", rms)
		}
		add(recompute.QKV, "compressed keys and values and their normalization", "b*s*(2*L+R)*p/(c*r)")
		add(recompute.QKV, "statistics of the compressed keys and values", rms)
	}
	if s.Model.QKNorm != "" {
		add(recompute.QKV, "queries and keys before their normalization", "b*s*(a/t+ceil(k/t))*d*p/c")
		if s.Model.QKNorm == "head" {
			add(recompute.QKV, "statistics of queries and keys", "3*4*b*s*(a/t+ceil(k/t))/c")
		} else {
			add(recompute.QKV, "statistics of queries and keys", "2*3*4*b*s/c")
		}
	}
	add(recompute.QKV, "queries", heads)
	add(recompute.QKV, "keys and values", s.heads(keyval, "b*s*a*(d+V)*p/(c*t)"))
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
			add(recompute.Mix, "attention output before the division", s.heads(heads, values))
		}
	}
	add(recompute.Mix, "attention output", s.heads(heads, values))
	add(recompute.Mid, "sum after attention", tokens)
	add(recompute.Norm2, "second normalization", tokens)
	add(recompute.Norm2, "second normalization's statistics", norm)
	if s.Model.ExpertLayers() < s.Model.Layers {
		list = append(list, s.savedMLP(cost.MLP, "MLP up projection", "MLP gate projection", "", "b*s*f*p/(c*t)")...)
	}
	if s.Model.Experts > 0 {
		list = append(list, s.savedExperts()...)
	}
	add(recompute.Down, "block output", tokens)
	for i := range list {
		one, err := v.compute(list[i].formula)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", list[i].name, err)
		}
		list[i].bytes = one.bytes
	}
	return list, nil
}

// savedMLP lists the activations inside the MLPs of blocks of a kind, each of that size.
func (s Setup) savedMLP(kind cost.Part, up, gate, of, formula string) []activation {
	list := []activation{{op: recompute.Up, name: up}}
	if s.Model.Gated {
		list = append(list, activation{op: recompute.Up, name: gate})
	}
	for _, name := range s.activationNames() {
		list = append(list, activation{op: recompute.Act, name: of + name})
	}
	for i := range list {
		k := &list[i]
		k.only, k.formula, k.parts = kind, formula, recompute.SetOf(k.op)
		if k.op == recompute.Act && i < len(list)-1 { // intermediate values depend on the projections alone
			k.parts |= recompute.SetOf(recompute.Up)
		}
	}
	return list
}

// savedExperts lists the activations of a block's experts. K copies of each token are sorted by their experts. No
// expert drops a token (Gale et al. 2022, "MegaBlocks", §4), and each is taken to have equally many, so that a device
// has as many copies as its own tokens make, wherever its experts are. Of tensor-parallel devices each routes its part
// of the tokens.
func (s Setup) savedExperts() []activation {
	one := func(op recompute.Op, name, formula string) activation {
		return activation{op: op, parts: recompute.SetOf(op), only: cost.Routed, name: name, formula: formula}
	}
	list := []activation{
		one(recompute.Up, "router's logits and probabilities", "2*4*b*s*E/(c*t)"),        // in float32
		one(recompute.Up, "numbers and weights of a token's experts", "2*4*b*s*K/(c*t)"), // in 32 bits
		one(recompute.Up, "inputs of the experts", "K*b*s*h*p/(c*t)"),
	}
	list = append(list, s.savedMLP(cost.Routed, "experts' up projection", "experts' gate projection", "experts: ",
		"(K+S)*b*s*F*p/(c*t)")...)
	return append(list, one(recompute.Down, "experts' outputs before their weighted sum", "K*b*s*h*p/(c*t)"))
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
