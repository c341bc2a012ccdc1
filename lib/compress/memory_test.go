package compress_test

import (
	"math"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// A deep network of matmuls and ReLUs needs the memory that Bytes predicts, and that of a few tensors for the layer
// that is being computed. Without compression, it would be one more tensor per layer.
func TestMemory(t *testing.T) {
	const rows, width, layers = 1024, 64, 6
	mesh := must.Get(devicetest.Open(t, 1).Mesh(xla.Axis("data", 1)))(t)
	temporary := func(layer func(x, w *node) *node) int64 {
		t.Helper()
		p := must.Get(xla.Compile(mesh, func(x, w *node) nodes {
			h := x
			for i := range layers {
				h = layer(h, graph.Reshape(graph.Slice(w, graph.AxisElem(i)), width, width))
			}
			loss := graph.ReduceAllSum(graph.Square(h))
			return nodes{loss, graph.Gradient(loss, w)[0]}
		}, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
		defer p.Close()
		x, w := tensors.FromShape(shapes.Make(dtypes.Float32, rows, width)),
			tensors.FromShape(shapes.Make(dtypes.Float32, layers, width, width))
		must.Do(t, p.Prepare(x, w))
		m := must.Get(p.Memory())(t)
		return m.Temporary
	}
	tensor := shapes.Make(dtypes.Float32, rows, width)
	one := compress.Dense().Bytes(tensor)
	plain := temporary(layer)
	t.Logf("plain: %d bytes, %.1f tensors", plain, float64(plain)/float64(one))
	for _, c := range []struct {
		name string
		work float64 // how many tensors one layer's computation needs
	}{{"bf16", 3.5}, {"int8", 4.5}, {"csr:0.1", 6}} {
		codec := parse(t, c.name)
		got := temporary(func(x, w *node) *node { return compress.ReLU(compress.Dot(x, w, codec, precision.Matmul{})) })
		kept := layers * (codec.Bytes(tensor) + compress.Sign().Bytes(tensor))
		t.Logf("%s: %d bytes, of which %d are kept", c.name, got, kept)
		if most := kept + int64(c.work*float64(one)); got > most || got >= plain || got < kept {
			t.Errorf("%s: %d bytes, want from %d to %d, and less than %d without compression", c.name, got, kept, most,
				plain)
		}
	}
}

// On a mesh each device encodes its own shard. Two devices with half of a batch each have the gradient of one.
func TestMesh(t *testing.T) {
	const n = 20
	x, w := random(11, 8, n), random(12, n, n)
	step := func(devices string) func(x, w *node) *node {
		return func(x, w *node) *node {
			y := compress.ReLU(compress.Dot(graph.Sin(x), w, parse(t, "csr:1"), precision.Matmul{}))
			gradient := graph.Gradient(graph.ReduceAllSum(graph.Square(y)), w)[0]
			if devices != "" {
				gradient = x.Graph().Distributed().Along(devices).AllReduceOne(gradient, compute.ReduceOpSum)
			}
			return gradient
		}
	}
	mesh := must.Get(devicetest.Open(t, 2).Mesh(xla.Axis("data", 2)))(t)
	p := must.Get(xla.Compile(mesh, step("data"), xla.In(xla.Shard(0, "data"), xla.Replicated()).Gives(xla.Replicated())))(t)
	defer p.Close()
	out := must.Get(p.Call(x, w))(t)
	got := must.Get(out[0].Merge())(t)
	want := call(t, devicetest.PureGo(), func(in nodes) nodes { return nodes{step("")(in[0], in[1])} }, x, w)[0]
	for i, g := range tensors.MustCopyFlatData[float32](got) {
		if math.Abs(float64(g-want[i])) > 1e-5*(1+math.Abs(float64(want[i]))) { // sums differ in their order
			t.Fatalf("element %d is %g, want %g", i, g, want[i])
		}
	}
}

// Lossy codecs change w's gradient by no more than the rounding of x explains: half a unit in the last place of x times
// the output gradient, summed as the gradient is.
func TestGradientError(t *testing.T) {
	const rows, in, out = 40, 16, 5
	x, w, v := random(13, rows, in), random(14, in, out), random(15, rows, out)
	xs, vs := tensors.MustCopyFlatData[float32](x), tensors.MustCopyFlatData[float32](v)
	gradient := func(codec compress.Codec) []float32 {
		return call(t, devicetest.PureGo(), func(n nodes) nodes {
			y := compress.Dot(n[0], n[1], codec, precision.Matmul{})
			return nodes{graph.Gradient(graph.ReduceAllSum(graph.Mul(y, n[2])), n[1])[0]}
		}, x, w, v)[0]
	}
	// Half the distance between neighbours of x is at most x/2 times Epsilon, or half of the smallest number.
	relative := func(f precision.Format) func(row []float32, i int) float64 {
		return func(row []float32, i int) float64 {
			return max(math.Abs(float64(row[i]))*f.Epsilon(), f.SmallestSubnormal()) / 2
		}
	}
	largest := func(row []float32, _ int) float64 { // a group of 16 is a row
		var l float64
		for _, x := range row {
			l = max(l, math.Abs(float64(x)))
		}
		return l / 127 / 2
	}
	exact := gradient(compress.Dense())
	for name, moves := range map[string]func(row []float32, i int) float64{
		"fp16": relative(precision.FP16), "bf16": relative(precision.BF16), "fp10": relative(compress.FP10),
		"e4m3": relative(precision.E4M3), "e5m2": relative(precision.E5M2), "int8:16": largest,
	} {
		var worst float64 // share of what is allowed
		for k, got := range gradient(parse(t, name)) {
			i, j, most := k/out, k%out, 1e-5 // for the sums themselves
			for r := range rows {
				most += moves(xs[r*in:(r+1)*in], i) * math.Abs(float64(vs[r*out+j]))
			}
			worst = max(worst, math.Abs(float64(got-exact[k]))/most)
		}
		if worst > 1 || worst < 0.05 {
			t.Errorf("%s: the gradient's worst error is %.3f of the bound, want at most 1, and more than nothing", name,
				worst)
		}
	}
}
