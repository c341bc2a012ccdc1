package gpt_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/noise"
)

// dropped embeds tokens with tables of ones and twos, so that each value shows whether it was dropped.
func dropped(t *testing.T, c gpt.Config, rows int, key, row uint32) []float32 {
	t.Helper()
	tokens := make([][]int32, rows)
	for i := range tokens {
		tokens[i] = make([]int32, c.Seq)
	}
	ones := func(rows int) *tensors.Tensor {
		flat := slices.Repeat([]float32{1}, rows*c.Width)
		return tensors.FromFlatDataAndDimensions(flat, rows, c.Width)
	}
	out, err := call(func(in []*graph.Node) []*graph.Node {
		p := map[string]*graph.Node{"tok": in[0], "pos": in[1]}
		return []*graph.Node{c.Embed(p, in[2], &gpt.Noise{Key: in[3], Row: in[4]})}
	}, ones(c.Vocab), ones(c.Seq), tensors.FromValue(tokens), tensors.FromScalar(key), tensors.FromScalar(row))
	if err != nil {
		t.Fatal(err)
	}
	return tensors.MustCopyFlatData[float32](out[0])
}

// Each value is dropped or not by the bits of its own index in the full batch.
func TestDropout(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 64, Heads: 1, Seq: 32, Vocab: 3, Dropout: 0.3}
	const rows, key = 8, 12345
	got := dropped(t, c, rows, key, 0)
	out, err := call(func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{noise.Bits(in[0], 0, nil, rows, c.Seq, c.Width)}
	}, tensors.FromScalar(uint32(key)))
	if err != nil {
		t.Fatal(err)
	}
	bits := tensors.MustCopyFlatData[uint32](out[0])
	zeros := 0
	for i, v := range got {
		kept := float64(bits[i]) >= math.Floor(0.3*(1<<32))
		want := 0.0
		if kept {
			want = 2 / 0.7
		} else {
			zeros++
		}
		if !scalar.EqualWithinRel(float64(v), want, 1e-6) {
			t.Fatalf("value %d: %g, want %g", i, v, want)
		}
	}
	// 16384 values: the standard deviation of the fraction is √(0.3·0.7/16384) = 0.0036.
	if share := float64(zeros) / float64(len(got)); math.Abs(share-0.3) > 0.015 {
		t.Errorf("%.3f of the values were dropped, want 0.3", share)
	}
	// A rank with sequences 3 to 5 drops what one device drops in these sequences.
	width := c.Seq * c.Width
	if part := dropped(t, c, 3, key, 3); !slices.Equal(part, got[3*width:6*width]) {
		t.Error("rows 3 to 5 alone are not rows 3 to 5 of the whole batch")
	}
	if other := dropped(t, c, rows, key+1, 0); slices.Equal(other, got) {
		t.Error("another key makes the same noise")
	}
}

// The masks of neighbouring keys and layers are independent: if each keeps half of the values, half of the places
// agree.
func TestDropoutIndependence(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 64, Heads: 1, Seq: 32, Vocab: 3, Dropout: 0.5}
	masks := [][]float32{dropped(t, c, 4, 0, 0), dropped(t, c, 4, 1, 0), dropped(t, c, 4, 2, 0),
		dropped(t, c, 4, 1<<31, 0)}
	for i, a := range masks {
		for j, b := range masks[:i] {
			agree := 0
			for k := range a {
				if (a[k] == 0) == (b[k] == 0) {
					agree++
				}
			}
			// 8192 values: the standard deviation is 0.0055.
			if share := float64(agree) / float64(len(a)); math.Abs(share-0.5) > 0.025 {
				t.Errorf("masks %d and %d agree in %.3f of the places, want 0.5", j, i, share)
			}
		}
	}
}

// Without dropout the noisy loss is the loss; with it, the gradient flows through the values that were not dropped.
func TestNoisyLoss(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	for _, dropout := range []float64{0, 0.4} {
		c := gpt.Config{Layers: 2, Width: 8, Heads: 2, Seq: 5, Vocab: 7, Dropout: dropout}
		w, _ := randomModel(c, random)
		tokens, targets := randomTokens(random, 2, c.Seq, c.Vocab), randomTokens(random, 2, c.Seq, c.Vocab)
		tree := c.Params()
		up := tree.Index("h1.up.w")
		at := func(change float32) (loss, noisy float64, grad float32) {
			w := slices.Clone(w)
			flat := tensors.MustCopyFlatData[float32](w[up])
			flat[3] += change
			w[up] = tensors.FromFlatDataAndDimensions(flat, tree[up].Shape.Dimensions...)
			out, err := call(func(in []*graph.Node) []*graph.Node {
				n := len(tree)
				p := tree.Nodes(in[:n])
				noisy := c.NoisyLoss(p, in[n], in[n+1], in[n+2], graph.ZerosLike(in[n+2]))
				return []*graph.Node{c.Loss(p, in[n], in[n+1]), noisy, graph.Gradient(noisy, in[up])[0]}
			}, append(w, tensors.FromValue(tokens), tensors.FromValue(targets), tensors.FromScalar(uint32(9)))...)
			if err != nil {
				t.Fatal(err)
			}
			return float64(tensors.ToScalar[float32](out[0])), float64(tensors.ToScalar[float32](out[1])),
				tensors.MustCopyFlatData[float32](out[2])[3]
		}
		loss, noisy, grad := at(0)
		if (loss == noisy) != (dropout == 0) {
			t.Errorf("dropout %g: loss %g, with noise %g", dropout, loss, noisy)
		}
		const h = 0.01
		_, above, _ := at(h)
		_, below, _ := at(-h)
		if want := (above - below) / (2 * h); !scalar.EqualWithinAbs(float64(grad), want, 1e-3) {
			t.Errorf("dropout %g: gradient %g, by differences %g", dropout, grad, want)
		}
	}
}
