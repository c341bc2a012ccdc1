package residual_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

type (
	node  = graph.Node
	nodes = []*graph.Node
)

// block is Megatron's MLP with its residual connection: x, which is whole on each rank, and a rank's columns of one matrix
// and rows of the other.
func block(in nodes) nodes {
	h := graph.Tanh(graph.Dot(collective.F(in[0], "tensor"), in[1]).Product())
	return nodes{graph.Add(in[0], collective.G(graph.Dot(h, in[2]).Product(), "tensor"))}
}

// caller is a way to call a block.
type caller func(fn func(in nodes) nodes, in nodes) nodes

var ways = map[string]caller{
	"kept": func(fn func(in nodes) nodes, in nodes) nodes { return recompute.Call(fn, in...) },
	"divided": func(fn func(in nodes) nodes, in nodes) nodes {
		return residual.Checkpoint(fn, "tensor", in[0], in[1:]...)
	},
}

// deep compiles the loss of a stack of blocks and its gradients, for x (rows, width), all layers' a (layers, width,
// width), of which each rank has columns, and b, of which it has rows.
func deep(t *testing.T, mesh *xla.Mesh, call caller) *xla.Program {
	t.Helper()
	columns, rows := xla.Shard(2, "tensor"), xla.Shard(1, "tensor")
	p, err := xla.Compile(mesh, func(x, a, b *node) nodes {
		h := x
		for i := range a.Shape().Dim(0) {
			weights := func(of *node) *node { return graph.Squeeze(graph.Slice(of, graph.AxisElem(i)), 0) }
			h = call(block, nodes{h, weights(a), weights(b)})[0]
		}
		loss := graph.ReduceAllSum(graph.Square(h))
		return append(nodes{loss}, graph.Gradient(loss, x, a, b)...)
	}, xla.In(xla.Replicated(), columns, rows).Gives(xla.Replicated(), xla.Replicated(), columns, rows))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func meshOf(t *testing.T, ranks int) *xla.Mesh {
	t.Helper()
	mesh, err := devicetest.Open(t, ranks).Mesh(xla.Axis("tensor", ranks))
	if err != nil {
		t.Fatal(err)
	}
	return mesh
}

// Each layer needs one tensor more without P_a, and the ranks' part of one with it. In the optimized program there is one
// all-gather for each checkpoint, of the checkpoint's bytes.
func TestCheckpointMemory(t *testing.T) {
	const rows, width = 512, 16
	const one = rows * width * 4
	for _, ranks := range []int{2, 4} {
		mesh := meshOf(t, ranks)
		measure := func(way string, layers int) (temporary int64, sent xla.Report) {
			p := deep(t, mesh, ways[way])
			zero := func(dims ...int) any { return tensors.FromShape(shapes.Make(dtypes.Float32, dims...)) }
			if err := p.Prepare(zero(rows, width), zero(layers, width, width), zero(layers, width, width)); err != nil {
				t.Fatal(err)
			}
			memory, err := p.Memory()
			if err != nil {
				t.Fatal(err)
			}
			if sent, err = p.Collectives(); err != nil {
				t.Fatal(err)
			}
			return memory.Temporary, sent
		}
		grows := map[string]float64{} // tensors a layer
		for way := range ways {
			shallow, _ := measure(way, 4)
			large, sent := measure(way, 16)
			grows[way] = float64(large-shallow) / 12 / one
			t.Logf("%d ranks, %s: %d bytes for 4 layers, %d for 16: %.3f tensors a layer; %v", ranks, way, shallow, large, grows[way], sent)
			want := xla.Traffic{Kind: xla.AllGather}
			if way == "divided" {
				want.Count, want.Bytes = 16, 16*one
			}
			if got := sent.Of(xla.AllGather); got != want {
				t.Errorf("%d ranks, %s: all-gathers %+v, want %+v", ranks, way, got, want)
			}
		}
		const weights = 0.1 // of a tensor: a layer's gradients and slices of weights
		if kept, divided := grows["kept"], grows["divided"]; kept < 1 || divided > 1/float64(ranks)+weights {
			t.Errorf("%d ranks: a layer needs %.3f tensors more, with P_a %.3f; want 1 and 1/%d", ranks, kept, divided, ranks)
		}
	}
}

// Without a backward pass nothing is gathered.
func TestCheckpointForward(t *testing.T) {
	mesh := meshOf(t, 2)
	p, err := xla.Compile(mesh, func(x *node) nodes {
		return residual.Checkpoint(func(in nodes) nodes { return nodes{graph.Tanh(in[0])} }, "tensor", x)
	}, xla.In(xla.Replicated()).Gives(xla.Replicated()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Prepare([]float32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if sent, err := p.Collectives(); err != nil || sent.Of(xla.AllGather).Count != 0 {
		t.Errorf("%v, %v", sent, err)
	}
}

// Gradients are recompute.Call's, where ranks divide x and where they do not, and inside another Call.
func TestCheckpointGradients(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	normal := func(dims ...int) *tensors.Tensor {
		x := tensors.FromShape(shapes.Make(dtypes.Float32, dims...))
		tensors.MustMutableFlatData(x, func(flat []float32) {
			for i := range flat {
				flat[i] = float32(random.NormFloat64())
			}
		})
		return x
	}
	const width = 5
	inside := func(fn func(in nodes) nodes, in nodes) nodes {
		return recompute.Call(func(in nodes) nodes { return ways["divided"](fn, in) }, in...)
	}
	for _, c := range []struct {
		ranks, rows int
		call        caller
	}{{1, 3, ways["divided"]}, {2, 7, ways["divided"]}, {3, 6, ways["divided"]}, {4, 3, ways["divided"]}, {2, 4, inside}} {
		mesh := meshOf(t, c.ranks)
		args := []any{normal(c.rows, width), normal(3, width, 2*c.ranks), normal(3, 2*c.ranks, width)}
		var results [2][][]float32
		for i, call := range []caller{ways["kept"], c.call} {
			out, err := deep(t, mesh, call).Call(args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range out {
				whole, err := o.Merge()
				if err != nil {
					t.Fatal(err)
				}
				results[i] = append(results[i], tensors.MustCopyFlatData[float32](whole))
			}
		}
		for k, want := range results[0] {
			if off := furthest(results[1][k], want); !(off <= roundings) {
				t.Errorf("%d ranks, %d rows: result %d is %v, want %v", c.ranks, c.rows, k, results[1][k], want)
			}
		}
	}
}

// roundings bounds the difference between the same operations, fused in different ways.
const roundings = 16

// furthest is the largest difference, in units in the last place of the largest element.
func furthest(got, want []float32) float64 {
	off, largest := 0.0, 0.0
	for i := range want {
		off, largest = max(off, math.Abs(float64(got[i]-want[i]))), max(largest, math.Abs(float64(want[i])))
	}
	return off / (largest * 0x1p-23)
}
