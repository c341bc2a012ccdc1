package precision_test

import (
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// step is a step that trains w by the gradient x·1e-7, computed in FP16: without a scale it underflows to a coarse 2⁻²⁴
// or to 0. It returns w, the number of updates, the states, and the gradient.
func step(s precision.Scaling) func(nodes) nodes {
	return func(in nodes) nodes {
		w, count, x, states := in[0], in[1], in[2], in[3:]
		h := precision.Cast(nodes{w, x}, dtypes.Float16)
		product := graph.ConvertDType(graph.Mul(h[0], h[1]), dtypes.Float32)
		// The gradient meets h in FP16, as loss·scale·1e-7.
		loss := graph.MulScalar(graph.ReduceAllSum(product), 1e-7)
		grads := graph.Gradient(s.Scale(loss, states), h[0])
		finite := precision.Finite(grads)
		grads = s.Unscale(grads, states)
		chosen := precision.Select(finite, nodes{graph.Sub(w, grads[0]), graph.AddScalar(count, 1)}, nodes{w, count})
		return append(append(chosen, grads[0]), s.Update(states, finite)...)
	}
}

func TestScaling(t *testing.T) {
	dynamic := precision.Scaling{Initial: 8, Interval: 3, Growth: 2, Backoff: 0.5}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		name   string
		s      precision.Scaling
		x      []float32 // of each step
		taken  []bool
		scales []float32 // after it
	}{
		{"dynamic", dynamic, []float32{1, 1, 1, 1, inf, 1, nan, 1, 1, 1, 1},
			[]bool{true, true, true, true, false, true, false, true, true, true, true},
			[]float32{8, 8, 16, 16, 8, 8, 4, 4, 4, 8, 8}},
		{"down to 1", precision.Scaling{Initial: 2, Interval: 9, Growth: 2, Backoff: 0.25}, []float32{inf, -inf, 1},
			[]bool{false, false, true}, []float32{1, 1, 1}},
		{"static", precision.Static(1024), []float32{1, nan, 1}, []bool{true, false, true},
			[]float32{1024, 1024, 1024}},
		{"none", precision.Scaling{}, []float32{1, inf, 1}, []bool{true, false, true}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.Do(t, params.Check(c.s.States(), c.s.Start()))
			backend := devicetest.PureGo()
			if c.name == "dynamic" {
				backend = devicetest.One()
			}
			exec := must.Get(graph.NewExec(backend, step(c.s)))(t)
			defer exec.Finalize()
			w, count := tensors.FromValue([]float32{5}), tensors.FromValue(float32(0))
			states := c.s.Start()
			taken := float32(0)
			for i, x := range c.x {
				args := []any{w, count, []float32{x}}
				for _, s := range states {
					args = append(args, s)
				}
				before := floats(w)[0]
				out := must.Get(exec.Call(args...))(t)
				w, count, states = out[0], out[1], out[3:]
				after, gradient := floats(w)[0], floats(out[2])[0]
				if c.taken[i] {
					taken++
				} else if after != before {
					t.Errorf("step %d, with %g, changed w from %g to %g", i, x, before, after)
				}
				if c.taken[i] && !(after == before-gradient) {
					t.Errorf("step %d changed w from %g to %g, the gradient is %g", i, before, after, gradient)
				}
				if got := floats(count)[0]; got != taken {
					t.Fatalf("after step %d %g are taken, want %g", i, got, taken)
				}
				if len(c.scales) > 0 && floats(states[0])[0] != c.scales[i] {
					t.Errorf("after step %d the scale is %g, want %g", i, floats(states[0])[0], c.scales[i])
				}
			}
		})
	}
}

// The scale stays finite however long it grows.
func TestScaleStaysFinite(t *testing.T) {
	s := precision.Scaling{Initial: 0x1p100, Interval: 1, Growth: 0x1p100, Backoff: 0.5}
	out := run(t, devicetest.PureGo(), func(in nodes) nodes { return s.Update(in, graph.Const(in[0].Graph(), true)) },
		float32(s.Initial), int32(0))
	if got := floats(out[0])[0]; got != 0x1p126 {
		t.Errorf("the scale is %g, want 2¹²⁶", got)
	}
}

func TestFinite(t *testing.T) {
	huge := float32(3e38) // whose sum would overflow
	for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16} {
		for name, backend := range backends() {
			exec := must.Get(graph.NewExec(backend,
				func(a, b *node) *node { return precision.Finite(precision.Cast(nodes{a, b}, dtype)) }))(t)
			for _, bad := range []float32{0, 1, huge, float32(math.Inf(1)), float32(math.Inf(-1)),
				float32(math.NaN())} {
				for at := range 5 {
					a, b := []float32{0, 1, -2}, []float32{3, 4}
					if at < 3 {
						a[at] = bad
					} else {
						b[at-3] = bad
					}
					out := must.Get(exec.Call(a, b))(t)
					want := bad == 0 || bad == 1 || bad == huge && dtype != dtypes.Float16
					if got := out[0].Value(); got != want {
						t.Errorf("%s, %s: with %g at %d finite is %v", name, dtype, bad, at, got)
					}
				}
			}
			exec.Finalize()
		}
	}
}

func TestScalingPanics(t *testing.T) {
	s := precision.Static(8)
	for want, f := range map[string]func(in nodes) nodes{
		"a loss of type BFloat16": func(in nodes) nodes {
			return nodes{s.Scale(graph.ConvertDType(in[0], dtypes.BFloat16), in[:1])}
		},
		"0 values for the 1 param": func(in nodes) nodes { return s.Unscale(in, nil) },
		`the value of "good" has`: func(in nodes) nodes {
			return precision.Dynamic().Update(nodes{in[0], in[0]}, nil)
		},
		"without gradients":           func(nodes) nodes { return nodes{precision.Finite(nil)} },
		"2 new values for 1 old ones": func(in nodes) nodes { return precision.Select(in[0], in, in[:1]) },
		"new value 1 has shape": func(in nodes) nodes {
			return precision.Select(graph.Const(in[0].Graph(), true), in, nodes{in[0], in[0]})
		},
		"Scaling.Initial is 0.5": func(in nodes) nodes { return precision.Static(0.5).Unscale(in, in[:1]) },
	} {
		if _, err := try(devicetest.PureGo(), f, float32(1), int32(0)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
