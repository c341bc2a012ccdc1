package gpt_test

import (
	"slices"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// train returns the loss before each of the first updates of a run on the reference text.
func train(t *testing.T, c gpt.Config, batch, steps int, rule optim.Optimizer) []float64 {
	t.Helper()
	batches, err := gpt.Reference().Batches(c, batch)
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Init()
	if err != nil {
		t.Fatal(err)
	}
	tree := c.Params()
	states, err := params.Zeros(optim.States(rule, tree))
	if err != nil {
		t.Fatal(err)
	}
	n, k := len(w), len(states)
	step, err := graph.NewExec(devicetest.One(), func(in []*graph.Node) []*graph.Node {
		w, states, in := in[:n], in[n:n+k], in[n+k:]
		loss := c.Loss(tree.Nodes(w), in[1], in[2])
		w, states = optim.Apply(rule, tree, w, graph.Gradient(loss, w...), states, in[0])
		return slices.Concat(w, states, []*graph.Node{loss})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer step.Finalize()
	var losses []float64
	for s := range steps {
		inputs, targets, err := batches.Step(s)
		if err != nil {
			t.Fatal(err)
		}
		out, err := step.Call(slices.Concat(w, states, []*tensors.Tensor{tensors.FromScalar(int32(s + 1)), inputs,
			targets}))
		if err != nil {
			t.Fatal(err)
		}
		w, states = out[:n], out[n:n+k]
		losses = append(losses, float64(tensors.ToScalar[float32](out[n+k])))
	}
	return losses
}

// The losses are those of the reference model in PyTorch and JAX, with the same architecture, initial weights, text and
// AdamW, in float32.
func TestReferenceTraining(t *testing.T) {
	if !devicetest.CompiledAsUsersDo(t) {
		return
	}
	want := map[int]float64{1: 5.58069, 2: 4.70050, 3: 4.37114, 4: 4.22252, 13: 3.3891}
	steps := 13
	for _, flash := range []bool{false, true} {
		c := gpt.ReferenceConfig()
		c.Flash = flash
		losses := train(t, c, 16, steps, optim.AdamW(3e-4))
		for step, want := range want {
			if step <= len(losses) && !scalar.EqualWithinAbs(losses[step-1], want, 1e-4) {
				t.Errorf("flash %v: loss at step %d: %.5f, want %.5f", flash, step, losses[step-1], want)
			}
		}
		t.Logf("flash %v: losses: %.5f", flash, losses)
		steps = 2 // the second loss is that after an update
	}
}
