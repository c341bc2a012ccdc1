package gpt_test

import (
	"math"
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

// A tiny model trained by the plain implementation: its loss, gradients by central differences, AdamW and splitmix64
// weights, all implemented a second time.
func TestTrainingAgainstPlainGo(t *testing.T) {
	const batch, steps = 2, 6
	c := gpt.Config{Layers: 1, Width: 4, Heads: 2, Seq: 4, Vocab: 128}
	tree := c.Params()
	plain := plainModel{c, plainInit(tree)}
	m, v := make(map[string][]float64), make(map[string][]float64)
	for _, s := range tree {
		m[s.Name], v[s.Name] = make([]float64, s.Size()), make([]float64, s.Size())
	}
	const lr = 0.01 // large, so that every step counts
	losses := train(t, c, batch, steps, optim.AdamW(lr))
	for step := 1; step <= steps; step++ {
		inputs, targets := plainBatch(c, batch, step-1)
		if want := plain.loss(inputs, targets); !scalar.EqualWithinAbs(losses[step-1], want, 2e-5) {
			t.Errorf("loss at step %d: %.6f, want %.6f", step, losses[step-1], want)
		}
		for name, grad := range plain.gradient(tree, inputs, targets) {
			for i, g := range grad {
				if math.Abs(g) < 1e-9 {
					g = 0 // a difference of nothing: Adam would make a full step of its noise
				}
				m[name][i] = 0.9*m[name][i] + 0.1*g
				v[name][i] = 0.999*v[name][i] + 0.001*g*g
				mean, square := m[name][i]/(1-math.Pow(0.9, float64(step))),
					v[name][i]/(1-math.Pow(0.999, float64(step)))
				plain.p[name][i] -= lr * (mean/(math.Sqrt(square)+1e-8) + 0.01*plain.p[name][i])
			}
		}
	}
}

// plainInit returns the reference model's initial weights.
func plainInit(tree params.Tree) map[string][]float64 {
	p := make(map[string][]float64)
	for t, s := range tree {
		w := make([]float64, s.Size())
		for i := range w {
			switch s.Name[len(s.Name)-2:] {
			case ".g":
				w[i] = 1
			case ".b":
			default:
				z := uint64(t)*(1<<32) + uint64(i) + 0x9E3779B97F4A7C15
				z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
				z = (z ^ (z >> 27)) * 0x94D049BB133111EB
				z ^= z >> 31
				w[i] = float64(float32((2*float64(z>>40)/16777216 - 1) * 0.02 * math.Sqrt(3)))
			}
		}
		p[s.Name] = w
	}
	return p
}

// plainBatch returns a step's batch as the reference model defines it.
func plainBatch(c gpt.Config, batch, step int) (inputs, targets [][]int32) {
	text := gpt.Reference().Text
	for b := range batch {
		var in, out []int32
		for i := range c.Seq {
			at := (step*batch+b)*97 + i
			in, out = append(in, int32(text[at%len(text)])), append(out, int32(text[(at+1)%len(text)]))
		}
		inputs, targets = append(inputs, in), append(targets, out)
	}
	return inputs, targets
}
