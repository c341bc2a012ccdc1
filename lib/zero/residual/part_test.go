package residual_test

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

// TestPart shards arrays of several types over ranks that divide them or not, and gathers them: the bits are the same,
// and the traffic is that of the padded array.
func TestPart(t *testing.T) {
	for _, ranks := range []int{2, 3, 4} {
		mesh := must.Get(devicetest.Open(t, ranks).Mesh(xla.Axis("tensor", ranks)))(t)
		for _, c := range []struct {
			dtype dtypes.DType
			bytes int
		}{{dtypes.Float32, 4}, {dtypes.BFloat16, 2}, {dtypes.Int32, 4}} {
			p, err := xla.Compile(mesh, func(x *graph.Node) []*graph.Node {
				x = graph.ConvertDType(x, c.dtype)
				held := residual.Hold("tensor", x, residual.Shard(x, "tensor"))
				whole := residual.Gather(held[1], x.Shape(), "tensor")
				return []*graph.Node{graph.ConvertDType(graph.Equal(whole, held[0]), dtypes.Int32), held[1]}
			}, xla.In(xla.Replicated()).Gives(xla.Replicated(), xla.Shard(0, "tensor")))
			must.Do(t, err)
			out := must.Get(p.Call([][]float32{{1, -2, 3.5, 4, 1e30}, {0, 6, 7, 8, -9}, {10, 11, 12, 13, 14}}))(t)
			for _, shard := range out[0].Shards() {
				for i, same := range tensors.MustCopyFlatData[int32](shard) {
					if same != 1 {
						t.Errorf("%v, %d ranks: element %d is another", c.dtype, ranks, i)
					}
				}
			}
			each := (15 + ranks - 1) / ranks
			sent, err := p.Collectives()
			if n := out[1].ShardShape().Size(); err != nil || n != each ||
				sent.Of(xla.AllGather).Bytes != int64(each*ranks*c.bytes) {
				t.Errorf("%v, %d ranks: parts of %d elements, %v, error %v; want parts of %d", c.dtype, ranks, n, sent,
					err, each)
			}
			p.Close()
		}
	}
}

// TestPartitionMemory has a step of a deeper model need little more than a device's parts of more inputs of blocks.
func TestPartitionMemory(t *testing.T) {
	const ranks, rows, from, to, few = 2, 16, 6, 10, 0.1 // of an input: a block's gradients
	config := gpt.Config{Width: 16, Heads: 4, Seq: 64, Vocab: 32}
	input := float64(rows * config.Seq * config.Width * 4)
	x := tensors.FromFlatDataAndDimensions(make([]int32, rows*config.Seq), rows, config.Seq)
	backend, needs := devicetest.Open(t, ranks), map[int]float64{} // inputs, by layers
	for _, config.Layers = range []int{from, to} {
		l := parallel.Layout{Tensor: ranks, Partition: true}
		r := train.Recipe{Model: gpt.Parallel{Config: config, Tensor: l.TensorGroup()}, Optimizer: optim.SGD(0.1)}
		run := must.Get(parallel.New(t.Context(), backend, r, l, parallel.Options{}))(t)
		must.Get(run.Step(t.Context(), x, x))(t)
		needs[config.Layers] = float64(run.Memory()[memest.Temporary]) / input
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	}
	if grows := (needs[to] - needs[from]) / (to - from); grows < 1.0/ranks || grows > 1.0/ranks+few {
		t.Errorf("a block needs %.3f inputs more, want 1/%d", grows, ranks)
	}
}
