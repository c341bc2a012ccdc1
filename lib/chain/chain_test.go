package chain_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

var small = gpt.Config{Layers: 3, Width: 8, Heads: 2, Seq: 4, Vocab: 11, Tied: true, Dropout: 0.3}

// A GPT's token table, tied to its head, is owned by the embedding; the blocks between share programs.
func ExampleModel() {
	c := small
	c.Dropout = 0 // with which each block would have noise of its own
	m, err := c.Chain()
	if err != nil {
		panic(err)
	}
	all, owned := m.Owners()
	for i, b := range m.Blocks {
		fmt.Printf("%-5s %2d parameters, owns %2d; programs of %s\n", b.Name, len(all[i]), len(owned[i]),
			m.Blocks[m.SharedPrograms()[i]].Name)
	}
	// Output:
	// embed  2 parameters, owns  2; programs of embed
	// h0    12 parameters, owns 12; programs of h0
	// h1    12 parameters, owns 12; programs of h0
	// h2    12 parameters, owns 12; programs of h0
	// head   3 parameters, owns  2; programs of head
}

// rows is a batch.
func rows() (inputs, targets *tensors.Tensor) {
	return tensors.FromValue([][]int32{{1, 2, 3, 4}, {5, 6, 7, 8}}),
		tensors.FromValue([][]int32{{2, 3, 4, 5}, {6, 7, 8, 10}})
}

// begin is a small model with its initial values, and a precision of a name.
func begin(t *testing.T, name string) (precision.Policy, chain.Model, []*tensors.Tensor) {
	t.Helper()
	policy, err := precision.ParsePolicy(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := small.Chain()
	if err != nil {
		t.Fatal(err)
	}
	values, err := m.Init()
	if err != nil {
		t.Fatal(err)
	}
	return policy, m, values
}

// TestPasses runs a chain block by block, forward and back, and compares the loss and each parameter's gradients with
// those of the model as one graph: with dropout, a scaled loss, and in two precisions.
func TestPasses(t *testing.T) {
	inputs, targets := rows()
	for _, name := range []string{"fp32", "fp16"} {
		for _, keep := range []bool{false, true} {
			policy, m, values := begin(t, name)
			passes := chain.Passes{Model: m, Precision: policy, Keep: keep}
			var kept int
			fn := func(in []*graph.Node) []*graph.Node {
				n := len(m.Params())
				weights, x, goals := in[:n], in[n], in[n+1]
				g := x.Graph()
				key, row := graph.Const(g, uint32(7)), graph.Const(g, uint32(2))
				var scaling []*graph.Node
				for _, s := range policy.Scaling.Start() {
					scaling = append(scaling, graph.Const(g, s.Value()))
				}
				computed := precision.Cast(weights, policy.Compute)
				loss := m.NoisyLoss(m.Params().As(policy.Compute).Nodes(computed), x, goals, key, row)
				want := append([]*graph.Node{loss}, graph.Gradient(policy.Scaling.Scale(graph.ConvertDType(loss,
					policy.Output), scaling), computed...)...)

				all, _ := m.Owners()
				got := make([]*graph.Node, n+1)
				operands, held := make([]chain.Operands, len(m.Blocks)), make([][]*graph.Node, len(m.Blocks))
				for i := range m.Blocks {
					operands[i] = chain.Operands{X: foreign(x)[0], Key: key, Row: row}
					for _, at := range all[i] {
						operands[i].Weights = append(operands[i].Weights, weights[at])
					}
					if i < len(m.Blocks)-1 {
						x, held[i] = passes.Forward(i, operands[i])
						kept += len(held[i])
					}
				}
				above := goals
				for i := len(m.Blocks) - 1; i >= 0; i-- {
					back := passes.Backward(i, operands[i], held[i], above, scaling)
					if above = back.X; back.Loss != nil {
						got[0] = back.Loss
					}
					for k, at := range all[i] {
						if sum := &got[at+1]; *sum == nil {
							*sum = back.Weights[k]
						} else {
							*sum = graph.Add(*sum, back.Weights[k])
						}
					}
				}
				out := slices.Concat(want, got)
				for i := range out {
					out[i] = graph.ConvertDType(out[i], dtypes.Float32)
				}
				return out
			}
			out, err := devicetest.CallOn(devicetest.WithBarriers(), fn, append(values, inputs, targets)...)
			if err != nil {
				t.Fatal(err)
			}
			tree := append(params.Tree{params.New("loss", dtypes.Float32)}, m.Params()...)
			bound := map[string]float64{"fp32": 1e-6, "fp16": 4e-3}[name] // of the largest element
			for i, s := range tree {
				want, got := tensors.MustCopyFlatData[float32](out[i]),
					tensors.MustCopyFlatData[float32](out[len(tree)+i])
				if off := apart(want, got); !(off <= bound) {
					t.Errorf("%s, keep %v: %s differs by %g of the largest element", name, keep, s, off)
				}
			}
			if (kept > 0) != keep {
				t.Errorf("keep %v: %d values kept", keep, kept)
			}
		}
	}
}

// TestParts runs a chain whose last block ends with the loss, once with backward passes as one program and once in two
// parts, of which all second parts come last. Both compute the gradients of the model as one graph, with dropout, a
// scaled loss, and in two precisions, and have equal bits.
func TestParts(t *testing.T) {
	inputs, targets := rows()
	for name, bound := range map[string]float64{"fp32": 1e-6, "fp16": 4e-3} { // of the largest element
		policy, m, values := begin(t, name)
		w := walk{chain.Passes{Model: m, Precision: policy, Keep: true}, nil}
		fn := func(in []*graph.Node) []*graph.Node {
			n := len(m.Params())
			weights, x, goals := in[:n], in[n], in[n+1]
			out := slices.Concat(w.whole(weights, x, goals), w.through(weights, x, goals, false),
				w.through(weights, x, goals, true))
			for i := range out {
				out[i] = graph.ConvertDType(out[i], dtypes.Float32)
			}
			return out
		}
		out, err := devicetest.CallOn(devicetest.WithBarriers(), fn, append(values, inputs, targets)...)
		if err != nil {
			t.Fatal(err)
		}
		tree := append(params.Tree{params.New("loss", dtypes.Float32)}, m.Params()...)
		for i, s := range tree {
			want, got := tensors.MustCopyFlatData[float32](out[i]), tensors.MustCopyFlatData[float32](out[len(tree)+i])
			if off := apart(want, got); !(off <= bound) {
				t.Errorf("%s: %s differs by %g of the largest element", name, s, off)
			}
			if !out[len(tree)+i].Equal(out[2*len(tree)+i]) {
				t.Errorf("%s: %s is not the same in parts", name, s)
			}
		}
	}
}

// apart is the largest difference, as a share of the largest element.
func apart(want, got []float32) float64 {
	var largest, worst float64
	for k := range want {
		largest = max(largest, math.Abs(float64(want[k])))
		worst = max(worst, math.Abs(float64(want[k])-float64(got[k])))
	}
	return worst / largest
}

// walk computes a chain's loss and gradients in several ways.
type walk struct {
	chain.Passes
	scaling []*graph.Node
}

// noise returns a key and a row, and creates a graph's states of loss scaling.
func (w *walk) noise(g *graph.Graph) (key, row *graph.Node) {
	w.scaling = nil
	for _, s := range w.Precision.Scaling.Start() {
		w.scaling = append(w.scaling, graph.Const(g, s.Value()))
	}
	return graph.Const(g, uint32(7)), graph.Const(g, uint32(2))
}

// whole differentiates the model as one graph.
func (w walk) whole(weights []*graph.Node, x, targets *graph.Node) []*graph.Node {
	key, row := w.noise(x.Graph())
	computed := precision.Cast(weights, w.Precision.Compute)
	loss := w.Model.NoisyLoss(w.Model.Params().As(w.Precision.Compute).Nodes(computed), x, targets, key, row)
	toward := w.Precision.Scaling.Scale(graph.ConvertDType(loss, w.Precision.Output), w.scaling)
	return append([]*graph.Node{loss}, graph.Gradient(toward, computed...)...)
}

// through goes through the blocks, each as in a program of its own.
func (w walk) through(weights []*graph.Node, x, targets *graph.Node, parts bool) []*graph.Node {
	key, row := w.noise(x.Graph())
	all, _ := w.Model.Owners()
	n := len(w.Model.Blocks)
	operands, kept, above, left := make([]chain.Operands, n), make([][]*graph.Node, n), make([]*graph.Node, n),
		make([][]*graph.Node, n)
	for i := range n {
		operands[i] = chain.Operands{X: foreign(x)[0], Key: key, Row: row}
		for _, at := range all[i] {
			operands[i].Weights = append(operands[i].Weights, weights[at])
		}
		if i == n-1 {
			operands[i].Targets = targets
		}
		x, kept[i] = w.Forward(i, operands[i])
		kept[i] = foreign(kept[i]...)
	}
	sums := append([]*graph.Node{x}, make([]*graph.Node, len(weights))...)
	add := func(i int, grads []*graph.Node) {
		for k, at := range all[i] {
			if sum := &sums[at+1]; *sum == nil {
				*sum = grads[k]
			} else {
				*sum = graph.Add(*sum, grads[k])
			}
		}
	}
	for i := n - 1; i >= 0; i-- {
		var below *graph.Node
		if parts {
			below, left[i] = w.BackwardInput(i, operands[i], kept[i], above[i], w.scaling)
			left[i] = foreign(left[i]...)
		} else {
			g := w.Backward(i, operands[i], kept[i], above[i], w.scaling)
			below = g.X
			add(i, g.Weights)
		}
		if i > 0 {
			above[i-1] = foreign(below)[0]
		} else if below != nil {
			panic("the first block has a gradient of its input")
		}
	}
	for i := n - 1; parts && i >= 0; i-- {
		add(i, w.BackwardWeights(i, operands[i], kept[i], above[i], w.scaling, left[i]))
	}
	return sums
}

// foreign are nodes as another program gets them.
func foreign(nodes ...*graph.Node) (same []*graph.Node) {
	for _, n := range nodes {
		same = append(same, graph.Identity(graph.StopGradient(n)))
	}
	return same
}
