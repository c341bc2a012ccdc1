//go:build !resident

package xla

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
)

// operations lists those of a computation that runs a number of times.
func (h *hlo) operations(c *computation, runs float64) (all []Operation) {
	inside := func(runs float64, called ...*computation) {
		for _, c := range called {
			all = append(all, h.operations(c, runs)...)
		}
	}
	for _, i := range c.instructions {
		switch kind := i.kind(); {
		case kind == "while" && len(i.called) == 2:
			turns := i.turns()
			inside(runs*turns, i.called[0])
			inside(runs*(turns+1), i.called[1]) // the condition
		case kind == "conditional" || kind == "call" || kind == "async":
			inside(runs, i.called...)
		case !slices.Contains(free, kind) && !strings.HasSuffix(kind, "-done") && !strings.HasSuffix(kind, "-update"):
			all = append(all, Operation{Module: h.name, Name: i.field("name").String(), Kind: kind,
				Target: i.field("custom_call_target").String(), FLOPs: i.flops(), Bytes: i.moved(), Runs: runs})
		}
	}
	return all
}

// kind is the opcode, or that of the operation which a kernel of ours computes. On GPUs some operations are a pair of
// instructions, of which the first counts for both.
func (i *instruction) kind() string {
	if kind, ours := kernelKinds[i.field("custom_call_target").String()]; ours {
		return kind
	}
	return strings.TrimSuffix(i.opcode, "-start")
}

var (
	// elementwise operations count as one operation per element of the result.
	elementwise = strings.Fields(`
		abs acos acosh add and asin asinh atan2 atanh cbrt ceil clamp compare complex convert cosine cosh
		count-leading-zeros divide erf exponential exponential-minus-one floor imag is-finite log log-plus-one
		logistic maximum minimum multiply negate not or popcnt power real reduce-precision remainder round-nearest-afz
		round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt
		stochastic-convert subtract tan tanh xor`)

	// free operations need nothing to run.
	free = strings.Fields(`
		add-dependency after-all bitcast constant domain get-dimension-size get-tuple-element opt-barrier parameter
		partition-id replica-id set-dimension-size tuple`)
)

// flops counts the arithmetic of one run of an instruction, by the rules of [Operation].
func (i *instruction) flops() float64 {
	switch kind := i.kind(); kind {
	case "dot":
		if i.opcode == "custom-call" { // with mk, kn and mn elements
			k := math.Sqrt(i.operand(0).elements() * i.operand(1).elements() / i.elements())
			return 2 * i.elements() * math.Round(k)
		}
		return i.matmul(i.message.message("dot_dimension_numbers").integers("lhs_contracting_dimensions")...)
	case "convolution":
		kernel := i.operand(1)
		outputs := i.message.message("convolution_dimension_numbers").field("kernel_output_feature_dimension").Int()
		return 2 * i.elements() * kernel.elements() / kernel.size(outputs)
	case "reduce":
		if i.opcode == "custom-call" {
			return i.operand(0).elements() - i.elements()
		}
		return i.times(i.operand(0).elements() - i.elements())
	case "reduce-window":
		return i.times(i.elements() * (i.window() - 1))
	case "map":
		return i.times(i.elements())
	case "scatter":
		return i.times(i.operand(len(i.operands) - 1).elements())
	case "select-and-scatter": // compares within windows, then adds
		return i.times(i.operand(1).elements() * i.window())
	case "sort":
		axes := append(i.integers("dimensions"), -1) // without an axis: of one element
		return i.times(i.elements() * math.Ceil(math.Log2(max(1, i.operand(0).size(axes[0])))))
	case "all-reduce", "reduce-scatter":
		var n float64
		for _, operand := range i.operands {
			n += operand.elements()
		}
		return n
	case "fusion", "call":
		return i.times(1)
	case "custom-call":
		return i.cublas() + i.attention()
	default:
		if slices.Contains(elementwise, kind) {
			return i.elements()
		}
		return 0
	}
}

// matmul counts a matmul that contracts these axes of the first operand.
func (i *instruction) matmul(contracted ...int64) float64 {
	n := 2 * i.elements()
	for _, axis := range contracted {
		n *= i.operand(0).size(axis)
	}
	return n
}

// times counts n runs of the first computation that the instruction calls.
func (i *instruction) times(n float64) (flops float64) {
	if len(i.called) > 0 {
		for _, inner := range i.called[0].instructions {
			flops += n * inner.flops()
		}
	}
	return flops
}

// window counts the elements of an instruction's window.
func (i *instruction) window() float64 {
	n := 1.0
	for _, d := range i.message.message("window").messages("dimensions") {
		n *= float64(d.field("size").Int())
	}
	return n
}

// cublas counts a matmul by cuBLAS, which XLA for CUDA calls.
func (i *instruction) cublas() float64 {
	var config struct {
		Gemm struct {
			Numbers struct {
				Contracting []json.Number `json:"lhs_contracting_dimensions"`
			} `json:"dot_dimension_numbers"`
		} `json:"gemm_backend_config"`
	}
	ours := strings.HasPrefix(i.field("custom_call_target").String(), "__cublas$")
	if !ours || json.Unmarshal(i.field("backend_config").Bytes(), &config) != nil {
		return 0
	}
	var contracted []int64
	for _, axis := range config.Gemm.Numbers.Contracting {
		if number, err := axis.Int64(); err == nil {
			contracted = append(contracted, number)
		}
	}
	if len(contracted) == 0 {
		return 0
	}
	return i.matmul(contracted...)
}

// attention counts a fused attention by cuDNN, which XLA for CUDA calls: two matmuls of the scores' size forward, and
// five backward, for the pairs of queries and keys that a causal mask shows.
func (i *instruction) attention() float64 {
	var config struct {
		Attention struct {
			Mask   string `json:"mask_type"`
			Scores struct {
				Dims []json.Number `json:"dimensions"`
			} `json:"intermediate_tensor_shape"`
		} `json:"cudnn_fmha_backend_config"`
	}
	target := i.field("custom_call_target").String()
	ours := strings.HasPrefix(target, "__cudnn$fmha")
	if !ours || json.Unmarshal(i.field("backend_config").Bytes(), &config) != nil || len(config.Attention.Scores.Dims) != 4 {
		return 0
	}
	sizes := make([]float64, 4) // batch, heads, queries, keys
	for n, text := range config.Attention.Scores.Dims {
		sizes[n], _ = text.Float64()
	}
	pairs := sizes[2] * sizes[3]
	if config.Attention.Mask == "CAUSAL" {
		pairs = sizes[2] * (sizes[3] - (sizes[2]-1)/2)
	}
	width := i.operand(0).shape().integers("dimensions")
	matmuls := 2.0
	if strings.HasSuffix(target, "Backward") {
		matmuls = 5
	}
	return matmuls * 2 * sizes[0] * sizes[1] * pairs * float64(width[len(width)-1])
}
