package gpt

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// NextLogits returns the logits (V), in float32, of the token that follows tokens[0][last], for tokens (1,T); tokens
// after last have no effect. It panics where [Config.Forward] does, or if last is not an integer scalar.
func (c Config) NextLogits(p params.Nodes, tokens, last *graph.Node) *graph.Node {
	logits := graph.Reshape(c.Forward(p, tokens), tokens.Shape().Dim(1), c.Vocab)
	return precision.Widen(graph.Reshape(graph.Gather(logits, graph.InsertAxes(last, 0)), c.Vocab))
}

// Sampling says how the next token is sampled.
type Sampling struct {
	// Temperature divides the logits: below 1, likely tokens become likelier. 0 always takes the likeliest.
	Temperature float64
	// TopK samples only from the TopK likeliest tokens (Fan et al. 2018, "Hierarchical Neural Story Generation", §5.4);
	// 0 is all.
	TopK int
	// Seed chooses the random numbers.
	Seed uint64
}

// Validate returns an error that names the invalid setting.
func (s Sampling) Validate() error {
	if !(s.Temperature >= 0 && s.Temperature < math.Inf(1)) {
		return fmt.Errorf("gpt: Sampling.Temperature is %g: set it to at least 0", s.Temperature)
	}
	if s.TopK < 0 {
		return fmt.Errorf("gpt: Sampling.TopK is %d: set it to at least 1, or 0 for all tokens", s.TopK)
	}
	return nil
}

// Generate continues a text by n bytes. logits returns the logits of the next token for Config.Seq tokens and the index
// of the last valid one: a program of [Config.NextLogits]. If the text is longer than Seq, the model sees its end. It
// is an error if the prompt is empty or has a byte outside of the vocabulary, or a setting is invalid.
func (c Config) Generate(prompt []byte, n int, s Sampling, logits func(tokens *tensors.Tensor,
	last int32) ([]float32, error)) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	switch {
	case len(prompt) == 0:
		return nil, errors.New("gpt: the prompt is empty: give at least one byte to continue")
	case c.Vocab > 256:
		return nil, fmt.Errorf("gpt: Config.Vocab is %d: only a model of bytes, at most 256, can generate text",
			c.Vocab)
	case int(slices.Max(prompt)) >= c.Vocab:
		return nil, fmt.Errorf("gpt: the prompt has byte %d, but Config.Vocab is %d: use smaller bytes",
			slices.Max(prompt), c.Vocab)
	case n < 0:
		return nil, fmt.Errorf("gpt: %d bytes to generate: choose at least 0", n)
	}
	random := rand.New(rand.NewPCG(s.Seed, 0))
	text := slices.Clone(prompt)
	for range n {
		seen := text[max(0, len(text)-c.Seq):]
		row := make([]int32, c.Seq)
		for i, b := range seen {
			row[i] = int32(b)
		}
		l, err := logits(tensors.FromFlatDataAndDimensions(row, 1, c.Seq), int32(len(seen)-1))
		if err != nil {
			return nil, err
		}
		next, err := s.draw(l, random)
		if err != nil {
			return nil, err
		}
		text = append(text, byte(next))
	}
	return text[len(prompt):], nil
}

// draw returns the index of a token drawn with the probabilities softmax(logits/Temperature).
func (s Sampling) draw(logits []float32, random *rand.Rand) (int, error) {
	if i := slices.IndexFunc(logits, func(l float32) bool { return l != l }); i >= 0 {
		return 0, fmt.Errorf("gpt: the logit of token %d is NaN: the model has diverged, use an earlier checkpoint", i)
	}
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	if s.Temperature == 0 {
		return order[0], nil
	}
	if s.TopK > 0 {
		order = order[:min(s.TopK, len(order))]
	}
	weights, total := make([]float64, len(order)), 0.0
	for i, token := range order {
		weights[i] = math.Exp((float64(logits[token]) - float64(logits[order[0]])) / s.Temperature)
		total += weights[i]
	}
	at := random.Float64() * total
	for i, w := range weights {
		if at -= w; at < 0 {
			return order[i], nil
		}
	}
	return order[0], nil // rounding error
}
