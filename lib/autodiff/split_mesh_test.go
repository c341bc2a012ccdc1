package autodiff_test

import (
	"slices"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// On a mesh, collectives are done once, in one of the two programs. An all-reduce of one operand, which GoMLX cannot
// copy, is among them.
func TestSplitMesh(t *testing.T) {
	mesh := must(devicetest.Open(t, 2).Mesh(xla.Axis("data", 2)))
	fn := func(in nodes) nodes {
		y := collective.AllReduce(graph.Dot(in[0], in[1]).Product(), collective.Sum, "data")
		mean := y.Graph().Distributed().Along("data").AllReduceOne(graph.StopGradient(y), compute.ReduceOpSum)
		return nodes{graph.Mul(graph.Sin(y), graph.Cos(mean))}
	}
	s := autodiff.Split{Fn: fn, Of: both}
	x, w, v := random(1, 4, 3), random(2, 6, 4), random(3, 4, 4) // half of the rows for each device
	run := func(fn func(in nodes) nodes, args ...any) (results []*tensors.Tensor, allReduces int) {
		each := xla.Shard(0, "data")
		p := must(xla.Compile(mesh, fn, xla.In(each).Gives(each)))
		defer p.Close()
		for _, out := range must(p.Call(args...)) {
			results = append(results, must(out.Merge()))
		}
		return results, must(p.Collectives()).Of(xla.AllReduce).Count
	}
	args := func(of ...*tensors.Tensor) (own []any) {
		for _, a := range of {
			own = append(own, must(a.LocalClone()))
		}
		return own
	}
	out, first := run(func(in nodes) nodes { y, kept := s.Forward(in); return append(y, kept...) }, args(x, w)...)
	got, second := run(func(in nodes) nodes { return s.Backward(in[:2], in[2:len(in)-1], in[len(in)-1:]) },
		args(append(append([]*tensors.Tensor{x, w}, out[1:]...), v)...)...)
	want, whole := run(func(in nodes) nodes {
		return graph.Gradient(graph.ReduceAllSum(graph.Mul(fn(in)[0], in[2])), in[:2]...)
	}, args(x, w, v)...)
	for i := range want {
		if d := apart(got[i], want[i]); !(d <= 4*0x1p-24) {
			t.Errorf("gradient %d differs by %g of its largest element", i, d)
		}
	}
	if first != 2 || first+second != whole {
		t.Errorf("%d and %d all-reduces in two programs, %d in one; want 2 in the first", first, second, whole)
	}
}

// Where the compiler cuts programs up, both are the same program for any number of devices.
func TestSplitAutoSharding(t *testing.T) {
	mesh := must(devicetest.Open(t, 2).Mesh(xla.Axis("data", 2)))
	s := autodiff.Split{Fn: squared, Of: both}
	p := must(xla.CompileAuto(mesh, func(x, w *node) nodes {
		out, kept := s.Forward(nodes{x, w})
		return s.Backward(nodes{x, w}, kept, out)
	}, xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Shard(0, "data"), xla.Replicated())))
	defer p.Close()
	// Here v is the output, so the gradient of (x·w)² in x is 2·(x·w)³·w, and the one in w is the sum of 2·(x·w)³·x.
	out := must(p.Call([][]float32{{1}, {1}}, [][]float32{{2}}))
	for i, want := range [][]float32{{2 * 8 * 2, 2 * 8 * 2}, {2*8 + 2*8}} {
		if got := tensors.MustCopyFlatData[float32](must(out[i].Merge())); !slices.Equal(got, want) {
			t.Errorf("gradient %d is %v, want %v", i, got, want)
		}
	}
}
