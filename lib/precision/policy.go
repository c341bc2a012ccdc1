package precision

import (
	"fmt"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
)

// Policy is the types of a training step. In mixed precision (Micikevicius et al. 2018, "Mixed Precision Training",
// §3.1) Params is Float32, the master weights, and Compute a half type to which the step casts them.
type Policy struct {
	Params  dtypes.DType `json:"params"`  // of stored parameters and their updates
	Compute dtypes.DType `json:"compute"` // of the forward and the backward pass
	Output  dtypes.DType `json:"output"`  // of the logits and the loss
	Reduce  dtypes.DType `json:"reduce"`  // of gradients in all-reduces

	Matmul  Matmul  `json:"matmul,omitzero"`
	Scaling Scaling `json:"scaling,omitzero"`
	// StochasticUpdate rounds updates of half-precision parameters stochastically ([CastStochastic]), so that updates
	// below the last place count on average.
	StochasticUpdate bool `json:"stochastic_update,omitempty"`
}

type named struct {
	name   string
	policy Policy
}

// policies are the policies with names. All have a float32 output. With master weights, bfloat16 gradients are reduced
// in float32, since 8 bits lose much in a sum over many devices.
func policies() []named {
	const f32, b16, f16 = dtypes.Float32, dtypes.BFloat16, dtypes.Float16
	return []named{
		{"fp32", Policy{Params: f32, Compute: f32, Output: f32, Reduce: f32}},
		{"tf32", Policy{Params: f32, Compute: f32, Output: f32, Reduce: f32,
			Matmul: Matmul{Operands: TF32, Gradients: TF32}}},
		{"bf16", Policy{Params: f32, Compute: b16, Output: f32, Reduce: f32}},
		{"fp16", Policy{Params: f32, Compute: f16, Output: f32, Reduce: f16, Scaling: Dynamic()}},
		{"bf16-pure", Policy{Params: b16, Compute: b16, Output: f32, Reduce: b16}},
		{"fp16-pure", Policy{Params: f16, Compute: f16, Output: f32, Reduce: f16, Scaling: Dynamic()}},
		{"fp8", Policy{Params: f32, Compute: b16, Output: f32, Reduce: f32,
			Matmul: Matmul{Operands: E4M3, Gradients: E5M2, Scaled: true}}},
	}
}

// Names returns the names of the policies: "fp32" and "tf32" (matmul operands rounded to TF32, as GPUs can do for
// float32); mixed precision "bf16" and "fp16" (with dynamic loss scaling); "bf16-pure" and "fp16-pure" without master
// weights; and "fp8" (mixed bf16 with matmuls of E4M3 operands and E5M2 gradients, scaled per tensor).
func Names() []string {
	var names []string
	for _, p := range policies() {
		names = append(names, p.name)
	}
	return names
}

// ParsePolicy returns the policy with a name, in upper or lower case, or an error that lists the names.
func ParsePolicy(name string) (Policy, error) {
	for _, p := range policies() {
		if strings.EqualFold(p.name, name) {
			return p.policy, nil
		}
	}
	return Policy{}, fmt.Errorf("precision: no policy %q: choose one of %s", name, strings.Join(Names(), ", "))
}

// Validate returns an error that names the first setting that is invalid or does not fit another.
func (p Policy) Validate() error {
	for _, s := range []struct {
		name  string
		dtype dtypes.DType
	}{{"Params", p.Params}, {"Compute", p.Compute}, {"Output", p.Output}, {"Reduce", p.Reduce}} {
		switch s.dtype {
		case dtypes.Float32, dtypes.BFloat16, dtypes.Float16:
		default:
			return fmt.Errorf("precision: Policy.%s is %s: set it to Float32, BFloat16 or Float16", s.name, s.dtype)
		}
	}
	if p.Params != p.Compute && p.Params != dtypes.Float32 {
		return fmt.Errorf("precision: Policy.Params is %s and Policy.Compute %s: set both alike, or Params to Float32 "+
			"for master weights", p.Params, p.Compute)
	}
	if p.StochasticUpdate && !p.Params.IsHalfPrecision() {
		return fmt.Errorf("precision: Policy.StochasticUpdate is set and Policy.Params is %s: set Params to BFloat16 "+
			"or Float16", p.Params)
	}
	if p.Scaling != (Scaling{}) && p.Output != dtypes.Float32 {
		return fmt.Errorf("precision: Policy.Scaling is set and Policy.Output is %s: set Output to Float32, which a "+
			"scaled loss needs", p.Output)
	}
	if err := p.Matmul.Validate(); err != nil {
		return err
	}
	return p.Scaling.Validate()
}

// Mixed reports whether parameters are stored in another type, as master weights, than the one to compute in.
func (p Policy) Mixed() bool { return p.Params != p.Compute }

// ParamBytes is the memory of one parameter by kind, in bytes, without the optimizer's states.
type ParamBytes struct {
	Master   int // master weights, with mixed precision
	Param    int // the weights that the passes use
	Gradient int
}

// ParamBytes returns the memory of one parameter by kind. Mixed precision needs 4+2+2 bytes; with Adam's 8 for two
// float32 moments that makes 16 (Rajbhandari et al. 2020, "ZeRO", §3.1). XLA may not need all of Param at the same
// time, and on CPUs computes half types in float32.
func (p Policy) ParamBytes() ParamBytes {
	b := ParamBytes{Param: p.Compute.Size(), Gradient: p.Compute.Size()}
	if p.Mixed() {
		b.Master = p.Params.Size()
	}
	return b
}

// Total returns the sum.
func (b ParamBytes) Total() int { return b.Master + b.Param + b.Gradient }

// Cast converts the nodes that are floats to a float type. Gradients of what is converted come in its original type. It
// panics if the type is not a float.
//
// XLA could compute half types with more precision: within a program it may leave out conversions to a half type and
// back. lib/xla turns that off (XLA's flag xla_allow_excess_precision), so a step rounds alike in one program and in
// several.
func Cast(x []*graph.Node, to dtypes.DType) []*graph.Node {
	if !to.IsFloat() {
		panic(fmt.Errorf("precision: cast to %s: give a float type", to))
	}
	cast := make([]*graph.Node, len(x))
	for i, n := range x {
		if cast[i] = n; n.DType().IsFloat() {
			cast[i] = graph.ConvertDType(n, to)
		}
	}
	return cast
}

// Widen converts half types to float32, and returns other types unchanged.
func Widen(x *graph.Node) *graph.Node {
	if x.DType().IsHalfPrecision() {
		return graph.ConvertDType(x, dtypes.Float32)
	}
	return x
}

// CastStochastic converts float32 numbers to a half type by [RoundStochastic], with uint32 random bits of x's
// dimensions. It panics for other types or dimensions.
func CastStochastic(x *graph.Node, to dtypes.DType, random *graph.Node) *graph.Node {
	f, ok := FormatOf(to)
	if !ok || !to.IsHalfPrecision() {
		panic(fmt.Errorf("precision: stochastic cast to %s: give a half type", to))
	}
	if x.DType() != dtypes.Float32 {
		panic(fmt.Errorf("precision: stochastic cast of numbers of type %s: convert them to float32", x.DType()))
	}
	return graph.ConvertDType(RoundStochastic(x, f, random), to)
}
