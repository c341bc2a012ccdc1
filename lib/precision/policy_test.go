package precision_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/precision"
)

func shape(dims ...int) shapes.Shape { return shapes.Make(dtypes.Float32, dims...) }

func TestPolicies(t *testing.T) {
	// For one parameter: master weights, working copy, gradient. Mixed precision with Adam's 8 bytes has the well-known
	// 16.
	want := map[string]precision.ParamBytes{
		"fp32": {0, 4, 4}, "tf32": {0, 4, 4}, "bf16": {4, 2, 2}, "fp16": {4, 2, 2}, "bf16-pure": {0, 2, 2},
		"fp16-pure": {0, 2, 2}, "fp8": {4, 2, 2},
	}
	if len(precision.Names()) != len(want) {
		t.Errorf("policies are %v", precision.Names())
	}
	for name, bytes := range want {
		p := must.Get(precision.ParsePolicy(strings.ToUpper(name)))(t)
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if p.ParamBytes() != bytes {
			t.Errorf("%s has %+v, want %+v", name, p.ParamBytes(), bytes)
		}
		if scales := strings.HasPrefix(name, "fp16"); scales != (p.Scaling == precision.Dynamic()) {
			t.Errorf("%s has scaling %+v", name, p.Scaling)
		}
		text := must.Get(json.Marshal(p))(t)
		var read precision.Policy
		if err := json.Unmarshal(text, &read); err != nil || read != p {
			t.Errorf("%s read from %s is %+v, %v", name, text, read, err)
		}
	}
	mixed, _ := precision.ParsePolicy("bf16")
	if got := mixed.ParamBytes().Total() + 8; got != 16 {
		t.Errorf("mixed precision with Adam has %d bytes a parameter, want 16", got)
	}
	if _, err := precision.ParsePolicy("int4"); err == nil ||
		!strings.Contains(err.Error(), `no policy "int4": choose one of fp32, tf32`) {
		t.Errorf("error %v", err)
	}
}

func TestBadPolicies(t *testing.T) {
	for want, change := range map[string]func(p *precision.Policy){
		"Policy.Params is InvalidDType":                 func(p *precision.Policy) { p.Params = dtypes.InvalidDType },
		"Policy.Compute is Int32":                       func(p *precision.Policy) { p.Compute = dtypes.Int32 },
		"Policy.Output is Float64":                      func(p *precision.Policy) { p.Output = dtypes.Float64 },
		"Policy.Reduce is Bool":                         func(p *precision.Policy) { p.Reduce = dtypes.Bool },
		"Params is BFloat16 and Policy.Compute Float16": func(p *precision.Policy) { p.Params = dtypes.BFloat16 },
		"StochasticUpdate is set and Policy.Params is Float32": func(p *precision.Policy) {
			p.StochasticUpdate = true
		},
		"Policy.Output is Float16":    func(p *precision.Policy) { p.Output = dtypes.Float16 },
		"Matmul.Chunk is 0":           func(p *precision.Policy) { p.Matmul.Accumulate = precision.FP16 },
		"Scaling.Initial is 0.5":      func(p *precision.Policy) { p.Scaling.Initial = 0.5 },
		"Scaling.Initial is NaN":      func(p *precision.Policy) { p.Scaling.Initial = math.NaN() },
		"Scaling.Interval is -1":      func(p *precision.Policy) { p.Scaling.Interval = -1 },
		"with an Interval of 0":       func(p *precision.Policy) { p.Scaling.Interval = 0 },
		"Scaling.Growth is 0.5":       func(p *precision.Policy) { p.Scaling.Growth = 0.5 },
		"and at most 2¹²⁶, such as 2": func(p *precision.Policy) { p.Scaling.Growth = 0x1p127 },
		"Scaling.Backoff is 0:":       func(p *precision.Policy) { p.Scaling.Backoff = 0 },
		"Scaling.Backoff is 2":        func(p *precision.Policy) { p.Scaling.Backoff = 2 },
	} {
		p, _ := precision.ParsePolicy("fp16")
		if change(&p); p.Validate() == nil || !strings.Contains(p.Validate().Error(), want) {
			t.Errorf("error %v, want %q", p.Validate(), want)
		}
	}
}

func TestCast(t *testing.T) {
	out := run(t, devicetest.PureGo(), func(in nodes) nodes { return precision.Cast(in, dtypes.BFloat16) },
		[]float32{1}, []int32{2}, []bool{true})
	for i, want := range []dtypes.DType{dtypes.BFloat16, dtypes.Int32, dtypes.Bool} {
		if out[i].DType() != want {
			t.Errorf("node %d is cast to %s, want %s", i, out[i].DType(), want)
		}
	}
	if _, err := try(devicetest.PureGo(), func(in nodes) nodes { return precision.Cast(in, dtypes.Int8) },
		float32(1)); err == nil {
		t.Error("cast to Int8")
	}
}

// Updates of an eighth of the last place have no effect when rounded to nearest, but with stochastic rounding on
// average.
func TestCastStochastic(t *testing.T) {
	const n = 4096
	x := make([]float32, n)
	random := make([]uint32, n)
	for i := range x {
		x[i], random[i] = 1+0x1p-10, uint32(i*(1<<32/n))
	}
	out := run(t, devicetest.One(), func(in nodes) nodes {
		return nodes{precision.CastStochastic(in[0], dtypes.BFloat16, in[1])}
	}, x, random)
	up := 0
	for _, v := range tensors.MustCopyFlatData[bfloat16.BFloat16](out[0]) {
		switch v.Float32() {
		case 1:
		case 1 + 0x1p-7:
			up++
		default:
			t.Fatalf("1+2⁻¹⁰ becomes %v", v)
		}
	}
	if up != n/8 {
		t.Errorf("%d of %d are rounded up, want an eighth", up, n)
	}
	if _, err := try(devicetest.PureGo(), func(in nodes) nodes {
		return nodes{precision.CastStochastic(in[0], dtypes.Float32, graph.OnesLike(in[0]))}
	}, float32(1)); err == nil {
		t.Error("stochastic cast to Float32")
	}
	if _, err := try(devicetest.PureGo(), func(in nodes) nodes {
		half := graph.ConvertDType(in[0], dtypes.Float16)
		return nodes{precision.CastStochastic(half, dtypes.BFloat16, in[1])}
	}, float32(1), uint32(1)); err == nil || !strings.Contains(err.Error(), "numbers of type Float16") {
		t.Errorf("stochastic cast of Float16: error %v", err)
	}
}
