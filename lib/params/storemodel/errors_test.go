package storemodel_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/layers/regularizer"
	"github.com/gomlx/gomlx/ml/model"
	gomlx "github.com/gomlx/gomlx/ml/train"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/params/storemodel"
)

func TestNewErrors(t *testing.T) {
	backend := devicetest.PureGo()

	for _, c := range []struct {
		name string
		loss storemodel.Loss
		want string
	}{
		{"no variables", func(_ *model.Scope, inputs, _ *graph.Node) *graph.Node { return graph.ReduceAllMean(inputs) },
			"uses no trainable variables, of the 0"},
		{"clash", func(scope *model.Scope, inputs, _ *graph.Node) *graph.Node {
			a := scope.In("a").In("b").VariableWithShape("w", number).NodeValue(inputs)
			return graph.Add(a, scope.In("a.b").VariableWithShape("w", number).NodeValue(inputs))
		}, `"/a/b/w" and "/a.b/w" would both be named "a.b.w"`},
		{"changed weight", func(scope *model.Scope, inputs, _ *graph.Node) *graph.Node {
			w := scope.VariableWithShape("w", number)
			y := graph.Mul(inputs, w.NodeValue(inputs))
			w.SetNodeValue(graph.ZerosLike(w.NodeValue(inputs)))
			return graph.ReduceAllMean(y)
		}, `changes the variable "/w" in training, which the optimizer changes`},
		{"counter", func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
			n := scope.VariableWithValue("n", int32(3)).SetTrainable(false)
			n.SetNodeValue(graph.OnePlus(n.NodeValue(inputs)))
			return mlp(scope, inputs, targets)
		}, `changes the variable "/n" of type Int32`},
		{"update after the step", func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
			scope.SetParam(regularizer.ParamL1, 0.1)
			return mlp(scope, inputs, targets)
		}, `"trainer_per_step_update_graph_fn"`},
		{"loss for the trainer", func(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
			gomlx.AddMainLoss(graph.ReduceAllMean(inputs))
			return mlp(scope, inputs, targets)
		}, `"trainer_main_loss"`},
		{"no scalar", func(scope *model.Scope, inputs, _ *graph.Node) *graph.Node {
			return layers.Dense(scope, inputs, false, 1)
		}, "the loss has shape (Float32)[6, 1]"},
		{"nil", func(*model.Scope, *graph.Node, *graph.Node) *graph.Node { return nil }, "returned nil"},
		{"integer", func(scope *model.Scope, inputs, _ *graph.Node) *graph.Node {
			v := scope.VariableWithValue("count", int32(3)).NodeValue(inputs)
			return graph.ReduceAllMean(graph.Mul(inputs, graph.ConvertDType(v, dtypes.Float32)))
		}, `"/count" has element type Int32`},
		{"panic", func(*model.Scope, *graph.Node, *graph.Node) *graph.Node { panic("a reason") }, "a reason"},
	} {
		if _, err := storemodel.New(backend, model.NewStore(), c.loss, mlpInputs, mlpTargets); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	finalized := newStore()
	finalized.Finalize()
	for _, c := range []struct {
		name  string
		store *model.Store
		loss  storemodel.Loss
		shape shapes.Shape
		want  string
	}{
		{"no store", nil, mlp, mlpInputs, "nil"},
		{"no loss", newStore(), nil, mlpInputs, "nil"},
		{"constants", newStore().WithVariableAsConst(true), mlp, mlpInputs, "WithVariableAsConst"},
		{"finalized", finalized, mlp, mlpInputs, "storemodel"},
		{"no shape", newStore(), mlp, shapes.Shape{}, "storemodel"},
	} {
		if _, err := storemodel.New(backend, c.store, c.loss, c.shape, mlpTargets); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := storemodel.New(nil, newStore(), mlp, mlpInputs, mlpTargets); err == nil {
		t.Error("no backend: no error")
	}
}

// changing is a model that behaves differently for a batch of two.
func changing(scope *model.Scope, inputs, targets *graph.Node) *graph.Node {
	w := scope.VariableWithShape("w", shapes.Make(dtypes.Float32, inputs.Shape().Dim(-1)))
	x := graph.Mul(inputs, graph.InsertAxes(w.NodeValue(inputs), 0))
	if inputs.Shape().Dim(0) == 2 {
		x = graph.Add(x, scope.VariableWithShape("b", number).NodeValue(inputs))
	}
	if inputs.Shape().Dim(0) == 3 {
		w.SetNodeValue(graph.ZerosLike(w.NodeValue(inputs)))
	}
	if inputs.Shape().Dim(0) == 4 {
		gomlx.AddRegularizationLoss(graph.ReduceAllSum(w.NodeValue(inputs)))
	}
	return graph.ReduceAllMean(x)
}

func TestLossErrors(t *testing.T) {
	backend := devicetest.PureGo()
	m := newModel(t, backend, newStore(), changing, shapes.Make(dtypes.Float32, 1, 3), number)
	vector := func(g *graph.Graph, dims ...int) *graph.Node {
		return graph.Ones(g, shapes.Make(dtypes.Float32, dims...))
	}
	for _, c := range []struct {
		name  string
		build func(g *graph.Graph) *graph.Node
		want  string
	}{
		{"fits", func(g *graph.Graph) *graph.Node {
			return m.Loss(params.Nodes{"w": vector(g, 3)}, vector(g, 5, 3), nil)
		}, ""},
		{"no node", func(g *graph.Graph) *graph.Node {
			return m.Loss(params.Nodes{"v": vector(g, 3)}, vector(g, 1, 3), nil)
		}, `no value for "w"`},
		{"nil node", func(g *graph.Graph) *graph.Node {
			return m.Loss(params.Nodes{"w": nil}, vector(g, 1, 3), nil)
		}, "the node for w"},
		{"another size", func(g *graph.Graph) *graph.Node {
			return m.Loss(params.Nodes{"w": vector(g, 1)}, vector(g, 1, 3), nil)
		}, "the node for w"},
		{"integers", func(g *graph.Graph) *graph.Node {
			return m.Loss(params.Nodes{"w": graph.ConvertDType(vector(g, 3), dtypes.Int32)}, vector(g, 1, 3), nil)
		}, "the node for w"},
		{"another batch, another shape", func(g *graph.Graph) *graph.Node {
			return m.Loss(params.Nodes{"w": vector(g, 3)}, vector(g, 1, 4), nil)
		}, "different shape"},
		{"cast, another shape", func(g *graph.Graph) *graph.Node {
			w := graph.ConvertDType(vector(g, 3), dtypes.BFloat16)
			return m.Loss(params.Nodes{"w": w}, vector(g, 1, 1), nil) // which would be broadcast
		}, `creates the variable "/w" with shape`},
		{"another batch, another variable", func(g *graph.Graph) *graph.Node {
			return m.Loss(params.Nodes{"w": vector(g, 3)}, vector(g, 2, 3), nil)
		}, `uses the variable "/b" for this batch`},
		{"another batch, a change", func(g *graph.Graph) *graph.Node {
			return training(m, params.Nodes{"w": vector(g, 3)}, vector(g, 3, 3), nil)
		}, `changes the variable "/w"`},
		{"another batch, a regularizer", func(g *graph.Graph) *graph.Node {
			return m.Loss(params.Nodes{"w": vector(g, 3)}, vector(g, 4, 3), nil)
		}, "has a regularizer for this batch"},
	} {
		exec := must.Get(graph.NewExec(backend, c.build))(t)
		if _, err := exec.Call(); !matches(err, c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
		exec.Finalize()
	}
	exec := must.Get(model.NewExec(backend, newStore(), func(scope *model.Scope, x *graph.Node) *graph.Node {
		return m.Loss(params.Nodes{"w": x}, graph.InsertAxes(x, 0), nil)
	}))(t)
	if _, err := exec.Call([]float32{1, 2, 3}); !matches(err, "belongs to a model.Exec") {
		t.Errorf("in a model.Exec: error %v", err)
	}
}

func TestWriteErrors(t *testing.T) {
	backend, store := devicetest.PureGo(), newStore()
	m := newModel(t, backend, store, mlp, mlpInputs, mlpTargets)
	before := initial(t, m)
	for _, c := range []struct {
		name   string
		change func(values []*tensors.Tensor) []*tensors.Tensor
		want   string
	}{
		{"too few", func(v []*tensors.Tensor) []*tensors.Tensor { return v[1:] }, "3 values for the 4 parameters"},
		{"nil", func(v []*tensors.Tensor) []*tensors.Tensor { v[3] = nil; return v }, "value #3 is nil"},
		{"freed", func(v []*tensors.Tensor) []*tensors.Tensor { v[2].MustFinalizeAll(); return v },
			"value #2 is nil or was freed"},
		{"another shape", func(v []*tensors.Tensor) []*tensors.Tensor { v[0], v[2] = v[2], v[0]; return v },
			"has shape"},
	} {
		if err := m.Write(c.change(initial(t, m))); !matches(err, c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
		for i, value := range initial(t, m) {
			if !value.Equal(before[i]) {
				t.Fatalf("%s: the failed write changed value #%d", c.name, i)
			}
		}
	}
	// Write and Init copy.
	zeros := must.Get(params.Zeros(m.Params()))(t)
	must.Do(t, m.Write(zeros))
	for _, zero := range append(zeros, initial(t, m)...) {
		zero.MustFinalizeAll()
	}
	if got := fmt.Sprint(initial(t, m)[1].Value()); got != "[0 0 0 0]" {
		t.Errorf("after zeros were written: %s", got)
	}

	must.Do(t, store.GetVariable("/out/dense/biases").SetValue(tensors.FromValue([]float32{1, 2, 3})))
	if err := m.Validate(); !matches(err, `"/out/dense/biases" has shape (Float32)[3], but it had (Float32)[2]`) {
		t.Errorf("another shape: error %v", err)
	}
	must.Do(t, store.GetVariable("/out/dense/biases").Reset())
	must.Do(t, store.DeleteVariable("/hidden/dense/biases"))
	for _, err := range []error{m.Validate(), m.Write(before), func() error { _, err := m.Init(); return err }()} {
		if !matches(err, `"/hidden/dense/biases" is no longer in the store`) {
			t.Errorf("a deleted variable: error %v", err)
		}
	}
}

// matches reports whether an error contains a text, or there is none if the text is empty.
func matches(err error, want string) bool {
	if err == nil || want == "" {
		return err == nil && want == ""
	}
	return strings.Contains(err.Error(), want)
}
