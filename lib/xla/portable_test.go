package xla_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestPortable runs one program on all devices at once, each with its own values, and donates its state.
func TestPortable(t *testing.T) {
	const devices, steps = 4, 5
	backend := devicetest.OpenOwn(t, devices)
	program := must.Get(xla.CompilePortable(backend, graph.Add, 0))(t)
	var all sync.WaitGroup
	for device := range devices {
		all.Go(func() {
			state, err := backend.Put(make([]float32, 1000), device)
			if err != nil {
				t.Error(err)
				return
			}
			memory, _ := xla.View[float32](state)
			at := &memory[0]
			for range steps {
				out, err := program.Call(device, state, float32(device))
				if err != nil {
					t.Error(err)
					return
				}
				state = out[0]
			}
			values, err := xla.View[float32](state)
			if err != nil || &values[0] != at || slices.Min(values) != float32(device*steps) ||
				slices.Max(values) != float32(device*steps) {
				t.Errorf("device %d: %v (error %v), want %d in the memory of the first state", device, values[:3], err,
					device*steps)
			}
		})
	}
	all.Wait()
	if m, err := program.Memory(); err != nil || m.Aliased != 4000 {
		t.Errorf("memory %+v (error %v), want 4000 bytes aliased", m, err)
	}
}

func TestPortableErrors(t *testing.T) {
	backend, other := devicetest.OpenOwn(t, 2), devicetest.Open(t, 1)
	program := must.Get(xla.CompilePortable(backend, graph.Add, 0))(t)
	fails(program.Memory())(t, "memory before a call")
	fails(xla.CompilePortable(nil, graph.Neg))(t, "no backend")
	put := func(b *xla.Backend, device int) *tensors.Tensor { return must.Get(b.Put([]float32{1, 2}, device))(t) }
	here, there, elsewhere := put(backend, 0), put(backend, 1), put(other, 0)
	for name, c := range map[string]struct {
		device int
		args   []any
		want   string
	}{
		"no device":       {2, []any{here, here}, "device 2: choose"},
		"another device":  {0, []any{here, there}, "argument 1 is not on device 0"},
		"another backend": {0, []any{here, elsewhere}, "argument 1 is not on device 0"},
		"given twice":     {0, []any{here, here}, "same tensor"},
		"shapes":          {0, []any{here, []float32{1, 2, 3}}, "Add"},
		"nil":             {0, []any{here, nil}, "nil"},
		"too few":         {0, nil, "donates input 0 of 0"},
	} {
		fails(program.Call(c.device, c.args...))(t, name, c.want)
	}
	same(t, "after errors", []*tensors.Tensor{here}, []float32{1, 2}) // nothing was donated
	fails(backend.Put([]float32{1}, -1))(t, "device -1")
	fails(xla.CompilePortable(backend, graph.Neg, 1))(t, "a donated input that is not there")
	program.Close()
	fails(program.Call(0, here, here))(t, "closed", "closed")
}

// Goroutines that use the same program of a backend that is closed meanwhile all return.
func TestPrepareOnClosed(t *testing.T) {
	for range 3 {
		backend := devicetest.OpenOwn(t, 1)
		program := must.Get(xla.CompilePortable(backend, graph.Tanh))(t)
		var all sync.WaitGroup
		all.Go(backend.Close)
		for range 8 {
			all.Go(func() {
				if err := program.Prepare(shapes.Make(dtypes.Float32, 2)); err != nil &&
					!strings.Contains(err.Error(), "closed") {
					t.Error(err)
				}
			})
		}
		all.Wait()
		fails(program.Call(0, []float32{1, 2}))(t, "closed", "closed")
	}
}

// TestNoResults: graph functions that return nothing, or nil, are errors each time.
func TestNoResults(t *testing.T) {
	backend := devicetest.Open(t, 1)
	mesh := must.Get(backend.Mesh(xla.Axis("all", 1)))(t)
	for name, fn := range map[string]func(in []*graph.Node) []*graph.Node{
		"nil":         func([]*graph.Node) []*graph.Node { return nil },
		"none":        func([]*graph.Node) []*graph.Node { return []*graph.Node{} },
		"one is none": func(in []*graph.Node) []*graph.Node { return []*graph.Node{in[0], nil} },
	} {
		one := must.Get(xla.CompilePortable(backend, fn))(t)
		all := must.Get(xla.Compile(mesh, fn, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
		for range 2 { // the second would wait for the first
			fails(one.Call(0, float32(1)))(t, name, "returns no nodes")
			fails(all.Call(float32(1)))(t, name, "returns no nodes")
		}
		one.Close()
		all.Close()
	}
}

// TestPrepare compiles before the first call, which then builds nothing; goroutines may call it at once, also while
// programs run.
func TestPrepare(t *testing.T) {
	backend := devicetest.OpenOwn(t, 2)
	var built atomic.Int64
	program := must.Get(xla.CompilePortable(backend, func(x, y *graph.Node) *graph.Node {
		built.Add(1)
		return graph.Add(x, y)
	}, 0))(t)
	small, large := shapes.Make(dtypes.Float32, 2), shapes.Make(dtypes.Float32, 3)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := errors.Join(program.Prepare(small, small), program.Prepare(large, large)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	before := built.Load()
	for device := range 2 {
		for range 2 {
			x := must.Get(backend.Put([]float32{1, 2, 3}, device))(t)
			same(t, "prepared", must.Get(program.Call(device, x, []float32{4, 5, 6}))(t), []float32{5, 7, 9})
		}
	}
	must.Do(t, program.Prepare(small, small))
	if n := built.Load(); n != before {
		t.Errorf("built %d times, and %d more after it was prepared", before, n-before)
	}
	for name, c := range map[string]struct {
		inputs []shapes.Shape
		want   string
	}{
		"shapes":  {[]shapes.Shape{small, large}, "Add"},
		"too few": {nil, "donates input 0 of 0"},
		"one":     {[]shapes.Shape{small}, "1"},
	} {
		must.Refuse(t, name, program.Prepare(c.inputs...), c.want)
	}
	program.Close()
	must.Refuse(t, "closed", program.Prepare(small, small), "closed")
}
