package optim_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/lib/optim"
)

func TestClipByGlobalNorm(t *testing.T) {
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
		out := mustCall(t, func(in []*graph.Node) []*graph.Node {
			clipped, norm := optim.ClipByGlobalNorm(in, limit, nil)
			return append(clipped, norm)
		}, grads...)
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
		out := mustCall(t, func(in []*graph.Node) []*graph.Node {
			dtype := dtypes.Float32
			if c.half {
				dtype = dtypes.Float16
			}
			in = []*graph.Node{graph.ConvertDType(in[0], dtype), graph.ConvertDType(in[1], dtype)}
			clipped, norm := optim.ClipByGlobalNorm(in, 1, nil)
			if clipped[0].DType() != dtype || norm.DType() != dtypes.Float32 {
				t.Errorf("%s: gradients are %s, the norm %s", c.name, clipped[0].DType(), norm.DType())
			}
			return []*graph.Node{graph.ConvertDType(clipped[0], dtypes.Float32),
				graph.ConvertDType(clipped[1], dtypes.Float32), norm}
		}, tensors.FromValue(c.a), tensors.FromValue(c.b))
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
	out := mustCall(t, func(in []*graph.Node) []*graph.Node {
		ranks := lockstep(2, func(rank int, sum func(*graph.Node) *graph.Node) []*graph.Node {
			clipped, norm := optim.ClipByGlobalNorm([]*graph.Node{in[rank]}, 1, sum)
			return append(clipped, norm)
		})
		return append(ranks[0], ranks[1]...)
	}, tensors.FromValue([]float32{3, 0}), tensors.FromValue([]float32{0, -4}))
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
	out := mustCall(t, func(in []*graph.Node) []*graph.Node {
		whole, _ := optim.ClipByGlobalNorm(in[:1], 2, nil)
		half, _ := optim.ClipByGlobalNorm(in[:1], 0.5, nil)
		zero, _ := optim.ClipByGlobalNorm(in[1:], 0x1p-126, nil)
		return []*graph.Node{whole[0], half[0], zero[0]}
	}, tensors.FromValue([]float64{fine}), tensors.FromValue([]float32{0}))
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
			_, norm := optim.ClipByGlobalNorm(in[:c.grads], c.max, nil)
			return []*graph.Node{norm}
		}, tensors.FromValue([]float32{1}))
		refused(t, c.max, err, c.want)
	}
}
