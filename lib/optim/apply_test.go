package optim_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

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
	got := mustCall(t, oneStep(opt, tree), append(in, two)...)
	for i, s := range tree {
		want := mustCall(t, func(in []*graph.Node) []*graph.Node {
			w, s := opt.Update(optim.Update{Spec: s, Param: in[0], Grad: in[1], States: in[2:4], Step: in[4]})
			return append([]*graph.Node{w}, s...)
		}, in[i], in[3+i], in[6+2*i], in[7+2*i], two)
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
			opt, err := optim.Parse(name, lr)
			if err != nil {
				t.Fatal(err)
			}
			return opt
		}
		out := mustCall(t, func(in []*graph.Node) []*graph.Node {
			g := in[0].Graph()
			u := optim.Update{Spec: tree[0], Param: in[0], Grad: in[1], States: in[2:], Step: graph.Const(g, int32(1))}
			want, wantStates := at(0.125).Update(u)
			u.Rate = graph.Const(g, 0.5)
			got, gotStates := optim.Scheduled(at(1), optim.Constant(0.25)).Update(u)
			return slices.Concat([]*graph.Node{got}, gotStates, []*graph.Node{want}, wantStates)
		}, append(values, zeros(t, optim.States(at(1), tree))...)...)
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
	out := mustCall(t, oneStep(opt, tree), none, none, none, none, one, one, one, one, none, none,
		tensors.FromScalar(int32(1)))
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
		opt, err := optim.Parse(name, 1e-3)
		if err != nil {
			t.Fatal(err)
		}
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
