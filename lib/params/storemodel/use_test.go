package storemodel_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers/regularizer"
	"github.com/gomlx/gomlx/ml/model"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params/storemodel"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

var _ train.Model = (*storemodel.Model)(nil)

// TestBuildsAtOnce builds a model for several batch sizes at the same time. With equal examples, the mean does not
// depend on the batch size.
func TestBuildsAtOnce(t *testing.T) {
	backend := devicetest.PureGo()
	m := newModel(t, backend, newStore(), mlp, mlpInputs, mlpTargets)
	var losses [8]float32
	var group sync.WaitGroup
	for i := range losses {
		group.Go(func() {
			inputs, targets := tensors.FromShape(shapes.Make(dtypes.Float32, 1+i, 3)),
				tensors.FromShape(shapes.Make(dtypes.Float32, 1+i, 2))
			for _, row := range []*tensors.Tensor{inputs, targets} {
				row.MustMutableFlatData(func(flat any) {
					for j := range flat.([]float32) {
						flat.([]float32)[j] = 0.5
					}
				})
			}
			values, err := m.Init()
			if err != nil {
				t.Error(err)
				return
			}
			exec, err := graph.NewExec(backend, gradients(m))
			if err != nil {
				t.Error(err)
				return
			}
			defer exec.Finalize()
			out, err := exec.Call(append(values, inputs, targets))
			if err != nil {
				t.Error(err)
				return
			}
			losses[i] = tensors.ToScalar[float32](out[0])
		})
	}
	group.Wait()
	for i, loss := range losses {
		if diff := loss - losses[0]; !(diff < 1e-6 && diff > -1e-6) || loss == 0 {
			t.Errorf("%d equal rows have the loss %v, one has %v", 1+i, loss, losses[0])
		}
	}
}

// line is w·x + b with a weight that is not trained, and a constant.
func line(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
	g := inputs.Graph()
	w := scope.VariableWithValue("w", float32(3)).SetTrainable(false).NodeValue(g)
	b := scope.VariableWithValue("b", float32(1)).NodeValue(g)
	n := graph.ConvertDType(scope.VariableWithValue("n", int32(0)).SetTrainable(false).NodeValue(g), b.DType())
	y := graph.Add(graph.Add(graph.Mul(inputs, w), b), n)
	return graph.ReduceAllMean(graph.Square(graph.Sub(graph.ConvertDType(y, targets.DType()), targets)))
}

var number = shapes.Make(dtypes.Float32)

// TestFrozen: a variable that is not trained is a buffer without a gradient, and one that is not a float a constant,
// with the value that it has when the graph is built.
func TestFrozen(t *testing.T) {
	backend, store := devicetest.PureGo(), model.NewStore()
	m := newModel(t, backend, store, line, number, number)
	got, buffers := m.Params().Names(), m.BufferNames()
	if !slices.Equal(got, []string{"w", "b"}) || !slices.Equal(buffers, []string{"w"}) {
		t.Fatalf("parameters %q, of which %q are buffers, want w and b, and w", got, buffers)
	}
	two, zero := tensors.FromScalar(float32(2)), tensors.FromScalar(float32(0))
	for n, want := range map[int32][2]float32{0: {49, 14}, -8: {1, -2}} { // (3·2 + 1 + n)², and its gradient by b
		must.Do(t, store.GetVariable("n").SetValue(tensors.FromScalar(n)))
		for _, half := range []bool{false, true} {
			out := run(t, backend, func(in []*graph.Node) []*graph.Node {
				to := dtypes.Float32
				if half {
					to = dtypes.BFloat16
				}
				p := precision.Cast(in[:2], to)
				loss := training(m, named(m, p), in[2], in[3])
				return append([]*graph.Node{loss}, precision.Cast(graph.Gradient(loss, p[1], p[0]), dtypes.Float32)...)
			}, append(initial(t, m), two, zero)...)
			for i, want := range []float32{want[0], want[1], 0} {
				if got := out[i].Value(); got != want {
					t.Errorf("n = %v, half precision %t: output %d is %v, want %v", n, half, i, got, want)
				}
			}
		}
	}
}

// TestVariablesOfTheCaller uses variables that the store has already: the model creates none.
func TestVariablesOfTheCaller(t *testing.T) {
	backend, store := devicetest.PureGo(), model.NewStore()
	for path, value := range map[string]float32{"/a.b/w": 5, "/unused": 1} {
		must.Get(store.CreateVariable(path, tensors.FromScalar(value)))(t)
	}
	store.GetVariable("unused").SetTrainable(false)
	m := newModel(t, backend, store, func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
		w := scope.In("a.b").GetVariable("w")
		if scope.GetVariable("unused").Trainable {
			return w.NodeValue(inputs)
		}
		return graph.Mul(w.NodeValue(inputs), graph.ConvertDType(inputs, w.DType()))
	}, number, number)
	if got := m.Params().Names(); !slices.Equal(got, []string{"a.b.w"}) {
		t.Fatalf("parameters %q, want a.b.w", got)
	}
	out := run(t, backend, func(in []*graph.Node) []*graph.Node {
		w := graph.ConvertDType(in[0], dtypes.BFloat16)
		loss := m.Loss(named(m, []*graph.Node{w}), in[1], in[1])
		return append([]*graph.Node{loss}, graph.Gradient(loss, in[0], w)...)
	}, append(initial(t, m), tensors.FromScalar(float32(2)))...)
	if loss, grad := out[0].Value(), out[1].Value(); loss != float32(10) || grad != float32(2) ||
		out[2].DType() != dtypes.BFloat16 {
		t.Errorf("loss %v, gradient %v of 5·2", loss, grad)
	}
}

// TestOptionalVariable uses a variable only if the store has it.
func TestOptionalVariable(t *testing.T) {
	backend, store := devicetest.PureGo(), model.NewStore()
	must.Get(store.CreateVariable("b", tensors.FromScalar(float32(1))))(t)
	m := newModel(t, backend, store, func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
		y := graph.Mul(inputs, scope.VariableWithShape("w", inputs.Shape()).NodeValue(inputs))
		if b := scope.GetVariable("b"); b != nil {
			y = graph.Add(y, b.NodeValue(inputs))
		}
		return y
	}, number, number)
	if got := m.Params().Names(); !slices.Equal(got, []string{"w", "b"}) {
		t.Fatalf("parameters %q, want w and b", got)
	}
	for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16} {
		out := run(t, backend, func(in []*graph.Node) []*graph.Node {
			w, b := graph.ConvertDType(in[0], dtype), graph.ConvertDType(in[1], dtype)
			return []*graph.Node{m.Loss(named(m, []*graph.Node{w, b}), in[2], in[2])}
		}, tensors.FromScalar(float32(2)), tensors.FromScalar(float32(3)), tensors.FromScalar(float32(4)))
		if got := out[0].Value(); got != float32(11) {
			t.Errorf("%s: 2·4 + 3 is %v", dtype, got)
		}
	}
}

// TestTwiceInOneGraph builds a loss for two sets of parameters in the same graph, and another model with the same names
// in between.
func TestTwiceInOneGraph(t *testing.T) {
	backend := devicetest.PureGo()
	// (3·x + b)², and ten times the square of b.
	penalized := func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
		loss := line(scope, inputs, targets)
		regularizer.L2(10)(inputs.Graph(), scope.GetVariable("b"))
		return loss
	}
	m := newModel(t, backend, model.NewStore(), penalized, number, number)
	other := newModel(t, backend, model.NewStore(), line, number, number)
	out := run(t, backend, func(in []*graph.Node) []*graph.Node {
		w := graph.Const(in[0].Graph(), float32(3))
		loss := func(m *storemodel.Model, b *graph.Node) *graph.Node {
			return m.Loss(named(m, []*graph.Node{w, b}), in[2], in[2])
		}
		first, between, second := loss(m, in[0]), loss(other, in[1]), loss(m, in[1])
		return append([]*graph.Node{first, between, second}, graph.Gradient(second, in[0], in[1])...)
	}, tensors.FromScalar(float32(1)), tensors.FromScalar(float32(-1)), tensors.FromScalar(float32(2)))
	// (3·2 + b − 2)² + 10b², and 2(3·2 + b − 2) + 20b for the gradient.
	for i, want := range []float32{35, 9, 19, 0, -14} {
		if got := out[i].Value(); got != want {
			t.Errorf("output %d is %v, want %v", i, got, want)
		}
	}
}
