package tensor_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

func zeros(dims ...int) *tensors.Tensor {
	return tensors.FromShape(shapes.Make(dtypes.Float32, dims...))
}

// The collectives of a pair of layers, with several matrices in the first, as XLA compiled it: in each pass one
// all-reduce of B·T·C elements; with Sequence one all-gather and one reduce-scatter in each pass and one more
// all-gather in the backward pass; with Overlap n−1 permutes of 1/n of that for each of them, without the third
// all-gather, and the n numbers of collective.Rank.
func TestTraffic(t *testing.T) {
	const n, batch, tokens, width, hidden = 4, 2, 8, 4, 12
	const full = batch * tokens * width * 4 // bytes
	mesh := meshOf(t, devicetest.Open(t, n), xla.Axis("tensor", n))
	for _, w := range variants {
		for passes := 1; passes <= 2; passes++ {
			length := tokens
			operation := func(kind xla.CollectiveKind, count, each int) xla.Traffic {
				return xla.Traffic{Kind: kind, Count: passes * count, Bytes: int64(passes * count * each)}
			}
			var want []xla.Traffic
			switch w.name {
			case "tensor":
				want = []xla.Traffic{operation(xla.AllReduce, 1, full)}
			case "sequence":
				gathers := 2*passes - 1
				want = []xla.Traffic{{Kind: xla.AllGather, Count: gathers, Bytes: int64(gathers * full)},
					operation(xla.ReduceScatter, 1, full)}
				length = tokens / n
			case "overlap":
				want, length = []xla.Traffic{{Kind: xla.AllToAll, Count: 1, Bytes: 4 * n},
					operation(xla.Permute, 2*(n-1), full/n)}, tokens/n
			}
			p := onRanks(t, mesh, 0, 3, func(in []*graph.Node) []*graph.Node {
				z := pair(w.group, in[0], in[1], in[2])
				if passes == 1 {
					return []*graph.Node{z}
				}
				// The gradient of the square depends on z, so that XLA cannot remove the forward pass.
				return graph.Gradient(graph.ReduceAllSum(graph.Square(z)), in...)
			})
			if err := p.Prepare(zeros(n, batch, length, width), zeros(n, width, hidden/n),
				zeros(n, hidden/n, width)); err != nil {
				t.Fatal(err)
			}
			got, err := p.Collectives()
			if err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(got, func(a, b xla.Traffic) int { return int(a.Kind) - int(b.Kind) })
			if !slices.Equal(got, want) {
				t.Errorf("%s, %d passes: %v, want %v", w.name, passes, got, xla.Report(want))
			}
		}
	}
}

// pair is (tanh(x·a)∘(x·sin a))·b: two matrices for Columns, which share the communication, and one for Rows.
func pair(t tensor.Group, x, a, b *graph.Node) *graph.Node {
	y := t.Columns(x, []*graph.Node{a, graph.Sin(a)}, dot)
	return t.Rows(graph.Mul(graph.Tanh(y[0]), y[1]), b, dot)
}

// The loss and its gradients need less memory than all logits in float32. They communicate three numbers for each
// position, and the gradient of x.
func TestNoDeviceHasAllLogits(t *testing.T) {
	const n, batch, tokens, width, vocab = 8, 2, 32, 4, 4093
	mesh := meshOf(t, devicetest.Open(t, n), xla.Axis("tensor", n))
	group := tensor.Group{Axis: "tensor"}
	p := onRanks(t, mesh, 1, 3, func(in []*graph.Node) []*graph.Node {
		logits := group.Columns(in[0], []*graph.Node{in[1]}, dot)[0]
		loss := graph.ReduceAllMean(group.CrossEntropy(logits, in[2], vocab))
		return append(graph.Gradient(loss, in[0], in[1]), loss)
	})
	if err := p.Prepare(zeros(n, batch, tokens, width), zeros(n, width, (vocab+n-1)/n),
		tensors.FromShape(shapes.Make(dtypes.Int32, batch, tokens))); err != nil {
		t.Fatal(err)
	}
	memory, err := p.Memory()
	if err != nil {
		t.Fatal(err)
	}
	if all := int64(4 * batch * tokens * vocab); memory.Temporary >= all/2 {
		t.Errorf("%d bytes of temporary memory; all logits have %d", memory.Temporary, all)
	}
	t.Logf("%d bytes of temporary memory; all logits have %d", memory.Temporary, 4*batch*tokens*vocab)
	want := xla.Report{{Kind: xla.AllReduce, Count: 3, Bytes: 4 * batch * tokens * (3 + width)},
		{Kind: xla.AllToAll, Count: 1, Bytes: 4 * n}}
	if got := report(t, p); got != fmt.Sprint(want) {
		t.Errorf("%s, want %v", got, want)
	}
}
