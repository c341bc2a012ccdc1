package precision_test

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// A linear layer of the policy "tf32" is three matmuls and no rounding on an H100 that was opened with TF32, and else
// simulated there.
func TestTF32OnGPUs(t *testing.T) {
	m := must.Get(precision.ParsePolicy("tf32"))(t).Matmul
	const rows, width, hidden = 256, 512, 1024
	work := func(options ...xla.Option) float64 {
		mesh := must.Get(devicetest.OpenFor(t, "h100", 1, options...).Mesh(xla.Axis("data", 1)))(t)
		p := must.Get(xla.Compile(mesh, func(in nodes) nodes {
			y := m.Dot(in[0], []int{-1}, nil, in[1], []int{0}, nil)
			return append(nodes{y}, graph.Gradient(graph.ReduceAllSum(graph.Mul(y, in[2])), in[:2]...)...)
		}, xla.In(xla.Replicated(), xla.Replicated(), xla.Replicated()).Gives(xla.Replicated(), xla.Replicated(),
			xla.Replicated())))(t)
		defer p.Close()
		of := func(dims ...int) *tensors.Tensor { return tensors.FromShape(shapes.Make(dtypes.Float32, dims...)) }
		must.Do(t, p.Prepare(of(rows, width), of(width, hidden), of(rows, hidden)))
		return must.Get(p.Work())(t).FLOPs - 3*2*rows*width*hidden
	}
	own, simulated := work(xla.TF32()), work()
	if own != 0 || simulated < rows*width {
		t.Errorf("besides the matmuls %g operations, simulated %g", own, simulated)
	}
}
