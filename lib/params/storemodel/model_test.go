package storemodel_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/model"
	gomlx "github.com/gomlx/gomlx/ml/train"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params/storemodel"
)

const rate = 0.1

// byGoMLX makes SGD steps as GoMLX does, where the graph updates the variables. It returns each step's loss and
// gradients, in the order of the names.
func byGoMLX(t *testing.T, backend compute.Backend, store *model.Store, loss storemodel.Loss, names []string,
	batches [][2]*tensors.Tensor) (steps [][]*tensors.Tensor) {
	t.Helper()
	exec := must.Get(model.NewExec(backend, store, func(scope *model.Scope, in []*graph.Node) []*graph.Node {
		g := in[0].Graph()
		scope.Store().SetTraining(g, true)
		out := []*graph.Node{loss(scope, in[0], in[1])}
		if penalty := gomlx.GetRegularizationLoss(g); penalty != nil {
			out[0] = graph.Add(out[0], penalty)
		}
		var variables []*model.Variable
		var nodes []*graph.Node
		for _, name := range names {
			v := store.GetVariable("/" + strings.ReplaceAll(name, ".", "/"))
			variables, nodes = append(variables, v), append(nodes, v.NodeValue(g))
		}
		out = append(out, graph.Gradient(out[0], nodes...)...)
		for i, v := range variables {
			v.SetNodeValue(graph.Sub(nodes[i], graph.MulScalar(out[1+i], rate)))
		}
		return out
	}))(t)
	defer exec.Finalize()
	for _, batch := range batches {
		out := must.Get(exec.Call(batch[0], batch[1]))(t)
		steps = append(steps, out)
	}
	return steps
}

// TestEqualsGoMLX makes three SGD steps with the model's nodes and with GoMLX's variables, from the same initial
// values. In the end, with the values written back, the stores are equal.
func TestEqualsGoMLX(t *testing.T) {
	// The programs have different outputs, so XLA may round differently.
	const bound = 1e-6
	plain, device := devicetest.PureGo(), devicetest.One()
	bigramNames := []string{
		"tokens.embeddings", "last.layer_normalization.gain", "last.layer_normalization.offset", "head.dense.weights",
	}
	for _, c := range []struct {
		name            string
		backend         compute.Backend
		loss            storemodel.Loss
		inputs, targets shapes.Shape
		names           []string
	}{
		{"mlp", plain, mlp, mlpInputs, mlpTargets, []string{
			"hidden.dense.weights", "hidden.dense.biases", "out.dense.weights", "out.dense.biases",
		}},
		{"transformer", plain, transformer, tokens, tokens, []string{
			"tokens.embeddings",
			"block0.before.layer_normalization.gain", "block0.before.layer_normalization.offset",
			"block0.MultiHeadAttention.key.dense.weights", "block0.MultiHeadAttention.query.dense.weights",
			"block0.MultiHeadAttention.value.dense.weights", "block0.MultiHeadAttention.output.dense.weights",
			"head.dense.weights", "head.dense.biases",
		}},
		{"bigram", plain, bigram(dtypes.Float32), tokens, tokens, bigramNames},
		{"bigram on XLA", device, bigram(dtypes.Float32), tokens, tokens, bigramNames},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			var batches [][2]*tensors.Tensor
			for range 3 {
				batches = append(batches, [2]*tensors.Tensor{random(rng, c.inputs), random(rng, c.targets)})
			}
			theirs, ours := newStore(), newStore()
			m := newModel(t, c.backend, ours, c.loss, c.inputs, c.targets)
			if got := m.Params().Names(); !slices.Equal(got, c.names) {
				t.Fatalf("parameters %q, want %q", got, c.names)
			}
			want := byGoMLX(t, c.backend, theirs, c.loss, c.names, batches)

			exec := must.Get(graph.NewExec(c.backend, func(in []*graph.Node) []*graph.Node {
				out := gradients(m)(in)
				for i := range m.Params() {
					out = append(out, graph.Sub(in[i], graph.MulScalar(out[1+i], rate)))
				}
				return out
			}))(t)
			defer exec.Finalize()
			n, values := len(c.names), initial(t, m)
			for step, batch := range batches {
				out := must.Get(exec.Call(append(slices.Clone(values), batch[0], batch[1])))(t)
				for i, got := range out[:1+n] {
					if !got.InDelta(want[step][i], bound) {
						t.Errorf("step %d, output %d: %s, want %s", step, i, got, want[step][i])
					}
				}
				values = out[1+n:]
			}
			must.Do(t, m.Write(values))
			for i, name := range c.names {
				path := "/" + strings.ReplaceAll(name, ".", "/")
				got, want := ours.GetVariable(path).MustValue(), theirs.GetVariable(path).MustValue()
				if !got.InDelta(want, bound) || !got.Equal(values[i]) {
					t.Errorf("%s is %s after training, want %s", name, got, want)
				}
			}
		})
	}
}

// TestHalfPrecision compares parameters cast to bfloat16 with GoMLX's variables of that type.
func TestHalfPrecision(t *testing.T) {
	const half = dtypes.BFloat16
	rng := rand.New(rand.NewPCG(3, 4))
	inputs, targets := random(rng, mlpInputs), random(rng, mlpTargets)
	in, next := random(rng, tokens), random(rng, tokens)
	plain, device := devicetest.PureGo(), devicetest.One()
	for _, c := range []struct {
		name         string
		backend      compute.Backend
		loss, halved storemodel.Loss
		args, casted [2]*tensors.Tensor
		before       bool // the variables are in the store before the model runs
	}{
		// The plain backend has no fused layers of this type.
		{"mlp", device, mlp, mlp, [2]*tensors.Tensor{inputs, targets},
			[2]*tensors.Tensor{to(t, device, inputs, half), targets}, false},
		{"bigram", plain, bigram(dtypes.Float32), bigram(half), [2]*tensors.Tensor{in, next},
			[2]*tensors.Tensor{in, next}, false},
		{"bigram before", plain, bigram(dtypes.Float32), bigram(half), [2]*tensors.Tensor{in, next},
			[2]*tensors.Tensor{in, next}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			backend, store := c.backend, newStore()
			m := newModel(t, backend, store, c.loss, c.args[0].Shape(), c.args[1].Shape())
			if c.before {
				m = newModel(t, backend, store, c.loss, c.args[0].Shape(), c.args[1].Shape())
			}
			theirs := model.NewStore()
			for i, value := range initial(t, m) {
				path := "/" + strings.ReplaceAll(m.Params()[i].Name, ".", "/")
				must.Get(theirs.CreateVariable(path, to(t, backend, value, half)))(t)
			}
			want := byGoMLX(t, backend, theirs, c.halved, m.Params().Names(), [][2]*tensors.Tensor{c.casted})[0]
			got := run(t, backend, func(in []*graph.Node) []*graph.Node {
				n := len(m.Params())
				nodes := slices.Clone(in[:n])
				for i := range nodes {
					nodes[i] = graph.ConvertDType(nodes[i], half)
				}
				loss := m.Loss(named(m, nodes), in[n], in[n+1])
				return append([]*graph.Node{loss}, graph.Gradient(loss, nodes...)...)
			}, append(initial(t, m), c.args[0], c.args[1])...)
			for i := range want {
				if !got[i].Equal(want[i]) {
					t.Errorf("output %d: %s, want %s", i, got[i], want[i])
				}
			}
			if got[0].DType() != dtypes.Float32 || got[1].DType() != half {
				t.Errorf("the loss is %s and a gradient %s", got[0].Shape(), got[1].Shape())
			}
		})
	}
}
