package gpt_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/gpt"
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
	}
}

func testGradients(t *testing.T, c gpt.Config) {
	random := rand.New(rand.NewPCG(3, 4))
	w, plain := randomModel(c, random)
	tokens, targets := randomTokens(random, 2, c.Seq, c.Vocab), randomTokens(random, 2, c.Seq, c.Vocab)
	tree := c.Params()
	grads, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
		n := len(tree)
		return graph.Gradient(c.Loss(tree.Nodes(in[:n]), in[n], in[n+1]), in[:n]...)
	}, append(w, tensors.FromValue(tokens), tensors.FromValue(targets))...)
	if err != nil {
		t.Fatal(err)
	}
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
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("targets %v: error %v, want %q", c.targets, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		// With equal logits all 5 tokens are equally likely: ln 5 nats.
		if got := tensors.ToScalar[float32](out[0]); !scalar.EqualWithinAbs(float64(got), math.Log(5), 1e-6) {
			t.Errorf("loss %g, want ln 5", got)
		}
	}
}

// A later token must not change an earlier logit.
func TestCausal(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	c := gpt.Config{Layers: 2, Width: 8, Heads: 2, Seq: 6, Vocab: 11}
	w, _ := randomModel(c, random)
	tokens := randomTokens(random, 1, c.Seq, c.Vocab)
	changed := [][]int32{slices.Clone(tokens[0])}
	changed[0][4] = (changed[0][4] + 1) % int32(c.Vocab)
	out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
		n := len(in) - 2
		p := c.Params().Nodes(in[:n])
		return []*graph.Node{c.Forward(p, in[n]), c.Forward(p, in[n+1])}
	}, append(w, tensors.FromValue(tokens), tensors.FromValue(changed))...)
	if err != nil {
		t.Fatal(err)
	}
	a, b := tensors.MustCopyFlatData[float32](out[0]), tensors.MustCopyFlatData[float32](out[1])
	for at := range c.Seq {
		same := slices.Equal(a[at*c.Vocab:(at+1)*c.Vocab], b[at*c.Vocab:(at+1)*c.Vocab])
		if want := at < 4; same != want {
			t.Errorf("position %d: logits the same %v, want %v", at, same, want)
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
		tokens, err := tensors.FromAnyValue(c2.tokens)
		if err != nil {
			t.Fatal(err)
		}
		_, err = devicetest.Call(func(in []*graph.Node) []*graph.Node {
			p := c.Params().Nodes(in[:len(in)-1])
			delete(p, c2.drop)
			return []*graph.Node{c.Forward(p, in[len(in)-1])}
		}, append(slices.Clone(w), tokens)...)
		if c2.want == "" && err != nil || c2.want != "" && (err == nil || !strings.Contains(err.Error(), c2.want)) {
			t.Errorf("%s: error %v, want %q", c2.name, err, c2.want)
		}
	}
}
