package autodiff_test

import (
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/autodiff"
)

// Kept values are told by how they are made, so functions that make them in another order each time, as with a map's,
// are right; those that make others are refused.
func TestSplitOfUnsteadyFunctions(t *testing.T) {
	calls := 0
	ordered := autodiff.Split{Of: both, Fn: func(in nodes) nodes {
		calls++
		products := make(nodes, 2)
		for i := range products {
			at := (i + calls) % 2
			products[at] = graph.Dot(in[at], in[2]).Product()
		}
		return nodes{graph.Mul(graph.Sin(products[0]), graph.Cos(products[1]))}
	}}
	x := []any{random(1, 3, 3), random(2, 3, 3), random(3, 3, 3), random(4, 3, 3)}
	split := func(s autodiff.Split, odd int) func(in nodes) nodes {
		return func(in nodes) nodes {
			_, kept := s.Forward(in[:3])
			calls += odd
			return s.Backward(in[:3], kept, in[3:])
		}
	}
	want := call(t, devicetest.PureGo(), split(ordered, 0), x...)
	same(t, "another order", call(t, devicetest.PureGo(), split(ordered, 1), x...), want, 0)

	other := autodiff.Split{Of: both, Fn: func(in nodes) nodes {
		calls++
		return nodes{graph.Square(graph.Dot(in[calls%2], in[2]).Product())}
	}}
	refused(t, "builds a different graph each time", split(other, 0), x...)
}

func refused(t *testing.T, want string, fn func(in nodes) nodes, args ...any) {
	t.Helper()
	exec := must(graph.NewExec(devicetest.PureGo(), fn))
	defer exec.Finalize()
	for i, x := range args {
		if x, ok := x.(*tensors.Tensor); ok {
			args[i] = must(x.LocalClone())
		}
	}
	if _, err := exec.Call(args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestSplitRefuses(t *testing.T) {
	of := func(inputs ...int) autodiff.Split { return autodiff.Split{Fn: squared, Of: inputs} }
	good := of(both...)
	for want, fn := range map[string]func(in nodes) nodes{
		"Split of no inputs":              func(nodes) nodes { out, _ := good.Forward(nil); return out },
		"input 1 of Split":                func(in nodes) nodes { x, _ := good.Forward(nodes{in[0], nil}); return x },
		"Split.Of has 2":                  func(in nodes) nodes { return of(2).Backward(in[:2], nil, nil) },
		"Split.Of has -1":                 func(in nodes) nodes { return of(-1).Backward(in[:2], nil, nil) },
		"of inputs that are floats":       func(in nodes) nodes { return of(2).Backward(in, nil, nil) },
		"0 saved values, want the 1":      func(in nodes) nodes { return good.Backward(in[:2], nil, in[:1]) },
		"saved value 0 has shape (Int32)": func(in nodes) nodes { return good.Backward(in[:2], in[2:], in[:1]) },
		"0 gradients for the 1 outputs": func(in nodes) nodes {
			_, kept := good.Forward(in[:2])
			return good.Backward(in[:2], kept, nil)
		},
		"a gradient of shape (Int32) for output 0": func(in nodes) nodes {
			_, kept := good.Forward(in[:2])
			return good.Backward(in[:2], kept, in[2:])
		},
		"output 0 of Split's function is nil": func(in nodes) nodes {
			out, _ := autodiff.Split{Fn: func(nodes) nodes { return nodes{nil} }}.Forward(in)
			return out
		},
		"different graphs": func(in nodes) nodes { // it reaches past its arguments
			past := func(inside nodes) nodes { return nodes{graph.Mul(inside[0], in[1])} }
			out, _ := autodiff.Split{Fn: past}.Forward(in)
			return out
		},
	} {
		refused(t, want, fn, random(1, 2, 2), random(2, 2, 2), int32(1))
	}
}

func TestSplitSaved(t *testing.T) {
	s := autodiff.Split{Fn: squared, Of: both}
	f32 := func(dims ...int) shapes.Shape { return shapes.Make(dtypes.Float32, dims...) }
	saved, err := s.Saved(devicetest.PureGo(), f32(2, 3), f32(3, 4))
	if err != nil || len(saved) != 1 || !saved[0].Equal(f32(2, 4)) {
		t.Errorf("saves %v, %v; want the matmul", saved, err)
	}
	if _, err := s.Saved(devicetest.PureGo(), f32(2, 3), f32(4, 4)); err == nil ||
		!strings.HasPrefix(err.Error(), "autodiff: ") {
		t.Errorf("error %v for shapes that do not fit", err)
	}
	if _, err := s.Saved(devicetest.PureGo()); err == nil {
		t.Error("no error for no inputs")
	}
}
