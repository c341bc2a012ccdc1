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
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

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
	// By hand: the ends of the table, its middle, and the smallest numbers.
	signed, unsigned := optim.DynamicMap(true), optim.DynamicMap(false)
	for _, c := range []struct{ got, want float32 }{
		{signed[0], -0.99296875}, {signed[127], 0}, {signed[128], 5.5e-7}, {signed[126], -5.5e-7},
		{signed[254], 0.99296875}, {signed[255], 1},
		{unsigned[0], 0}, {unsigned[1], 3.25e-7}, {unsigned[2], 7.75e-7}, {unsigned[254], 0.996484375},
		{unsigned[255], 1},
	} {
		if c.got != c.want {
			t.Errorf("%g, want %g", c.got, c.want)
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
		exec, err := graph.NewExec(backend, oneStep(c.opt, c.tree))
		if err != nil {
			t.Fatal(err)
		}
		defer exec.Finalize()
		all := append(normal(c.tree, random), zeros(t, optim.States(c.opt, c.tree))...)
		for step := 1; step <= steps; step++ {
			grads := normal(c.tree, random)
			args := slices.Concat(all[:n], grads, all[n:], []*tensors.Tensor{tensors.FromScalar(int32(step))})
			out, err := exec.Call(args)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				states := [][]*tensors.Tensor{all[n+4*i:][:4], out[n+4*i:][:4]}
				checkAdam8bit(t, c.opt, step, floats(t, all[i]), floats(t, grads[i]), floats(t, out[i]), states[0],
					states[1])
			}
			if c.onXLA && step == 2 {
				compiled, err := devicetest.Call(oneStep(c.opt, c.tree), local(t, args)...)
				if err != nil {
					t.Fatal(err)
				}
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
		values = mustCall(t, oneStep(opt, tree), slices.Concat(values[:1], []*tensors.Tensor{tensors.FromValue(grad)},
			values[1:], []*tensors.Tensor{tensors.FromScalar(int32(step + 1))})...)
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
		values := append([]*tensors.Tensor{tensors.FromValue([]float32{1, 1, 1, 1})},
			zeros(t, optim.States(opt, tree))...)
		for step, grad := range [][]float32{{1, float32(bad), 1, 1}, {1, 1, 1, 1}} {
			values = mustCall(t, oneStep(opt, tree), slices.Concat(values[:1],
				[]*tensors.Tensor{tensors.FromValue(grad)}, values[1:],
				[]*tensors.Tensor{tensors.FromScalar(int32(step + 1))})...)
		}
		for i, w := range floats(t, values[0]) {
			if want := i < 2; math.IsNaN(w) != want {
				t.Errorf("after a gradient of %g at element 1, element %d is %g", bad, i, w)
			}
		}
	}
}
