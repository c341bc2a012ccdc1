package gpt_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/noise"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

func TestForwardAgainstPlainGo(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for try := range 24 {
		c := randomConfig(random)
		if try < 6 { // the plain GPT-2
			c = gpt.Config{Layers: c.Layers, Width: c.Width, Heads: c.Heads, Seq: c.Seq, Vocab: c.Vocab}
		}
		batch, seq := 1+random.IntN(3), 1+random.IntN(c.Seq) // a sequence may be shorter than Seq
		w, plain := randomModel(c, random)
		tokens, targets := randomTokens(random, batch, seq, c.Vocab), randomTokens(random, batch, seq, c.Vocab)
		run := call
		if try%6 == 0 {
			run = devicetest.Call
		}
		out, err := run(func(in []*graph.Node) []*graph.Node {
			n := len(in) - 2
			p := c.Params().Nodes(in[:n])
			return []*graph.Node{c.Forward(p, in[n]), c.Loss(p, in[n], in[n+1])}
		}, append(w, tensors.FromValue(tokens), tensors.FromValue(targets))...)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		logits := tensors.MustCopyFlatData[float32](out[0])
		for b := range batch {
			for at, row := range plain.logits(tokens[b]) {
				for v, want := range row {
					got := logits[(b*seq+at)*c.Vocab+v]
					// float32 through three layers: errors of about a hundred roundings of numbers near 1.
					if !scalar.EqualWithinAbsOrRel(float64(got), want, 2e-5, 2e-5) {
						t.Fatalf("%+v: logit of token %d at position %d of row %d: %g, want %g", c, v, at, b, got, want)
					}
				}
			}
		}
		if got, want := float64(tensors.ToScalar[float32](out[1])),
			plain.loss(tokens, targets); !scalar.EqualWithinRel(got, want, 1e-5) {
			t.Errorf("%+v: loss %g, want %g", c, got, want)
		}
	}
}

// The gradient of every element of every parameter is compared with central differences of the plain model.
func TestGradientsAgainstPlainGo(t *testing.T) {
	for _, c := range []gpt.Config{
		{Layers: 2, Width: 6, Heads: 2, Seq: 5, Vocab: 7},
		{Layers: 1, Width: 8, Heads: 4, Seq: 5, Vocab: 7, KVHeads: 2, Hidden: 5, Gated: true, Norm: gpt.RMSNorm,
			Positions: gpt.Rotary, Tied: true, NoBias: true},
	} {
		testGradients(t, c)
		c.Flash = true
		testGradients(t, c)
		c.Matmul.Operands = precision.FP32 // rounds nothing
		testGradients(t, c)
	}
}

func testGradients(t *testing.T, c gpt.Config) {
	random := rand.New(rand.NewPCG(3, 4))
	w, plain := randomModel(c, random)
	tokens, targets := randomTokens(random, 2, c.Seq, c.Vocab), randomTokens(random, 2, c.Seq, c.Vocab)
	tree := c.Params()
	grads := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		n := len(tree)
		return graph.Gradient(c.Loss(tree.Nodes(in[:n]), in[n], in[n+1]), in[:n]...)
	}, append(w, tensors.FromValue(tokens), tensors.FromValue(targets))...))
	want := plain.gradient(tree, tokens, targets)
	for k, s := range tree {
		for i, got := range tensors.MustCopyFlatData[float32](grads[k]) {
			if !scalar.EqualWithinAbsOrRel(float64(got), want[s.Name][i], 1e-6, 1e-4) {
				t.Errorf("gradient of element %d of %s: %g, want %g", i, s, got, want[s.Name][i])
			}
		}
	}
}

// Targets that would fit by broadcasting are an error.
func TestCrossEntropyShapes(t *testing.T) {
	logits := tensors.FromScalarAndDimensions(float32(0), 2, 3, 5)
	for _, c := range []struct {
		targets [][]int32
		want    string
	}{
		{[][]int32{{1, 2, 3}, {0, 4, 4}}, ""},
		{[][]int32{{1}, {2}}, "use (B,T,V) and (B,T)"},
		{[][]int32{{1, 2, 3}}, "use (B,T,V) and (B,T)"},
	} {
		out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{gpt.CrossEntropy(in[0], in[1])}
		}, logits, tensors.FromValue(c.targets))
		if c.want != "" {
			must.Refuse(t, c.targets, err, c.want)
			continue
		}
		must.Do(t, err)
		// With equal logits all 5 tokens are equally likely: ln 5 nats.
		if got := tensors.ToScalar[float32](out[0]); !scalar.EqualWithinAbs(float64(got), math.Log(5), 1e-6) {
			t.Errorf("loss %g, want ln 5", got)
		}
	}
}

func TestGraphPanics(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 4, Heads: 2, Seq: 3, Vocab: 5}
	w, _ := randomModel(c, rand.New(rand.NewPCG(9, 10)))
	for _, c2 := range []struct {
		name   string
		tokens any
		drop   string
		want   string
	}{
		{"good", [][]int32{{1, 2, 3}}, "", ""},
		{"too long", [][]int32{{1, 2, 3, 4}}, "", "T at most Config.Seq 3"},
		{"no batch axis", []int32{1, 2}, "", "use (B,T)"},
		{"parameter missing", [][]int32{{1, 2}}, "h0.up.b", `no value for "h0.up.b"`},
	} {
		tokens := must.Value(tensors.FromAnyValue(c2.tokens))
		_, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
			p := c.Params().Nodes(in[:len(in)-1])
			delete(p, c2.drop)
			return []*graph.Node{c.Forward(p, in[len(in)-1])}
		}, append(slices.Clone(w), tokens)...)
		refused(t, c2.name, err, c2.want)
	}
}

// A model with half-precision parameters computes in their type, and so do its gradients; the loss is float32.
func TestHalfPrecision(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 22))
	c := gpt.Config{Layers: 1, Width: 8, Heads: 4, Seq: 6, Vocab: 11, KVHeads: 2, Hidden: 12, Gated: true,
		Norm: gpt.RMSNorm, Positions: gpt.Rotary, Tied: true}
	w, plain := randomModel(c, random)
	tokens, targets := randomTokens(random, 2, c.Seq, c.Vocab), randomTokens(random, 2, c.Seq, c.Vocab)
	tree := c.Params()
	want, wantGrads := plain.loss(tokens, targets), plain.gradient(tree, tokens, targets)
	for dtype, bound := range map[dtypes.DType]float64{dtypes.BFloat16: 0.04, dtypes.Float16: 0.005} {
		out := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
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
		}, append(w, tensors.FromValue(tokens), tensors.FromValue(targets))...))
		if got := float64(tensors.ToScalar[float32](out[len(tree)])); math.Abs(got/want-1) > bound {
			t.Errorf("%s: loss %g, want %g", dtype, got, want)
		}
		var exact []float32
		for _, s := range tree {
			for _, g := range wantGrads[s.Name] {
				exact = append(exact, float32(g))
			}
		}
		if off := distance(flat(out[:len(tree)]), exact); off > bound*3 {
			t.Errorf("%s: the gradients are %.3f of their norm away from the exact ones", dtype, off)
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
		out := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
			n := len(tree)
			cast := precision.Cast(in[:n], dtype)
			loss := c.Loss(tree.As(dtype).Nodes(cast), in[n], in[n])
			return precision.Cast(graph.Gradient(graph.MulScalar(loss, 256), cast...), dtypes.Float32)
		}, append(w, tensors.FromValue(rows))...))
		return out
	}
	exact, half := grads(dtypes.Float32), grads(dtypes.BFloat16)
	for _, name := range []string{"tok", "h0.qkv.b", "h0.o.b", "h0.up.b", "h0.down.b"} {
		k := tree.Index(name)
		// The summands have errors of about 0.4 %; sums in bfloat16 are 5 % and more away.
		if away := distance(flat(half[k:k+1]), flat(exact[k:k+1])); away > 0.03 {
			t.Errorf("the gradient of %s is %.3f of its norm away from that in float32", name, away)
		}
	}
}

// Attention over many equal keys returns their value, also where the sum of all values would overflow.
func TestHalfAttentionDoesNotOverflow(t *testing.T) {
	const n = 4096
	out := must.Value(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		g := in[0].Graph()
		zero := graph.Zeros(g, shapes.Make(dtypes.Float16, 1, n, 1, 1))
		v := graph.AddScalar(zero, 20)
		y := gpt.CausalAttention(zero, zero, v)
		return []*graph.Node{graph.ConvertDType(graph.ReduceAllMax(graph.Abs(graph.Sub(y, v))), dtypes.Float32)}
	}, tensors.FromScalar(float32(0))))
	if off := tensors.ToScalar[float32](out[0]); !(off < 0.1) {
		t.Errorf("%g away from 20", off)
	}
}

// learn returns the loss before each of the first updates of a run on the reference text.
func learn(t *testing.T, c gpt.Config, batch, steps int, rule optim.Optimizer) []float64 {
	t.Helper()
	batches := must.Value(gpt.Reference().Batches(c, batch))
	w := must.Value(c.Init())
	tree := c.Params()
	states := must.Value(params.Zeros(optim.States(rule, tree)))
	n, k := len(w), len(states)
	step := must.Value(graph.NewExec(devicetest.One(), func(in []*graph.Node) []*graph.Node {
		w, states, in := in[:n], in[n:n+k], in[n+k:]
		loss := c.Loss(tree.Nodes(w), in[1], in[2])
		w, states = optim.Apply(rule, tree, w, graph.Gradient(loss, w...), states, in[0])
		return slices.Concat(w, states, []*graph.Node{loss})
	}))
	defer step.Finalize()
	var losses []float64
	for s := range steps {
		inputs, targets, err := batches.Step(s)
		must.Do(t, err)
		out := must.Value(step.Call(slices.Concat(w, states, []*tensors.Tensor{tensors.FromScalar(int32(s + 1)), inputs,
			targets})))
		w, states = out[:n], out[n:n+k]
		losses = append(losses, float64(tensors.ToScalar[float32](out[n+k])))
	}
	return losses
}

// The losses are those of the reference model in PyTorch and JAX, with the same architecture, initial weights, text and
// AdamW, in float32.
func TestReferenceTraining(t *testing.T) {
	if !devicetest.CompiledAsUsersDo(t) {
		return
	}
	want := map[int]float64{1: 5.58069, 2: 4.70050, 3: 4.37114, 4: 4.22252, 13: 3.3891}
	steps := 13
	for _, flash := range []bool{false, true} {
		c := gpt.ReferenceConfig()
		c.Flash = flash
		losses := learn(t, c, 16, steps, optim.AdamW(3e-4))
		for step, want := range want {
			if step <= len(losses) && !scalar.EqualWithinAbs(losses[step-1], want, 1e-4) {
				t.Errorf("flash %v: loss at step %d: %.5f, want %.5f", flash, step, losses[step-1], want)
			}
		}
		t.Logf("flash %v: losses: %.5f", flash, losses)
		steps = 2 // the second loss is that after an update
	}
}

// The chain equals the full model for every architecture: the same parameters in the same order, and the same loss.
func TestChain(t *testing.T) {
	for i := range 16 {
		c := gpt.Config{Layers: 3, Width: 8, Heads: 2, Seq: 4, Vocab: 5, Tied: i&1 != 0, Gated: i&2 != 0}
		if i&4 != 0 {
			c.Positions = gpt.Rotary
		}
		if i&8 != 0 {
			c.Norm, c.NoBias = gpt.RMSNorm, true
		}
		m := must.Value(c.Chain())
		if err := m.Validate(); err != nil {
			t.Error(err)
		}
		if got, want := fmt.Sprint(m.Params()), fmt.Sprint(c.Params()); got != want {
			t.Fatalf("%+v: parameters %s, want %s", c, got, want)
		}
		both := func(in []*graph.Node) []*graph.Node {
			n := len(in) - 2
			p, x, y := c.Params().Nodes(in[:n]), in[n], in[n+1]
			return []*graph.Node{m.Loss(p, x, y), c.Loss(p, x, y)}
		}
		values := must.Value(m.Init())
		x, y := tensors.FromValue([][]int32{{0, 1, 2, 3}}), tensors.FromValue([][]int32{{1, 2, 3, 4}})
		loss := must.Value(devicetest.CallOn(devicetest.PureGo(), both, append(values, x, y)...))
		if got, want := loss[0].Value(), loss[1].Value(); got != want {
			t.Errorf("%+v: loss %v, the full model's is %v", c, got, want)
		}
	}
}

// TestCheckBatch checks tokens that are not in the vocabulary.
func TestCheckBatch(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 8, Heads: 2, Seq: 3, Vocab: 11}
	blocks := must.Value(c.Chain())
	good := [][]int32{{0, 1, 2}, {8, 9, 10}}
	for name, b := range map[string]struct {
		inputs, targets any
		want            string
	}{
		"good":   {good, good, ""},
		"masked": {good, [][]int32{{0, 1, 2}, {-100, -1, 10}}, ""},
		"bytes": {[][]uint8{{0, 1, 11}}, good, "inputs have token 11 in sequence 0 at position 2, but the " +
			"vocabulary"},
		"negative": {[][]int64{{0, 1, 2}, {-1, 0, 0}}, good, "inputs have token -1 in sequence 1 at position 0"},
		"a target": {good, [][]int32{{0, 1, 2}, {8, 300, 10}},
			"targets have token 300 in sequence 1 at position 1, but"},
		"no matrix": {int32(11), int32(11), ""}, // which the graph refuses
		"no tokens": {[][]float32{{11}}, [][]float32{{11}}, ""},
	} {
		inputs, targets := tensors.MustFromAnyValue(b.inputs), tensors.MustFromAnyValue(b.targets)
		for _, m := range []interface {
			CheckBatch(inputs, targets *tensors.Tensor) error
		}{c, gpt.Parallel{Config: c}, blocks} {
			refused(t, fmt.Sprintf("%s, a %T", name, m), m.CheckBatch(inputs, targets), b.want)
		}
	}
}

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
	out := must.Value(call(func(in []*graph.Node) []*graph.Node {
		p := map[string]*graph.Node{"tok": in[0], "pos": in[1]}
		return []*graph.Node{c.Embed(p, in[2], &gpt.Noise{Key: in[3], Row: in[4]})}
	}, ones(c.Vocab), ones(c.Seq), tensors.FromValue(tokens), tensors.FromScalar(key), tensors.FromScalar(row)))
	return tensors.MustCopyFlatData[float32](out[0])
}

// Each value is dropped or not by the bits of its own index in the full batch.
func TestDropout(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 64, Heads: 1, Seq: 32, Vocab: 3, Dropout: 0.3}
	const rows, key = 8, 12345
	got := dropped(t, c, rows, key, 0)
	out := must.Value(call(func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{noise.Bits(in[0], 0, nil, rows, c.Seq, c.Width)}
	}, tensors.FromScalar(uint32(key))))
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
			out := must.Value(call(func(in []*graph.Node) []*graph.Node {
				n := len(tree)
				p := tree.Nodes(in[:n])
				noisy := c.NoisyLoss(p, in[n], in[n+1], in[n+2], graph.ZerosLike(in[n+2]))
				return []*graph.Node{c.Loss(p, in[n], in[n+1]), noisy, graph.Gradient(noisy, in[up])[0]}
			}, append(w, tensors.FromValue(tokens), tensors.FromValue(targets), tensors.FromScalar(uint32(9)))...))
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
