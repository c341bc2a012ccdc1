package tensor_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

// Losses and gradients are those of the definition in plain Go, also for logits whose exponentials overflow, ranks with
// only padding, large values in the padding, and targets outside the vocabulary.
func TestCrossEntropy(t *testing.T) {
	const n, batch, tokens, vocab = 4, 2, 5, 5 // two columns on each rank: one on the third, none on the fourth
	r := rand.New(rand.NewPCG(2, 3))
	logits := random(r, 3, batch, tokens, vocab)
	for i := range 2 * vocab { // two positions
		logits.values[i] = float64(float32(logits.values[i] * 300))
	}
	targets := []int64{4, 0, -1, 5, 7, 1 << 32, math.MinInt64, 2, 3, 1}

	wantLoss, wantGradient := make([]float64, len(targets)), make([]float64, len(logits.values))
	for i, target := range targets {
		if target < 0 || target >= vocab {
			continue
		}
		row := logits.values[i*vocab : (i+1)*vocab]
		top, sum := math.Inf(-1), 0.0
		for _, l := range row {
			top = max(top, l)
		}
		for _, l := range row {
			sum += math.Exp(l - top)
		}
		wantLoss[i] = top + math.Log(sum) - row[target]
		for j, l := range row {
			wantGradient[i*vocab+j] = math.Exp(l-top) / sum * float64(i+1)
		}
		wantGradient[i*vocab+int(target)] -= float64(i + 1)
	}

	cut, err := params.EvenCut(2, vocab, n, true)
	if err != nil {
		t.Fatal(err)
	}
	backend := devicetest.Open(t, n)
	for _, group := range []tensor.Group{{Axis: "tensor"}, {}} {
		ranks := n
		if group.Alone() {
			ranks = 1
		}
		p := onRanks(t, meshOf(t, backend, xla.Axis("tensor", ranks)), 1, 2, func(in []*graph.Node) []*graph.Node {
			loss := group.CrossEntropy(in[0], in[1], vocab)
			weights := graph.AddScalar(graph.IotaFull(in[0].Graph(), loss.Shape()), 1) // (B,T)
			return append(graph.Gradient(graph.ReduceAllSum(graph.Mul(loss, weights)), in[0]), loss)
		})
		of := cut
		if ranks == 1 {
			of = nil
		}
		stacked := logits.stacked(of, ranks)
		if ranks > 1 {
			tensors.MustMutableFlatData(stacked, func(flat []float32) { // values in the padding must not count
				for rank := range ranks {
					for i := range len(flat) / ranks {
						if of.Index[rank][i%len(of.Index[rank])] < 0 {
							flat[rank*len(flat)/ranks+i] = 1000
						}
					}
				}
			})
		}
		got := call(t, p, stacked, tensors.FromFlatDataAndDimensions(targets, batch, tokens))
		for rank := range ranks {
			shard := func(values []float32) []float32 {
				return values[rank*len(values)/ranks : (rank+1)*len(values)/ranks]
			}
			want := array{logits.dims, wantGradient}.part(of, rank)
			if d := distance(t, "gradients", shard(got[0]), want.values, 10); !(d <= 0x1p-18) {
				t.Errorf("gradients on rank %d of %d: %v, want %v", rank, ranks, shard(got[0]), want.values)
			}
			if d := distance(t, "losses", shard(got[1]), wantLoss, largest(wantLoss)); !(d <= 0x1p-20) {
				t.Errorf("losses on rank %d of %d: %v, want %v", rank, ranks, shard(got[1]), wantLoss)
			}
		}
	}
}

// Embeddings of a sharded table are exactly those of the full one, in any type; tokens outside the table give zeros.
func TestEmbed(t *testing.T) {
	const n, vocab, width = 3, 7, 2
	table := random(rand.New(rand.NewPCG(5, 6)), 1, vocab, width)
	tokens := []uint8{0, 6, 3, 2, 5, 1, 4, 6, 3, 0, 200, 9}
	cut, err := params.EvenCut(0, vocab, n, true)
	if err != nil {
		t.Fatal(err)
	}
	group := tensor.Group{Axis: "tensor"}
	p := onRanks(t, meshOf(t, devicetest.Open(t, n), xla.Axis("tensor", n)), 1, 2,
		func(in []*graph.Node) []*graph.Node {
			half := group.Embed(graph.ConvertDType(in[0], dtypes.BFloat16), in[1])
			if half.DType() != dtypes.BFloat16 {
				t.Errorf("a table of bfloat16 gives %v", half.DType())
			}
			return []*graph.Node{group.Embed(in[0], in[1]), half}
		})
	got := call(t, p, table.stacked(cut, n), tensors.FromFlatDataAndDimensions(tokens, 2, 6))
	for rank := range n {
		for i, token := range tokens {
			for j := range width {
				want := float32(0)
				if token < vocab {
					want = float32(table.values[int(token)*width+j])
				}
				at := (rank*len(tokens)+i)*width + j
				if got[0][at] != want {
					t.Errorf("rank %d, token %d: %v, want %v", rank, token, got[0][at], want)
				}
				if half := float64(got[1][at]); math.Abs(half-float64(want)) > 0x1p-8*math.Abs(float64(want)) {
					t.Errorf("rank %d, token %d: %v in bfloat16, want %v", rank, token, half, want)
				}
			}
		}
	}
}
