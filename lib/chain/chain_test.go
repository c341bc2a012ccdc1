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

// A GPT's token table, tied to its head, is at home in the embedding; its blocks between are twins.
func ExampleModel() {
	c := small
	c.Dropout = 0 // with which each block would have noise of its own
	m, err := c.Chain()
	if err != nil {
		panic(err)
	}
	all, home := m.Homes()
	for i, b := range m.Blocks {
		fmt.Printf("%-5s %2d parameters, %2d at home; programs of %s\n", b.Name, len(all[i]), len(home[i]), m.Blocks[m.Twins()[i]].Name)
	}
	// Output:
	// embed  2 parameters,  2 at home; programs of embed
	// h0    12 parameters, 12 at home; programs of h0
	// h1    12 parameters, 12 at home; programs of h0
	// h2    12 parameters, 12 at home; programs of h0
	// head   3 parameters,  2 at home; programs of head
}

// TestPasses goes through a chain block by block, forward and back, and holds the loss and the sums of each parameter's
// gradients against those of the whole model. With dropout, a scaled loss, and in two precisions.
func TestPasses(t *testing.T) {
	inputs := tensors.FromValue([][]int32{{1, 2, 3, 4}, {5, 6, 7, 8}})
	targets := tensors.FromValue([][]int32{{2, 3, 4, 5}, {6, 7, 8, 10}})
	for _, name := range []string{"fp32", "fp16"} {
		for _, keep := range []bool{false, true} {
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
				want := append([]*graph.Node{loss}, graph.Gradient(policy.Scaling.Scale(graph.ConvertDType(loss, policy.Output), scaling), computed...)...)

				all, _ := m.Homes()
				got := make([]*graph.Node, n+1)
				operands, held := make([]chain.Operands, len(m.Blocks)), make([][]*graph.Node, len(m.Blocks))
				for i := range m.Blocks {
					operands[i] = chain.Operands{X: graph.Identity(graph.StopGradient(x)), Key: key, Row: row} // as of another program
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
				want, got := tensors.MustCopyFlatData[float32](out[i]), tensors.MustCopyFlatData[float32](out[len(tree)+i])
				var largest, worst float64
				for k := range want {
					largest = max(largest, math.Abs(float64(want[k])))
					worst = max(worst, math.Abs(float64(want[k])-float64(got[k])))
				}
				if !(worst <= bound*largest) || largest == 0 {
					t.Errorf("%s, keep %v: %s differs by %g, the largest element is %g", name, keep, s, worst, largest)
				}
			}
			if (kept > 0) != keep {
				t.Errorf("keep %v: %d values kept", keep, kept)
			}
		}
	}
}
