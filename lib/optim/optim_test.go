package optim_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// plain is an optimizer for one element, in float64 and written out from the papers, to compare the rules with.
type plain func(w, g float64, state []float64, step int) float64

func plainAdamW(r optim.AdamWRule) plain {
	return func(w, g float64, s []float64, step int) float64 {
		t := float64(step)
		s[0] = r.Beta1*s[0] + (1-r.Beta1)*g
		s[1] = r.Beta2*s[1] + (1-r.Beta2)*g*g
		m, v := s[0]/(1-math.Pow(r.Beta1, t)), s[1]/(1-math.Pow(r.Beta2, t))
		return w - r.LR*m/(math.Sqrt(v)+r.Eps) - r.LR*r.WeightDecay*w
	}
}

func plainSGD(r optim.SGDRule) plain {
	return func(w, g float64, s []float64, _ int) float64 {
		b := g
		if r.Momentum != 0 {
			s[0] = r.Momentum*s[0] + g
			b = s[0]
		}
		return w - r.LR*b
	}
}

func TestRulesAgainstPlainGo(t *testing.T) {
	far := optim.AdamWRule{LR: 0.1, Beta1: 0.5, Beta2: 0.75, Eps: 0.3, WeightDecay: 0.2}
	noFirst := optim.AdamW(0.01)
	noFirst.Beta1 = 0
	for _, c := range []struct {
		name  string
		rule  optim.Rule
		plain plain
	}{
		{"AdamW", optim.AdamW(3e-4), plainAdamW(optim.AdamWRule{LR: 3e-4, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01})},
		{"AdamW other settings", far, plainAdamW(far)},
		{"AdamW without a first moment", noFirst, plainAdamW(noFirst)},
		{"SGD", optim.SGD(0.1), plainSGD(optim.SGDRule{LR: 0.1})},
		{"SGD with momentum", optim.SGDRule{LR: 0.1, Momentum: 0.9}, plainSGD(optim.SGDRule{LR: 0.1, Momentum: 0.9})},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n, steps = 24, 7
			random := rand.New(rand.NewPCG(1, 2))
			tree := params.Tree{params.New("a", dtypes.Float32, 4, 6)}
			states, err := params.Zeros(optim.States(c.rule, tree))
			if err != nil {
				t.Fatal(err)
			}
			values := make([]float32, n)
			want := make([]float64, n)
			wantStates := make([][]float64, n)
			for i := range values {
				values[i] = float32(random.NormFloat64())
				want[i], wantStates[i] = float64(values[i]), make([]float64, len(states))
			}
			param := tensors.FromFlatDataAndDimensions(values, 4, 6)
			for step := 1; step <= steps; step++ {
				grad := make([]float32, n)
				for i := range grad {
					grad[i] = float32(random.NormFloat64() * math.Pow(10, float64(i%5-3)))
					want[i] = c.plain(want[i], float64(grad[i]), wantStates[i], step)
				}
				out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
					k := len(in)
					p, s := c.rule.Update(in[0], in[1], in[2:k-1], in[k-1])
					return append([]*graph.Node{p}, s...)
				}, append(append([]*tensors.Tensor{param, tensors.FromFlatDataAndDimensions(grad, 4, 6)}, states...),
					tensors.FromScalar(int32(step)))...)
				if err != nil {
					t.Fatal(err)
				}
				param, states = out[0], out[1:]
				for i, got := range tensors.MustCopyFlatData[float32](param) {
					// float32 has 24 bits, and an update rounds some ten times.
					if !scalar.EqualWithinAbsOrRel(float64(got), want[i], 2e-7, 2e-6) {
						t.Fatalf("step %d, element %d: %g, want %g", step, i, got, want[i])
					}
				}
				for k, s := range states {
					for i, got := range tensors.MustCopyFlatData[float32](s) {
						if !scalar.EqualWithinAbsOrRel(float64(got), wantStates[i][k], 1e-9, 2e-6) {
							t.Fatalf("step %d, state %d of element %d: %g, want %g", step, k, i, got, wantStates[i][k])
						}
					}
				}
			}
		})
	}
}

// The change of the first step is LR·sign(g) for any size of gradient (Kingma & Ba 2015, §2.1), which an error in the
// bias correction of either moment would scale.
func TestAdamWFirstStep(t *testing.T) {
	rule := optim.AdamW(0.5)
	rule.WeightDecay = 0
	out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
		p, _ := rule.Update(in[0], in[1], in[2:4], in[4])
		return []*graph.Node{p}
	}, tensors.FromValue([]float32{1, 1, 1}), tensors.FromValue([]float32{1e-3, -7, 1e4}),
		tensors.FromValue([]float32{0, 0, 0}), tensors.FromValue([]float32{0, 0, 0}), tensors.FromScalar(float32(1)))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{0.5, 1.5, 0.5} {
		if got := tensors.MustCopyFlatData[float32](out[0])[i]; !scalar.EqualWithinAbs(float64(got), want, 1e-5) {
			t.Errorf("element %d: %g, want %g", i, got, want)
		}
	}
}

// A shard updates to what its part of the whole does, whatever the cut: to the same bits but for the last one or two,
// since XLA fuses a product and a sum to one rounding in some loops and not in others.
func TestShardsEqualWhole(t *testing.T) {
	for _, rule := range []optim.Rule{optim.AdamW(0.01), optim.SGD(0.1), optim.SGDRule{LR: 0.1, Momentum: 0.9}} {
		const n = 37
		random := rand.New(rand.NewPCG(3, 4))
		states := len(rule.States(params.New("a", dtypes.Float32, n)))
		flat := make([][]float32, 2+states) // parameter, gradient, states
		for k := range flat {
			flat[k] = make([]float32, n)
			for i := range flat[k] {
				flat[k][i] = float32(math.Abs(random.NormFloat64()))
			}
		}
		update := func(from, to int) []float32 {
			var in []*tensors.Tensor
			for _, f := range flat {
				in = append(in, tensors.FromFlatDataAndDimensions(f[from:to], to-from))
			}
			out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
				k := len(in)
				p, s := rule.Update(in[0], in[1], in[2:k-1], in[k-1])
				return []*graph.Node{graph.Concatenate(append([]*graph.Node{p}, s...), 0)}
			}, append(in, tensors.FromScalar(int64(3)))...)
			if err != nil {
				t.Fatal(err)
			}
			return tensors.MustCopyFlatData[float32](out[0])
		}
		whole := update(0, n)
		for _, cuts := range [][]int{{0, 1, n}, {0, 16, 32, n}, {0, 9, 18, 27, n}} {
			for c := range len(cuts) - 1 {
				from, to := cuts[c], cuts[c+1]
				part := update(from, to)
				for k := range 1 + states {
					for i := from; i < to; i++ {
						if got, want := part[k*(to-from)+i-from], whole[k*n+i]; math.Abs(float64(got-want)) > 0x1p-22*math.Abs(float64(want)) {
							t.Fatalf("%T cut %v: output %d, element %d: %g, want %g", rule, cuts, k, i, got, want)
						}
					}
				}
			}
		}
	}
}

func TestValidate(t *testing.T) {
	adamw := func(change func(*optim.AdamWRule)) optim.Rule {
		r := optim.AdamW(1e-3)
		change(&r)
		return r
	}
	for _, c := range []struct {
		rule optim.Rule
		want string // part of the error; "" for none
	}{
		{optim.AdamW(3e-4), ""},
		{optim.AdamW(0), ""},
		{optim.AdamW(-1), "AdamW.LR is -1"},
		{optim.AdamW(math.Inf(1)), "AdamW.LR is +Inf"},
		{optim.AdamW(math.NaN()), "AdamW.LR is NaN"},
		{adamw(func(r *optim.AdamWRule) { r.Beta1 = 1 }), "AdamW.Beta1 is 1: set it to at least 0 and less than 1"},
		{adamw(func(r *optim.AdamWRule) { r.Beta2 = -0.1 }), "AdamW.Beta2 is -0.1"},
		{adamw(func(r *optim.AdamWRule) { r.Eps = -1e-8 }), "AdamW.Eps is -1e-08"},
		{adamw(func(r *optim.AdamWRule) { r.WeightDecay = -0.5 }), "AdamW.WeightDecay is -0.5"},
		{optim.SGD(0.1), ""},
		{optim.SGD(-0.1), "SGD.LR is -0.1"},
		{optim.SGDRule{LR: 0.1, Momentum: 1.5}, "SGD.Momentum is 1.5"},
	} {
		err := c.rule.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: error %v, want %q", c.rule, err, c.want)
		}
	}
}

// Apply and Update panic while the graph is built, which reaches the caller as an error of the call.
func TestApplyRefuses(t *testing.T) {
	tree := params.Tree{params.New("a", dtypes.Float32, 2), params.New("b", dtypes.Float32, 3)}
	two, three := tensors.FromValue([]float32{1, 2}), tensors.FromValue([]float32{1, 2, 3})
	one := tensors.FromScalar(int32(1))
	for _, c := range []struct {
		name   string
		rule   optim.Rule
		states int
		in     []*tensors.Tensor // parameters, gradients, states and step
		want   string
	}{
		{"good", optim.SGD(0.1), 0, []*tensors.Tensor{two, three, two, three, one}, ""},
		{"gradients swapped", optim.SGD(0.1), 0, []*tensors.Tensor{two, three, three, two, one}, `gradients: params: the value of "a"`},
		{"parameters swapped", optim.SGD(0.1), 0, []*tensors.Tensor{three, two, two, three, one}, `parameters: params: the value of "a"`},
		{"a state missing", optim.SGDRule{LR: 0.1, Momentum: 0.5}, 1, []*tensors.Tensor{two, three, two, three, two, one}, "states: params: 1 values"},
		{"step not a scalar", optim.SGD(0.1), 0, []*tensors.Tensor{two, three, two, three, two}, "the step has shape"},
		{"rule not valid", optim.SGD(-1), 0, []*tensors.Tensor{two, three, two, three, one}, "SGD.LR is -1"},
	} {
		_, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			w, _ := optim.Apply(c.rule, tree, in[:2], in[2:4], in[4:4+c.states], in[4+c.states])
			return w
		}, c.in...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

// Apply gives each parameter its own gradient and its own states.
func TestApplyEqualsUpdates(t *testing.T) {
	rule := optim.AdamW(0.1)
	tree := params.Tree{params.New("a", dtypes.Float32, 2), params.New("b", dtypes.Float32, 2), params.New("c", dtypes.Float32, 2)}
	random := rand.New(rand.NewPCG(5, 6))
	var in []*tensors.Tensor // three parameters, three gradients, six states
	for range 12 {
		in = append(in, tensors.FromValue([]float32{random.Float32(), random.Float32()}))
	}
	one := tensors.FromScalar(int32(2))
	got, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
		w, s := optim.Apply(rule, tree, in[:3], in[3:6], in[6:12], in[12])
		return append(w, s...)
	}, append(in, one)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range tree {
		want, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			w, s := rule.Update(in[0], in[1], in[2:4], in[4])
			return append([]*graph.Node{w}, s...)
		}, in[i], in[3+i], in[6+2*i], in[7+2*i], one)
		if err != nil {
			t.Fatal(err)
		}
		for k, at := range []int{i, 3 + 2*i, 4 + 2*i} {
			if !got[at].InDelta(want[k], 1e-6) {
				t.Errorf("output %d of %s: %v, want %v", k, s.Name, got[at].Value(), want[k].Value())
			}
		}
	}
}
