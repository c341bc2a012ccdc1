package optim_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

func TestValidate(t *testing.T) {
	adamw := func(change func(*optim.AdamWOptimizer)) optim.Optimizer {
		r := optim.AdamW(1e-3)
		change(&r)
		return r
	}
	adafactor := func(change func(*optim.AdafactorOptimizer)) optim.Optimizer {
		r := optim.Adafactor(0)
		change(&r)
		return r
	}
	eight := optim.Adam8bit(1e-3)
	eight.Beta1 = -1
	for _, c := range []struct {
		opt  optim.Optimizer
		want string // part of the error; "" for none
	}{
		{optim.AdamW(3e-4), ""},
		{optim.AdamW(0), ""},
		{optim.AdamW(-1), "AdamW.LR is -1"},
		{optim.AdamW(math.Inf(1)), "AdamW.LR is +Inf"},
		{optim.AdamW(math.NaN()), "AdamW.LR is NaN"},
		{adamw(func(r *optim.AdamWOptimizer) { r.Beta1 = 1 }),
			"AdamW.Beta1 is 1: set it to at least 0 and less than 1"},
		{adamw(func(r *optim.AdamWOptimizer) { r.Beta2 = -0.1 }), "AdamW.Beta2 is -0.1"},
		{adamw(func(r *optim.AdamWOptimizer) { r.Eps = -1e-8 }), "AdamW.Eps is -1e-08"},
		{adamw(func(r *optim.AdamWOptimizer) { r.WeightDecay = -0.5 }), "AdamW.WeightDecay is -0.5"},
		{optim.SGD(0.1), ""},
		{optim.SGD(-0.1), "SGD.LR is -0.1"},
		{optim.SGDOptimizer{LR: 0.1, Momentum: 1.5}, "SGD.Momentum is 1.5"},
		{optim.SGDOptimizer{LR: 0.1, WeightDecay: -1}, "SGD.WeightDecay is -1"},
		{optim.SGDOptimizer{LR: 0.1, Nesterov: true}, "set a momentum"},
		{optim.Lion(-1), "Lion.LR is -1"},
		{optim.LionOptimizer{Beta2: 1}, "Lion.Beta2 is 1"},
		{optim.LAMB(-1), "LAMB.LR is -1"},
		{optim.Adafactor(0), ""},
		{optim.Adafactor(-1), "Adafactor.LR is -1"},
		{adafactor(func(r *optim.AdafactorOptimizer) { r.Eps1 = 0 }), "Adafactor.Eps1 is 0"},
		{adafactor(func(r *optim.AdafactorOptimizer) { r.Eps1 = 0x1p-127 }), "Adafactor.Eps1 is 5.87"},
		{adafactor(func(r *optim.AdafactorOptimizer) { r.Eps2 = 0 }), "Adafactor.Eps2 is 0"},
		{adafactor(func(r *optim.AdafactorOptimizer) { r.Clip = 0 }), "Adafactor.Clip is 0"},
		{adafactor(func(r *optim.AdafactorOptimizer) { r.Decay = -1 }), "Adafactor.Decay is -1"},
		{adafactor(func(r *optim.AdafactorOptimizer) { r.Beta1 = 1 }), "Adafactor.Beta1 is 1"},
		{optim.Adam8bit(1e-3), ""},
		{eight, "Adam8bit.Beta1 is -1"},
		{optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(1)}, "Adam8bit.Block is 0"},
		{optim.Scheduled(optim.SGD(-1), optim.Constant(1)), "SGD.LR is -1"},
		{optim.Scheduled(optim.SGD(1), optim.Cosine{}), "Cosine.Steps is 0"},
		{optim.Scheduled(nil, optim.Constant(1)), "lacks its optimizer"},
		{optim.Scheduled(optim.SGD(1), nil), "its schedule"},
		{optim.Grouped(optim.SGD(1)), ""},
		{optim.Grouped(nil), "no optimizer for the rest"},
		{optim.Grouped(optim.SGD(-1)), "SGD.LR is -1"},
		{optim.Grouped(optim.SGD(1), optim.Group{Optimizer: optim.SGD(1)}), "group #0 lacks"},
		{optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w")}), "group #0 lacks"},
		{optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w"), Optimizer: optim.SGD(-2)}),
			"group #0: optim: SGD.LR is -2"},
	} {
		refused(t, c.opt, c.opt.Validate(), c.want)
		optim.States(c.opt, smallTree) // does not panic, valid or not
		for _, part := range []optim.Part{optim.Cut{}, optim.Cut{Axis: 7, Ranks: -1}, optim.Cut{Axis: 1, Ranks: 2},
			optim.Flat{}, optim.Flat{Length: -1}} {
			for _, s := range smallTree {
				c.opt.States(s, part)
			}
		}
	}
}

// Apply and Update panic while the graph is built, which is an error of the call.
func TestApplyRefuses(t *testing.T) {
	tree := params.Tree{params.New("a", dtypes.Float32, 2), params.New("b", dtypes.Float32, 3)}
	two, three := tensors.FromValue([]float32{1, 2}), tensors.FromValue([]float32{1, 2, 3})
	whole := tensors.FromValue([]int32{1, 2})
	one := tensors.FromScalar(int32(1))
	for _, c := range []struct {
		name   string
		opt    optim.Optimizer
		states int
		in     []*tensors.Tensor // parameters, gradients, states and step
		want   string
	}{
		{"good", optim.SGD(0.1), 0, []*tensors.Tensor{two, three, two, three, one}, ""},
		{"gradients swapped", optim.SGD(0.1), 0, []*tensors.Tensor{two, three, three, two, one},
			`the gradient "a" has shape`},
		{"parameters swapped", optim.SGD(0.1), 0, []*tensors.Tensor{three, two, two, three, one},
			`the parameter "a" has shape`},
		{"whole numbers", optim.SGD(0.1), 0, []*tensors.Tensor{two, three, whole, three, one}, "a floating-point type"},
		{"a state missing", optim.SGDOptimizer{LR: 0.1, Momentum: 0.5}, 1,
			[]*tensors.Tensor{two, three, two, three, two, one}, "1 states for a tree of 2 parameters: give 2"},
		{"a state of another shape", optim.SGDOptimizer{LR: 0.1, Momentum: 0.5}, 2,
			[]*tensors.Tensor{two, three, two, three, two, two, one}, `the value of "b.momentum" has shape`},
		{"step not a scalar", optim.SGD(0.1), 0, []*tensors.Tensor{two, three, two, three, two}, "the step has shape"},
		{"optimizer not valid", optim.SGD(-1), 0, []*tensors.Tensor{two, three, two, three, one}, "SGD.LR is -1"},
		{"scheduled optimizer not valid", optim.Scheduled(nil, nil), 0, []*tensors.Tensor{two, three, two, three, one},
			"lacks its optimizer"},
		{"grouped optimizer not valid", optim.Grouped(nil), 0, []*tensors.Tensor{two, three, two, three, one},
			"no optimizer for the rest"},
	} {
		_, err := call(func(in []*graph.Node) []*graph.Node {
			w, _ := optim.Apply(c.opt, tree, in[:2], in[2:4], in[4:4+c.states], in[4+c.states])
			return w
		}, c.in...)
		refused(t, c.name, err, c.want)
	}
}

// Apply gives each parameter its own gradient and its own states.
func TestApplyEqualsUpdates(t *testing.T) {
	opt := optim.AdamW(0.1)
	tree := params.Tree{params.New("a", dtypes.Float32, 2), params.New("b", dtypes.Float32, 2),
		params.New("c", dtypes.Float32, 2)}
	random := rand.New(rand.NewPCG(5, 6))
	var in []*tensors.Tensor // three parameters, three gradients, six states
	for range 12 {
		in = append(in, tensors.FromValue([]float32{random.Float32(), random.Float32()}))
	}
	two := tensors.FromScalar(int32(2))
	got := must.Value(call(oneStep(opt, tree), append(in, two)...))
	for i, s := range tree {
		want := must.Value(call(func(in []*graph.Node) []*graph.Node {
			w, s := opt.Update(optim.Update{Spec: s, Param: in[0], Grad: in[1], States: in[2:4], Step: in[4]})
			return append([]*graph.Node{w}, s...)
		}, in[i], in[3+i], in[6+2*i], in[7+2*i], two))
		for k, at := range []int{i, 3 + 2*i, 4 + 2*i} {
			if !got[at].Equal(want[k]) {
				t.Errorf("output %d of %s: %v, want %v", k, s.Name, got[at].Value(), want[k].Value())
			}
		}
	}
}

// The rate multiplies the learning rate of every optimizer, and a schedule multiplies a rate from outside.
func TestRate(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	tree := params.Tree{params.New("w", dtypes.Float32, 3, 4)}
	values := append(normal(tree, random), normal(tree, random)...)
	for _, name := range append(optim.Names(), "adafactor with a mean") {
		at := func(lr float64) optim.Optimizer {
			if name == "adafactor with a mean" {
				opt := optim.Adafactor(lr)
				opt.Beta1 = 0.5
				return opt
			}
			opt := must.Value(optim.Parse(name, lr))
			return opt
		}
		out := must.Value(call(func(in []*graph.Node) []*graph.Node {
			g := in[0].Graph()
			u := optim.Update{Spec: tree[0], Param: in[0], Grad: in[1], States: in[2:], Step: graph.Const(g, int32(1))}
			want, wantStates := at(0.125).Update(u)
			u.Rate = graph.Const(g, 0.5)
			got, gotStates := optim.Scheduled(at(1), optim.Constant(0.25)).Update(u)
			return slices.Concat([]*graph.Node{got}, gotStates, []*graph.Node{want}, wantStates)
		}, append(values, zeros(t, optim.States(at(1), tree))...)...))
		for k := range len(out) / 2 {
			if got, want := floats(t, out[k]), floats(t, out[k+len(out)/2]); !slices.EqualFunc(got, want, near) {
				t.Errorf("%s: output %d is %v, want %v", name, k, got, want)
			}
		}
	}
}

// near is equal up to the last bits of float32.
func near(a, b float64) bool { return scalar.EqualWithinAbsOrRel(a, b, 1e-7, 1e-6) }

// Each group's parameters are those that it selects; the first group has precedence.
func TestGrouped(t *testing.T) {
	tree := params.Tree{params.New("h.w", dtypes.Float32, 1), params.New("h.g", dtypes.Float32, 1),
		params.New("tok", dtypes.Float32, 1), params.New("g", dtypes.Float32, 1)}
	opt := optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("*.g", "tok"),
		Optimizer: optim.SGDOptimizer{LR: 10, Momentum: 0.5}},
		optim.Group{Has: optim.Named("*g"), Optimizer: optim.SGD(100)})
	if got := optim.States(opt, tree).Names(); !slices.Equal(got, []string{"h.g.momentum", "tok.momentum"}) {
		t.Errorf("states %q", got)
	}
	one := tensors.FromValue([]float32{1})
	none := tensors.FromValue([]float32{0})
	out := must.Value(call(oneStep(opt, tree), none, none, none, none, one, one, one, one, none, none,
		tensors.FromScalar(int32(1))))
	for i, want := range []float64{-1, -10, -10, -100} {
		if got := floats(t, out[i])[0]; got != want {
			t.Errorf("%s becomes %g, want %g", tree[i].Name, got, want)
		}
	}
}

// The bytes per element of the states of each optimizer, for a matrix of 96 rows and 128 columns.
func TestBytesPerParameter(t *testing.T) {
	const r, c = 96, 128
	want := map[string]float64{"sgd": 0, "momentum": 4, "nesterov": 4, "adam": 8, "adamw": 8, "lion": 4, "lamb": 8,
		"adafactor": 4. * (r + c) / (r * c), "adam8bit": 2 + 8./256}
	if got := len(optim.Names()); got != len(want) {
		t.Errorf("%d optimizers, want %d", got, len(want))
	}
	for _, name := range optim.Names() {
		opt := must.Value(optim.Parse(name, 1e-3))
		for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16} {
			if got := optim.BytesPerParameter(opt, params.Tree{
				params.New("w", dtype, r, c)}); !scalar.EqualWithinAbs(got, want[name], 1e-12) {
				t.Errorf("%s keeps %g bytes, want %g", name, got, want[name])
			}
		}
		if got := optim.BytesPerParameter(opt, nil); got != 0 {
			t.Errorf("%s keeps %g bytes for nothing", name, got)
		}
	}
	// bitsandbytes stores the moments of fewer than 4096 elements in 32 bits.
	for n, want := range map[int]float64{4095: 8, 4096: 2 + 8./256} {
		if got := optim.BytesPerParameter(optim.Adam8bit(1),
			params.Tree{params.New("w", dtypes.Float32, n)}); got != want {
			t.Errorf("8-bit Adam keeps %g bytes for each of %d elements, want %g", got, n, want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name string
		lr   float64
		want string
	}{{"adamw", 1e-3, ""}, {"adafactor", 0, ""}, {"AdamW", 1, ""},
		{"adam9", 1, `no optimizer "adam9": choose one of ["adafactor"`}, {"", 1, "no optimizer"},
		{"sgd", -1, "SGD.LR is -1"}} {
		opt, err := optim.Parse(c.name, c.lr)
		refused(t, c.name, err, c.want)
		if (opt == nil) != (err != nil) {
			t.Errorf("%q: optimizer %v with error %v", c.name, opt, err)
		}
	}
	if !slices.IsSorted(optim.Names()) || strings.Join(optim.Names(), "") == "" {
		t.Errorf("names %q", optim.Names())
	}
}

// clip scales gradients to a norm of at most limit, and returns their norm before.
func clip(grads []*graph.Node, limit float64, sum func(*graph.Node) *graph.Node) ([]*graph.Node, *graph.Node) {
	norm := optim.GlobalNorm(grads, sum)
	return optim.ClipTo(grads, limit, norm), norm
}

func TestClip(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	grads := normal(smallTree, random)
	square := 0.0
	for _, g := range grads {
		for _, x := range floats(t, g) {
			square += x * x
		}
	}
	norm := math.Sqrt(square)
	for _, limit := range []float64{1e-3, norm / 2, norm * 1.01, 1e6} {
		out := must.Value(call(func(in []*graph.Node) []*graph.Node {
			clipped, norm := clip(in, limit, nil)
			return append(clipped, norm)
		}, grads...))
		if got := floats(t, out[len(grads)])[0]; !scalar.EqualWithinRel(got, norm, 1e-6) {
			t.Errorf("norm %g, want %g", got, norm)
		}
		for k, g := range grads {
			for i, x := range floats(t, g) {
				if got, want := floats(t, out[k])[i], x*math.Min(1, limit/norm); !scalar.EqualWithinRel(got, want,
					2e-6) {
					t.Errorf("clipped to %g: gradient %d[%d] is %g, want %g", limit, k, i, got, want)
				}
			}
		}
	}
}

// Zero gradients stay zero, half-precision squares do not overflow, and a norm that is not finite makes all NaN.
func TestClipLimits(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		name         string
		a, b         []float32
		norm         float64
		wantA        []float64
		half, spoilt bool
	}{
		{"zero", []float32{0, 0}, []float32{0}, 0, []float64{0, 0}, false, false},
		{"large in half precision", []float32{30000, 0}, []float32{-40000}, 50000, []float64{0.6, 0}, true, false},
		{"NaN", []float32{1, 2}, []float32{float32(math.NaN())}, math.NaN(), nil, false, true},
		{"infinity", []float32{1, inf}, []float32{3}, math.Inf(1), nil, false, true},
		{"squares beyond float32", []float32{1, 1e30}, []float32{3}, math.Inf(1), nil, false, true},
	} {
		out := must.Value(call(func(in []*graph.Node) []*graph.Node {
			dtype := dtypes.Float32
			if c.half {
				dtype = dtypes.Float16
			}
			in = []*graph.Node{graph.ConvertDType(in[0], dtype), graph.ConvertDType(in[1], dtype)}
			clipped, norm := clip(in, 1, nil)
			if clipped[0].DType() != dtype || norm.DType() != dtypes.Float32 {
				t.Errorf("%s: gradients are %s, the norm %s", c.name, clipped[0].DType(), norm.DType())
			}
			return []*graph.Node{graph.ConvertDType(clipped[0], dtypes.Float32),
				graph.ConvertDType(clipped[1], dtypes.Float32), norm}
		}, tensors.FromValue(c.a), tensors.FromValue(c.b)))
		if got := floats(t, out[2])[0]; !(scalar.EqualWithinRel(got, c.norm, 1e-6) || got == c.norm || got != got &&
			c.norm != c.norm) {
			t.Errorf("%s: norm %g, want %g", c.name, got, c.norm)
		}
		for i, got := range floats(t, out[0]) {
			if c.spoilt != math.IsNaN(got) || !c.spoilt && !scalar.EqualWithinAbs(got, c.wantA[i], 1e-3) {
				t.Errorf("%s: element %d becomes %g", c.name, i, got)
			}
		}
		if got := floats(t, out[1])[0]; c.spoilt != math.IsNaN(got) {
			t.Errorf("%s: the other gradient becomes %g", c.name, got)
		}
	}
}

// Ranks that all-reduce their squares clip by the norm of all gradients.
func TestClipShards(t *testing.T) {
	out := must.Value(call(func(in []*graph.Node) []*graph.Node {
		ranks := lockstep(2, func(rank int, sum func(*graph.Node) *graph.Node) []*graph.Node {
			clipped, norm := clip([]*graph.Node{in[rank]}, 1, sum)
			return append(clipped, norm)
		})
		return append(ranks[0], ranks[1]...)
	}, tensors.FromValue([]float32{3, 0}), tensors.FromValue([]float32{0, -4})))
	for k, want := range [][]float64{{0.6, 0}, {5}, {0, -0.8}, {5}} {
		for i, got := range floats(t, out[k]) {
			if !scalar.EqualWithinAbs(got, want[i], 1e-6) {
				t.Errorf("output %d: %v, want %v", k, got, want)
			}
		}
	}
}

// Gradients of float64 keep its precision, and those of 0 stay 0 with the smallest norm to clip to.
func TestClipKeeps(t *testing.T) {
	const fine = 1 + 0x1p-40
	out := must.Value(call(func(in []*graph.Node) []*graph.Node {
		whole, _ := clip(in[:1], 2, nil)
		half, _ := clip(in[:1], 0.5, nil)
		zero, _ := clip(in[1:], 0x1p-126, nil)
		return []*graph.Node{whole[0], half[0], zero[0]}
	}, tensors.FromValue([]float64{fine}), tensors.FromValue([]float32{0})))
	for i, want := range []float64{fine, fine / 2, 0} {
		if got := floats(t, out[i])[0]; got != want {
			t.Errorf("result %d is %v, want %v", i, got, want)
		}
	}
}

func TestClipRefuses(t *testing.T) {
	for _, c := range []struct {
		max   float64
		grads int
		want  string
	}{{1, 1, ""}, {0, 1, "largest norm is 0"}, {-1, 1, "largest norm is -1"}, {math.NaN(), 1, "largest norm is NaN"},
		{math.Inf(1), 1, "largest norm is +Inf"}, {1, 0, "no gradients"},
		{1e-38, 1, "largest norm is 1e-38"}, {1e-46, 1, "largest norm is 1e-46: give a number of at least 1.2e-38"},
		{0x1p-126, 1, ""}} {
		_, err := call(func(in []*graph.Node) []*graph.Node {
			_, norm := clip(in[:c.grads], c.max, nil)
			return []*graph.Node{norm}
		}, tensors.FromValue([]float32{1}))
		refused(t, c.max, err, c.want)
	}
}

var schedules = []optim.Schedule{
	optim.Constant(0.3),
	optim.Warmup{Steps: 3},
	optim.Warmup{Steps: 1, Then: optim.Linear{Steps: 4}},
	optim.Warmup{Steps: 3, Then: optim.Cosine{Steps: 9, Floor: 0.1}},
	optim.Warmup{Steps: 2, Then: optim.Warmup{Steps: 4, Then: optim.InverseSqrt{Steps: 3}}},
	optim.Cosine{Steps: 7},
	optim.Cosine{Steps: 1, Floor: 1},
	optim.Linear{Steps: 10, Floor: 0.25},
	optim.InverseSqrt{Steps: 4},
	optim.Noam{Width: 512, Warmup: 5},
}

// In the graph a schedule equals that on the host.
func TestScheduleInGraph(t *testing.T) {
	backend := devicetest.PureGo()
	exec := must.Value(graph.NewExec(backend, func(step *graph.Node) []*graph.Node {
		rates := make([]*graph.Node, len(schedules))
		for i, s := range schedules {
			rates[i] = s.Rate(step)
		}
		return rates
	}))
	defer exec.Finalize()
	for step := 1; step <= 16; step++ {
		for _, number := range []any{int32(step), float32(step)} {
			rates := must.Value(exec.Call(number))
			for i, s := range schedules {
				if got := tensors.ToScalar[float64](rates[i]); !scalar.EqualWithinAbs(got, s.At(step), 1e-12) {
					t.Errorf("%T%+v at step %d: %g in the graph, %g on the host", s, s, step, got, s.At(step))
				}
			}
		}
	}
}

func TestScheduleAt(t *testing.T) {
	noam := func(step, warmup float64) float64 { // Vaswani et al. 2017, equation 3
		return math.Pow(512, -0.5) * math.Min(math.Pow(step, -0.5), step*math.Pow(warmup, -1.5))
	}
	for _, c := range []struct {
		schedule optim.Schedule
		want     map[int]float64
	}{
		{optim.Constant(0.3), map[int]float64{1: 0.3, 1000: 0.3}},
		{optim.Warmup{Steps: 4}, map[int]float64{1: 0.25, 2: 0.5, 4: 1, 5: 1}},
		{optim.Warmup{Steps: 4, Then: optim.Linear{Steps: 4}}, map[int]float64{4: 1, 5: 1, 6: 0.75, 9: 0, 99: 0}},
		{optim.Cosine{Steps: 6}, map[int]float64{1: 1, 3: 0.75, 4: 0.5, 5: 0.25, 7: 0, 8: 0}},
		{optim.Cosine{Steps: 6, Floor: 0.2}, map[int]float64{1: 1, 3: 0.8, 4: 0.6, 7: 0.2, 8: 0.2}},
		{optim.Linear{Steps: 4, Floor: 0.2}, map[int]float64{1: 1, 2: 0.8, 5: 0.2, 6: 0.2}},
		{optim.InverseSqrt{Steps: 100}, map[int]float64{1: 1, 100: 1, 400: 0.5, 10000: 0.1}},
		{optim.Noam{Width: 512, Warmup: 4000}, map[int]float64{1: noam(1, 4000), 4000: noam(4000, 4000),
			9000: noam(9000, 4000)}},
	} {
		for step, want := range c.want {
			if got := c.schedule.At(step); !scalar.EqualWithinAbs(got, want, 1e-12) {
				t.Errorf("%T%+v at step %d: %g, want %g", c.schedule, c.schedule, step, got, want)
			}
		}
	}
}

func TestScheduleValidate(t *testing.T) {
	for _, s := range schedules {
		refused(t, s, s.Validate(), "")
	}
	for _, c := range []struct {
		schedule optim.Schedule
		want     string
	}{
		{optim.Constant(-1), "Constant is -1"},
		{optim.Constant(math.NaN()), "Constant is NaN"},
		{optim.Warmup{}, "Warmup.Steps is 0: set it to at least 1"},
		{optim.Warmup{Steps: 1, Then: optim.Linear{}}, "Linear.Steps is 0"},
		{optim.Cosine{Steps: -3}, "Cosine.Steps is -3"},
		{optim.Cosine{Steps: 3, Floor: 1.5}, "Cosine.Floor is 1.5: set it to 0 to 1"},
		{optim.Linear{Steps: 3, Floor: math.NaN()}, "Linear.Floor is NaN"},
		{optim.InverseSqrt{}, "InverseSqrt.Steps is 0"},
		{optim.Noam{Warmup: 1}, "Noam.Width is 0"},
		{optim.Noam{Width: 1}, "Noam.Warmup is 0"},
	} {
		refused(t, c.schedule, c.schedule.Validate(), c.want)
	}
}

// Three steps of SGD on the loss w², whose gradient is 2w.
func ExampleOptimizer() {
	opt := optim.SGD(0.25)
	spec := params.New("w", dtypes.Float32, 2)
	step := must.Value(graph.NewExec(devicetest.One(), func(w *graph.Node) *graph.Node {
		loss := graph.ReduceAllSum(graph.Square(w))
		next, _ := opt.Update(optim.Update{
			Spec:  spec,
			Param: w,
			Grad:  graph.Gradient(loss, w)[0],
			Step:  graph.Const(w.Graph(), int32(1)),
		})
		return next
	}))
	w := tensors.FromValue([]float32{8, -4})
	for range 3 {
		w = must.Value(step.Call1(w))
		fmt.Println(w.Value())
	}
	// Output:
	// [4 -2]
	// [2 -1]
	// [1 -0.5]
}

// The usual schedule, warm-up and cosine, and no weight decay for normalization scales and biases.
func ExampleScheduled() {
	schedule := optim.Warmup{Steps: 4, Then: optim.Cosine{Steps: 8, Floor: 0.1}}
	opt := optim.Scheduled(
		optim.Grouped(optim.AdamW(3e-4), optim.Group{Has: optim.Named("*.g", "*.b"), Optimizer: optim.Adam(3e-4)}),
		schedule)
	fmt.Println(opt.Validate())
	for step := 1; step <= 13; step += 2 {
		fmt.Printf("step %2d: %.3f\n", step, schedule.At(step))
	}
	// Output:
	// <nil>
	// step  1: 0.250
	// step  3: 0.750
	// step  5: 1.000
	// step  7: 0.868
	// step  9: 0.550
	// step 11: 0.232
	// step 13: 0.100
}

// The states of one of four ranks: a matrix cut along its rows, as in tensor parallelism, and a flat part, as in ZeRO.
func ExampleStatesOfParts() {
	tree := params.Tree{params.New("up.w", dtypes.Float32, 64, 30), params.New("down.w", dtypes.Float32, 30, 64)}
	parts := []optim.Part{optim.Cut{Axis: 0, Ranks: 4}, optim.Flat{Length: 480}}
	states := must.Value(optim.StatesOfParts(optim.Adafactor(0), tree, parts))
	for _, s := range states {
		if s.Axis < 0 {
			fmt.Println(s, "the same on every rank")
		} else {
			fmt.Println(s, "joined along axis", s.Axis)
		}
	}
	// Output:
	// up.w.rows (Float32)[16] joined along axis 0
	// up.w.columns (Float32)[30] the same on every rank
	// down.w.rows (Float32)[30] the same on every rank
	// down.w.columns (Float32)[64] the same on every rank
}
