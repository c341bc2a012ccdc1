package optim_test

import (
	"math"
	"math/rand/v2"
	"slices"
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

// optimizerCase is an optimizer and its reference.
type optimizerCase struct {
	name  string
	opt   optim.Optimizer
	plain plain
	onXLA bool // compile it too, one case of each optimizer
}

// exactOptimizers are all optimizers except the quantized one.
func exactOptimizers() []optimizerCase {
	far := optim.AdamWOptimizer{LR: 0.1, Beta1: 0.5, Beta2: 0.75, Eps: 0.3, WeightDecay: 0.2}
	noFirst := optim.AdamW(0.01)
	noFirst.Beta1 = 0
	momentum := optim.SGDOptimizer{LR: 0.1, Momentum: 0.9, WeightDecay: 0.2}
	nesterov := optim.SGDOptimizer{LR: 0.1, Momentum: 0.8, Nesterov: true}
	lion := optim.LionOptimizer{LR: 0.02, Beta1: 0.6, Beta2: 0.8, WeightDecay: 0.3}
	lamb := optim.LAMBOptimizer{LR: 0.1, Beta1: 0.7, Beta2: 0.9, Eps: 0.1, WeightDecay: 0.5}
	fixed := optim.AdafactorOptimizer{LR: 0.03, Absolute: true, Decay: 0.5, Eps1: 1e-4, Eps2: 0.1, Clip: 0.5,
		Beta1: 0.7}
	return []optimizerCase{
		{"AdamW", optim.AdamW(3e-4), plainAdamW(optim.AdamWOptimizer{LR: 3e-4, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8,
			WeightDecay: 0.01}), true},
		{"AdamW other settings", far, plainAdamW(far), false},
		{"AdamW without a first moment", noFirst, plainAdamW(noFirst), false},
		{"Adam", optim.Adam(3e-4), plainAdamW(optim.AdamWOptimizer{LR: 3e-4, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}),
			false},
		{"SGD", optim.SGD(0.1), plainSGD(optim.SGDOptimizer{LR: 0.1}), false},
		{"SGD with momentum", momentum, plainSGD(momentum), false},
		{"SGD with Nesterov's momentum", nesterov, plainSGD(nesterov), true},
		{"Lion", optim.Lion(0.01), plainLion(optim.LionOptimizer{LR: 0.01, Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.1}),
			false},
		{"Lion other settings", lion, plainLion(lion), true},
		{"LAMB", optim.LAMB(0.01), plainLAMB(optim.LAMBOptimizer{LR: 0.01, Beta1: 0.9, Beta2: 0.999, Eps: 1e-6,
			WeightDecay: 0.01}), false},
		{"LAMB other settings", lamb, plainLAMB(lamb), true},
		{"Adafactor", optim.Adafactor(0), plainAdafactor(optim.AdafactorOptimizer{Decay: 0.8, Eps1: 1e-30, Eps2: 1e-3,
			Clip: 1}), false},
		{"Adafactor other settings", fixed, plainAdafactor(fixed), true},
	}
}

// oneStep is Apply as a graph function of parameters, gradients, states and the step.
func oneStep(opt optim.Optimizer, tree params.Tree) func([]*graph.Node) []*graph.Node {
	n := len(tree)
	return func(in []*graph.Node) []*graph.Node {
		last := len(in) - 1
		w, s := optim.Apply(opt, tree, in[:n], in[n:2*n], in[2*n:last], in[last])
		return append(w, s...)
	}
}

// Every optimizer, for every rank of parameter, equals its paper's algorithm.
func TestOptimizersAgainstPlainGo(t *testing.T) {
	const steps = 5
	backend := devicetest.PureGo()
	for _, c := range exactOptimizers() {
		t.Run(c.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			n := len(smallTree)
			exec := must.Value(graph.NewExec(backend, oneStep(c.opt, smallTree)))
			defer exec.Finalize()
			all := append(normal(smallTree, random), zeros(t, optim.States(c.opt, smallTree))...)
			want := make([][]float64, len(all))
			for i, x := range all {
				want[i] = floats(t, x)
			}
			for step := 1; step <= steps; step++ {
				grads := normal(smallTree, random)
				args := slices.Concat(all[:n], grads, all[n:], []*tensors.Tensor{tensors.FromScalar(int32(step))})
				out := must.Value(exec.Call(args))
				at := n // in the states
				for i, s := range smallTree {
					k := at + len(c.opt.States(s, nil))
					c.plain(s.Shape.Dimensions, want[i], floats(t, grads[i]), want[at:k], step)
					at = k
				}
				equal(t, c.opt, step, "plain Go", out, want)
				all = out
				if c.onXLA && step == 2 { // the states are not zero
					compiled := must.Value(devicetest.Call(oneStep(c.opt, smallTree), local(t, args)...))
					equal(t, c.opt, step, "XLA", compiled, want)
				}
			}
		})
	}
}

// equal compares parameters and states of smallTree. float32 has 24 bits, and an update rounds some tens of times.
func equal(t *testing.T, opt optim.Optimizer, step int, where string, got []*tensors.Tensor, want [][]float64) {
	t.Helper()
	names := append(smallTree.Names(), optim.States(opt, smallTree).Names()...)
	for k := range want {
		for i, x := range floats(t, got[k]) {
			if !scalar.EqualWithinAbsOrRel(x, want[k][i], 2e-7, 5e-6) {
				t.Fatalf("%s, step %d: %s[%d] is %g, want %g", where, step, names[k], i, x, want[k][i])
			}
		}
	}
}

// With all zeros, LAMB and Adafactor stay finite, and a parameter can leave zero.
func TestZeros(t *testing.T) {
	tree := params.Tree{params.New("w", dtypes.Float32, 2, 2)}
	none, some := tensors.FromValue([][]float32{{0, 0}, {0, 0}}), tensors.FromValue([][]float32{{1, 0}, {0, -2}})
	for _, opt := range []optim.Optimizer{optim.LAMB(0.1), optim.Adafactor(0.1),
		optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.1), Block: 3, Least: 1}} {
		for _, grad := range []*tensors.Tensor{none, some} {
			args := slices.Concat([]*tensors.Tensor{none, grad}, zeros(t, optim.States(opt, tree)),
				[]*tensors.Tensor{tensors.FromScalar(int32(1))})
			out := must.Value(call(oneStep(opt, tree), args...))
			for i, w := range floats(t, out[0]) {
				if g := floats(t, grad)[i]; math.IsNaN(w) || math.IsInf(w, 0) || g*w > 0 || (g == 0) != (w == 0) {
					t.Errorf("%T: a gradient of %g moves 0 to %g", opt, g, w)
				}
			}
		}
	}
}

// A row without a gradient beside one of 1e8 has 10⁻⁴⁶ of its mean square, which float32 cannot represent; full or cut,
// the steps are those of float64.
func TestAdafactorRowsFarApart(t *testing.T) {
	opt := optim.Adafactor(0.1)
	tree := params.Tree{params.New("w", dtypes.Float32, 2, 2)}
	w, g := []float64{1, 2, 3, 4}, []float64{0, 0, 1e8, -2e8}
	states := [][]float64{{0, 0}, {0, 0}}
	want := slices.Clone(w)
	plainAdafactor(opt)([]int{2, 2}, want, g, states, 1)
	for _, c := range []cutting{{ranks: 1}, {ranks: 2}, {ranks: 2, axis: 1}, {ranks: 2, axis: -1, length: 2}} {
		c.dims = []int{2, 2}
		out := must.Value(call(func(in []*graph.Node) []*graph.Node {
			ranks := lockstep(c.ranks, func(rank int, sum func(*graph.Node) *graph.Node) []*graph.Node {
				return trained(opt, tree, c.onRank(in[0].Graph(), rank, sum), c.of(in[0], rank),
					[]*graph.Node{c.of(in[1], rank)})
			})
			var parts []*graph.Node
			for _, w := range ranks {
				parts = append(parts, w[0])
			}
			return []*graph.Node{join(parts, max(c.axis, 0), in[0])}
		}, tensors.FromValue([][]float32{{1, 2}, {3, 4}}), tensors.FromValue([][]float32{{0, 0}, {1e8, -2e8}})))
		for i, got := range floats(t, out[0]) {
			if !scalar.EqualWithinRel(got, want[i], 1e-6) {
				t.Errorf("%d ranks along axis %d: element %d is %g, want %g", c.ranks, c.axis, i, got, want[i])
			}
		}
	}
}

// With the smallest Eps1 the mean squares stay numbers where XLA flushes products of them to 0.
func TestAdafactorLeastEps(t *testing.T) {
	opt := optim.Adafactor(0.1)
	opt.Eps1 = 0x1p-126
	tree := params.Tree{params.New("w", dtypes.Float32, 2)}
	out := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		g := in[0].Graph()
		w, states := in[:1], in[1:2]
		for step := range int32(3) {
			w, states = optim.Apply(opt, tree, w, in[2:3], states, graph.Const(g, step+1))
		}
		return w
	}, tensors.FromValue([]float32{1, 2}), tensors.FromValue([]float32{0, 0}), tensors.FromValue([]float32{0, 0})))
	if got := floats(t, out[0]); got[0] != 1 || got[1] != 2 {
		t.Errorf("gradients of 0 move {1, 2} to %v", got)
	}
}

// A half-precision parameter's step is that of its float32 copy, rounded; its states are float32.
func TestHalfPrecision(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	wide := params.Tree{params.New("w", dtypes.Float32, 4, 6)}
	values := append(normal(wide, random), normal(wide, random)...)
	for _, c := range append(exactOptimizers(), optimizerCase{name: "Adam8bit",
		opt: optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.1), Block: 7, Least: 1}}) {
		for _, half := range []dtypes.DType{dtypes.BFloat16, dtypes.Float16} {
			tree := params.Tree{params.New("w", half, 4, 6)}
			if got, want := optim.States(c.opt, tree), optim.States(c.opt, wide); !slices.EqualFunc(got, want,
				func(a, b params.Spec) bool { return a.Name == b.Name && a.Shape.Equal(b.Shape) }) {
				t.Errorf("%s: states %v of a %s, want %v", c.name, got, half, want)
			}
			states := zeros(t, optim.States(c.opt, tree))
			out := must.Value(call(func(in []*graph.Node) []*graph.Node {
				g := in[0].Graph()
				w, grad := graph.ConvertDType(in[0], half), graph.ConvertDType(in[1], half)
				states, step := in[2:], graph.Const(g, int32(1))
				a, aStates := optim.Apply(c.opt, tree, []*graph.Node{w}, []*graph.Node{grad}, states, step)
				if a[0].DType() != half {
					t.Errorf("%s: the new parameter is %s, want %s", c.name, a[0].DType(), half)
				}
				w, grad = graph.ConvertDType(w, dtypes.Float32), graph.ConvertDType(grad, dtypes.Float32)
				b, bStates := optim.Apply(c.opt, tree, []*graph.Node{w}, []*graph.Node{grad}, states, step)
				b[0] = graph.ConvertDType(b[0], half)
				return slices.Concat([]*graph.Node{graph.ConvertDType(a[0], dtypes.Float32)}, aStates,
					[]*graph.Node{graph.ConvertDType(b[0], dtypes.Float32)}, bStates)
			}, append(values, states...)...))
			for k := range len(out) / 2 {
				if a, b := floats(t, out[k]), floats(t, out[len(out)/2+k]); !slices.Equal(a, b) {
					t.Errorf("%s, %s: output %d is %v, want %v", c.name, half, k, a, b)
				}
			}
		}
	}
}

// A float64 parameter is computed in float64.
func TestFloat64(t *testing.T) {
	tree := params.Tree{params.New("w", dtypes.Float64, 2)}
	opt := optim.SGDOptimizer{LR: 1e-12, Momentum: 0.5}
	out := must.Value(call(oneStep(opt, tree), tensors.FromValue([]float64{1, 2}), tensors.FromValue([]float64{1, -1}),
		tensors.FromValue([]float64{0, 0}), tensors.FromScalar(int32(1))))
	if got := floats(t, out[0]); got[0] != 1-1e-12 || got[1] != 2+1e-12 {
		t.Errorf("%v, want 1−1e-12 and 2+1e-12", got)
	}
}

// plainMap is bitsandbytes' table: the means of neighbours among evenly spaced boundaries.
func plainMap(signed bool) []float64 {
	var table []float64
	for i := range 7 {
		n := int(math.Pow(2, float64(i))) // spaces between boundaries
		if !signed {
			n *= 2
		}
		for k := range n {
			low, high := 0.1+0.9*float64(k)/float64(n), 0.1+0.9*float64(k+1)/float64(n)
			x := math.Pow(10, float64(i)-6) * (low + high) / 2
			table = append(table, x)
			if signed {
				table = append(table, -x)
			}
		}
	}
	table = append(table, 0, 1)
	slices.Sort(table)
	return table
}

func TestDynamicMap(t *testing.T) {
	for _, signed := range []bool{true, false} {
		table, want := optim.DynamicMap(signed), plainMap(signed)
		if len(want) != len(table) {
			t.Fatalf("%d numbers, want %d", len(table), len(want))
		}
		for i, x := range table {
			if !scalar.EqualWithinRel(float64(x), want[i], 1e-7) && x != float32(want[i]) {
				t.Errorf("signed %v: number %d is %g, want %g", signed, i, x, want[i])
			}
		}
	}
}

// plainNearest looks through the whole table.
func plainNearest(table [256]float32, x float64) int {
	best := 0
	for i, y := range table {
		if math.Abs(float64(y)-x) < math.Abs(float64(table[best])-x) {
			best = i
		}
	}
	return best
}

// Each step starts from the optimizer's own states: the parameter is AdamW's for the decoded moments, and so are the
// new states, code by code; but where a value is within float32 rounding of the middle between two codes, either is
// right. Code 0 is only for a v of 0.
func TestAdam8bitAgainstPlainGo(t *testing.T) {
	const steps = 4
	backend := devicetest.PureGo()
	opt := optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamWOptimizer{LR: 0.01, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8,
		WeightDecay: 0.1}, Block: 7, Least: 1}
	real := opt
	real.Block, real.Least = 256, 4096
	for _, c := range []struct {
		opt   optim.Adam8bitOptimizer
		tree  params.Tree
		onXLA bool
	}{
		{opt, smallTree, true},
		{real, params.Tree{params.New("w", dtypes.Float32, 40, 113)}, false}, // 17 blocks and 168 elements
	} {
		n := len(c.tree)
		random := rand.New(rand.NewPCG(15, 16))
		exec := must.Value(graph.NewExec(backend, oneStep(c.opt, c.tree)))
		defer exec.Finalize()
		all := append(normal(c.tree, random), zeros(t, optim.States(c.opt, c.tree))...)
		for step := 1; step <= steps; step++ {
			grads := normal(c.tree, random)
			args := slices.Concat(all[:n], grads, all[n:], []*tensors.Tensor{tensors.FromScalar(int32(step))})
			out := must.Value(exec.Call(args))
			for i := range n {
				states := [][]*tensors.Tensor{all[n+4*i:][:4], out[n+4*i:][:4]}
				checkAdam8bit(t, c.opt, step, floats(t, all[i]), floats(t, grads[i]), floats(t, out[i]), states[0],
					states[1])
			}
			if c.onXLA && step == 2 {
				compiled := must.Value(devicetest.Call(oneStep(c.opt, c.tree), local(t, args)...))
				for i := range n {
					checkAdam8bit(t, c.opt, step, floats(t, all[i]), floats(t, grads[i]), floats(t, compiled[i]),
						all[n+4*i:][:4], compiled[n+4*i:][:4])
				}
			}
			all = out
		}
	}
}

// checkAdam8bit checks one step of one parameter. The states are codes and scales of m, and of v.
func checkAdam8bit(t *testing.T, r optim.Adam8bitOptimizer, step int, w, g, newW []float64, before,
	after []*tensors.Tensor) {
	t.Helper()
	tables := [][256]float32{optim.DynamicMap(true), optim.DynamicMap(false)}
	moments := make([][]float64, 2) // the new ones, before they are quantized
	rounding := make([][]float64, 2)
	for k := range moments {
		codes, scales := floats(t, before[2*k]), floats(t, before[2*k+1])
		beta := []float64{r.Beta1, r.Beta2}[k]
		for i := range w {
			old := float64(tables[k][int(codes[i])]) * scales[i/r.Block]
			x := []float64{g[i], g[i] * g[i]}[k]
			moments[k] = append(moments[k], beta*old+(1-beta)*x)
			// some rounding errors of 2⁻²⁴
			rounding[k] = append(rounding[k], 0x1p-21*(math.Abs(beta*old)+math.Abs((1-beta)*x)))
		}
	}
	for i := range w {
		mean := moments[0][i] / (1 - math.Pow(r.Beta1, float64(step)))
		square := moments[1][i] / (1 - math.Pow(r.Beta2, float64(step)))
		want := w[i] - r.LR*(mean/(math.Sqrt(square)+r.Eps)+r.WeightDecay*w[i])
		if !scalar.EqualWithinAbsOrRel(newW[i], want, 2e-7, 2e-6) {
			t.Fatalf("step %d: parameter %d is %g, want %g", step, i, newW[i], want)
		}
	}
	ties := 0
	for k, x := range moments {
		codes, scales := floats(t, after[2*k]), floats(t, after[2*k+1])
		for from := 0; from < len(x); from += r.Block {
			block := x[from:min(from+r.Block, len(x))]
			largest := 0.0
			for _, x := range block {
				largest = math.Max(largest, math.Abs(x))
			}
			if got := scales[from/r.Block]; !scalar.EqualWithinRel(got, largest, 2e-6) {
				t.Fatalf("step %d: moment %d: scale %d is %g, want %g", step, k, from/r.Block, got, largest)
			}
			for i := range block {
				share := block[i] / largest
				got, want := int(codes[from+i]), plainNearest(tables[k], share)
				if k == 1 && block[i] > 0 {
					want = max(want, 1)
				}
				if got == want {
					continue
				}
				ties++
				middle := (float64(tables[k][got]) + float64(tables[k][want])) / 2
				if bound := rounding[k][from+i]/largest + 0x1p-21*math.Abs(share); got-want > 1 || want-got > 1 ||
					math.Abs(share-middle) > bound {
					t.Fatalf("step %d: moment %d: element %d, %g of its block's largest, has code %d, want %d", step, k,
						from+i, share, got, want)
				}
			}
		}
	}
	if ties > 1+len(w)/200 {
		t.Errorf("step %d: %d of %d codes are ties", step, ties, 2*len(w))
	}
}

// The zero-point problem: a v below 1.6e-7 of its block's largest, whose m is not as small. Without a gradient AdamW's
// second step is LR·0.9/1.9/√(0.999/1.999), 0.67·LR. With 0 for v it would be 0.9e-6/0.19/1e-8, 474·LR.
func TestAdam8bitZeroPoint(t *testing.T) {
	opt := optim.Adam8bitOptimizer{AdamWOptimizer: optim.Adam(1), Block: 3, Least: 1}
	tree := params.Tree{params.New("w", dtypes.Float32, 3)}
	values := append([]*tensors.Tensor{tensors.FromValue([]float32{0, 0, 0})}, zeros(t, optim.States(opt, tree))...)
	var before []float64
	for step, grad := range [][]float32{{1, 1e-5, 0}, {1, 0, 0}} {
		before = floats(t, values[0])
		args := slices.Concat(values[:1], []*tensors.Tensor{tensors.FromValue(grad)}, values[1:],
			[]*tensors.Tensor{tensors.FromScalar(int32(step + 1))})
		values = must.Value(call(oneStep(opt, tree), args...))
	}
	after := floats(t, values[0])
	for i, most := range []float64{1.01, 0.67, 0} {
		if moved := before[i] - after[i]; !(moved >= 0 && moved <= most) || i < 2 && moved == 0 {
			t.Errorf("the second step moves element %d by %g, want at most %g", i, moved, most)
		}
	}
	if codes := floats(t, values[3]); codes[1] != 1 || codes[2] != 0 {
		t.Errorf("v has the codes %v, want 1 for the smallest and 0 for 0", codes)
	}
}

// NaN stays NaN: it spoils its block and no other.
func TestAdam8bitNotFinite(t *testing.T) {
	opt := optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.01), Block: 2, Least: 1}
	tree := params.Tree{params.New("w", dtypes.Float32, 4)}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		ones := tensors.FromValue([]float32{1, 1, 1, 1})
		out := must.Value(call(func(in []*graph.Node) []*graph.Node {
			return trained(opt, tree, nil, in[0], in[1:])
		}, ones, tensors.FromValue([]float32{1, float32(bad), 1, 1}), ones))
		for i, w := range floats(t, out[0]) {
			if want := i < 2; math.IsNaN(w) != want {
				t.Errorf("after a gradient of %g at element 1, element %d is %g", bad, i, w)
			}
		}
	}
}
