package residual_test

import (
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

// x may be of a half type, in which it is sent, or of whole numbers, which have no gradient. Functions may have outputs of
// several types and take one of the others, or all, more than once.
func TestCheckpointTypes(t *testing.T) {
	mesh := meshOf(t, 2)
	lookup := func(ids, table *node) *node { return graph.Gather(table, graph.ExpandAxes(ids, -1)) }
	half := func(in nodes) nodes { // x bfloat16 [3 5], ids [2], w [5], w²
		rows := graph.ConvertDType(lookup(in[1], in[0]), dtypes.Float32)
		return nodes{graph.Mul(rows, graph.ExpandAxes(graph.Mul(in[2], in[3]), 0)), in[1], graph.Square(in[0])}
	}
	whole := func(in nodes) nodes { return nodes{graph.Sin(lookup(in[0], in[1]))} } // ids, table
	for _, c := range []struct {
		name  string
		bytes int64 // gathered
		step  func(call caller) func(x, ids, w *node) nodes
	}{
		{"half", 2 * 16, func(call caller) func(x, ids, w *node) nodes {
			return func(x, ids, w *node) nodes {
				x = graph.ConvertDType(x, dtypes.BFloat16)
				out := call(half, nodes{x, ids, w, graph.Square(w)})
				loss := graph.Add(graph.ReduceAllSum(out[0]), graph.ConvertDType(graph.ReduceAllSum(out[2]), dtypes.Float32))
				of := graph.Gradient(loss, x, w)
				return nodes{loss, graph.ConvertDType(out[1], dtypes.Float32), graph.ConvertDType(of[0], dtypes.Float32), of[1]}
			}
		}},
		{"whole numbers", 4 * 2, func(call caller) func(x, ids, w *node) nodes {
			return func(x, ids, _ *node) nodes {
				out := call(whole, nodes{ids, x})
				return append(out, graph.Gradient(graph.ReduceAllSum(out[0]), x)...)
			}
		}},
	} {
		var results [2][]*tensors.Tensor
		for i, call := range []caller{ways["divided"], func(fn func(in nodes) nodes, in nodes) nodes {
			return recompute.Call(func(x nodes) nodes { return fn(append(x, in[1:]...)) }, in[0])
		}} {
			p, err := xla.Compile(mesh, c.step(call), xla.In(xla.Replicated()).Gives(xla.Replicated()))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			x := [][]float32{{1, 2, 3, 4, 5}, {-1, -2, -3, -4, -5}, {0.5, 0.25, 2, 1, 8}}
			out, err := p.Call(x, []int32{2, 1}, []float32{1, 3, 2, 5, 7})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range out {
				results[i] = append(results[i], o.Shards()[1])
			}
			if sent, err := p.Collectives(); err != nil || i == 0 && sent.Of(xla.AllGather).Bytes != c.bytes {
				t.Errorf("%s: %v, %v; want an all-gather of %d bytes", c.name, sent, err, c.bytes)
			}
		}
		for k, want := range results[1] {
			if off := furthest(tensors.MustCopyFlatData[float32](results[0][k]), tensors.MustCopyFlatData[float32](want)); off > 0 {
				t.Errorf("%s: result %d is %v, want %v", c.name, k, results[0][k], want)
			}
		}
	}
}

func TestCheckpointPanics(t *testing.T) {
	mesh := meshOf(t, 2)
	same := func(in nodes) nodes { return in[:1] }
	for want, step := range map[string]func(x *node) nodes{
		"Checkpoint of a nil node":       func(x *node) nodes { return residual.Checkpoint(same, "tensor", x, nil) },
		"residual: Checkpoint of a nil ": func(*node) nodes { return residual.Checkpoint(same, "tensor", nil) },
		`the mesh has no axis "model"`:   func(x *node) nodes { return residual.Checkpoint(same, "model", x) },
	} {
		p, err := xla.Compile(mesh, step, xla.In(xla.Replicated()).Gives(xla.Replicated()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Call([]float32{1, 2}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		p.Close()
	}
}
