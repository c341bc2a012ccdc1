package gpt_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/gpt"
)

// The next token's logits are those of the plain model at the end of the text, whatever follows it.
func TestNextLogits(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	c := gpt.Config{Layers: 1, Width: 8, Heads: 2, Seq: 6, Vocab: 11}
	w, plain := randomModel(c, random)
	row := randomTokens(random, 1, c.Seq, c.Vocab)
	for _, last := range []int32{0, 3, 5} {
		out, err := call(func(in []*graph.Node) []*graph.Node {
			n := len(w)
			return []*graph.Node{c.NextLogits(c.Params().Nodes(in[:n]), in[n], in[n+1])}
		}, append(slices.Clone(w), tensors.FromValue(row), tensors.FromScalar(last))...)
		if err != nil {
			t.Fatal(err)
		}
		want := plain.logits(row[0])[last]
		for v, got := range tensors.MustCopyFlatData[float32](out[0]) {
			if math.Abs(float64(got)-want[v]) > 2e-5 {
				t.Errorf("after token %d, logit %d: %g, want %g", last, v, got, want[v])
			}
		}
	}
}

// successor is a model that knows one thing: byte b is followed by b+1.
func successor(tokens *tensors.Tensor, last int32) ([]float32, error) {
	row := tensors.MustCopyFlatData[int32](tokens)
	logits := make([]float32, 128)
	logits[(row[last]+1)%128] = 3
	return logits, nil
}

func TestGenerate(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 4, Heads: 1, Seq: 4, Vocab: 128}
	text, err := c.Generate([]byte("a"), 9, gpt.Sampling{}, successor)
	if err != nil || string(text) != "bcdefghij" { // past Seq
		t.Errorf("text %q, error %v", text, err)
	}
	// With only the likeliest token, the temperature does not matter.
	if text, _ := c.Generate([]byte("x"), 3, gpt.Sampling{Temperature: 5, TopK: 1}, successor); string(text) != "yz{" {
		t.Errorf("top 1: %q", text)
	}
	hot := gpt.Sampling{Temperature: 1, Seed: 7}
	one, _ := c.Generate([]byte("x"), 200, hot, successor)
	two, _ := c.Generate([]byte("x"), 200, hot, successor)
	if !slices.Equal(one, two) {
		t.Error("the same seed drew another text")
	}
	// The likely token has probability e³/(e³+127) = 0.137, so its mean is 27 in 200, with standard deviation 4.9.
	hits, before := 0, byte('x')
	for _, b := range one {
		if b == (before+1)%128 {
			hits++
		}
		before = b
	}
	if hits < 8 || hits > 52 {
		t.Errorf("the likely token was drawn %d times in 200, want about 27", hits)
	}
}

func TestGenerateErrors(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 4, Heads: 1, Seq: 4, Vocab: 128}
	broken := errors.New("the device is gone")
	for _, bad := range []struct {
		prompt string
		n      int
		s      gpt.Sampling
		logits func(*tensors.Tensor, int32) ([]float32, error)
		want   string
	}{
		{"", 1, gpt.Sampling{}, successor, "the prompt is empty"},
		{"\xff", 1, gpt.Sampling{}, successor, "byte 255"},
		{"a", -1, gpt.Sampling{}, successor, "-1 bytes"},
		{"a", 1, gpt.Sampling{Temperature: math.NaN()}, successor, "Temperature is NaN"},
		{"a", 1, gpt.Sampling{TopK: -1}, successor, "TopK is -1"},
		{"a", 1, gpt.Sampling{}, func(*tensors.Tensor, int32) ([]float32, error) { return nil, broken },
			"the device is gone"},
		{"a", 1, gpt.Sampling{}, func(*tensors.Tensor, int32) ([]float32, error) {
			return []float32{1, float32(math.NaN())}, nil
		}, "has diverged"},
	} {
		if _, err := c.Generate([]byte(bad.prompt), bad.n, bad.s, bad.logits); err == nil ||
			!strings.Contains(err.Error(), bad.want) {
			t.Errorf("%q, %d, %+v: error %v, want %q", bad.prompt, bad.n, bad.s, err, bad.want)
		}
	}
}
