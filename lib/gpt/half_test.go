package gpt_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/precision"
)

// A model with half-precision parameters computes in their type, and so do its gradients; the loss is float32.
func TestHalfPrecision(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 22))
	c := gpt.Config{Layers: 1, Width: 8, Heads: 4, Seq: 6, Vocab: 11, KVHeads: 2, Hidden: 12, Gated: true,
		Norm:      gpt.RMSNorm,
		Positions: gpt.Rotary, Tied: true}
	w, plain := randomModel(c, random)
	tokens, targets := randomTokens(random, 2, c.Seq, c.Vocab), randomTokens(random, 2, c.Seq, c.Vocab)
	tree := c.Params()
	want, wantGrads := plain.loss(tokens, targets), plain.gradient(tree, tokens, targets)
	for dtype, bound := range map[dtypes.DType]float64{dtypes.BFloat16: 0.04, dtypes.Float16: 0.005} {
		out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			n := len(tree)
			cast := precision.Cast(in[:n], dtype)
			p := tree.As(dtype).Nodes(cast)
			if got := c.Forward(p, in[n]).DType(); got != dtype {
				t.Errorf("logits of %s in a model of %s", got, dtype)
			}
			loss := c.Loss(p, in[n], in[n+1])
			grads := graph.Gradient(loss, cast...)
			if loss.DType() != dtypes.Float32 || grads[0].DType() != dtype {
				t.Errorf("loss of %s and gradients of %s in a model of %s", loss.DType(), grads[0].DType(), dtype)
			}
			for _, node := range loss.Graph().Nodes() {
				if node.Type() == graph.NodeTypeDotGeneral && node.DType() != dtype {
					t.Errorf("a product is in %s", node.DType())
				}
			}
			return append(precision.Cast(grads, dtypes.Float32), loss)
		}, append(w, tensors.FromValue(tokens), tensors.FromValue(targets))...)
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(tensors.ToScalar[float32](out[len(tree)])); math.Abs(got/want-1) > bound {
			t.Errorf("%s: loss %g, want %g", dtype, got, want)
		}
		// How far all gradients together are from the exact ones, in norm.
		var off, norm float64
		for k, s := range tree {
			for i, g := range tensors.MustCopyFlatData[float32](out[k]) {
				off += math.Pow(float64(g)-wantGrads[s.Name][i], 2)
				norm += math.Pow(wantGrads[s.Name][i], 2)
			}
		}
		t.Logf("%s: the gradients are %.4f of their norm away", dtype, math.Sqrt(off/norm))
		if math.Sqrt(off/norm) > bound*3 {
			t.Errorf("%s: the gradients are %.3f of their norm away from the exact ones", dtype, math.Sqrt(off/norm))
		}
	}
}

// The gradient of a token accumulates over all its places, and a bias' over all positions: more than a half type can
// count to. With a single token, repeated, there are only such sums.
func TestSumsOverPositions(t *testing.T) {
	random := rand.New(rand.NewPCG(23, 24))
	c := gpt.Config{Layers: 1, Width: 8, Heads: 2, Seq: 64, Vocab: 5}
	w, _ := randomModel(c, random)
	tree := c.Params()
	rows := make([][]int32, 32)
	for i := range rows {
		rows[i] = make([]int32, c.Seq)
	}
	grads := func(dtype dtypes.DType) []*tensors.Tensor {
		out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			n := len(tree)
			cast := precision.Cast(in[:n], dtype)
			loss := c.Loss(tree.As(dtype).Nodes(cast), in[n], in[n])
			return precision.Cast(graph.Gradient(graph.MulScalar(loss, 256), cast...), dtypes.Float32)
		}, append(w, tensors.FromValue(rows))...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	exact, half := grads(dtypes.Float32), grads(dtypes.BFloat16)
	for _, name := range []string{"tok", "h0.qkv.b", "h0.o.b", "h0.up.b", "h0.down.b"} {
		k := tree.Index(name)
		var off, norm float64
		got := tensors.MustCopyFlatData[float32](half[k])
		for i, want := range tensors.MustCopyFlatData[float32](exact[k]) {
			off += math.Pow(float64(got[i]-want), 2)
			norm += math.Pow(float64(want), 2)
		}
		// The summands have errors of about 0.4 %; sums in bfloat16 are 5 % and more away.
		if away := math.Sqrt(off / norm); away > 0.03 {
			t.Errorf("the gradient of %s is %.3f of its norm away from that in float32", name, away)
		}
	}
}

// Attention over many equal keys returns their value, also where the sum of all values would overflow.
func TestHalfAttentionDoesNotOverflow(t *testing.T) {
	const n = 4096
	out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
		g := in[0].Graph()
		zero := graph.Zeros(g, shapes.Make(dtypes.Float16, 1, n, 1, 1))
		v := graph.AddScalar(zero, 20)
		y := gpt.CausalAttention(zero, zero, v)
		return []*graph.Node{graph.ConvertDType(graph.ReduceAllMax(graph.Abs(graph.Sub(y, v))), dtypes.Float32)}
	}, tensors.FromScalar(float32(0)))
	if err != nil {
		t.Fatal(err)
	}
	if off := tensors.ToScalar[float32](out[0]); !(off < 0.1) {
		t.Errorf("%g away from 20", off)
	}
}
