package cost

import (
	"fmt"
	"strings"
)

// Recompute is what the backward pass recomputes.
type Recompute string

const (
	Nothing   Recompute = ""          // nothing: all activations are saved
	Selective Recompute = "selective" // scores, and their matmul with the values (Korthikanti et al. 2022, §5)
	Full      Recompute = "full"      // each block from its input (Chen et al. 2016)
)

// Step is one training step on all devices together.
type Step struct {
	Sequences int // in the batch
	Length    int // tokens of a sequence; defaults to Model.Context
	// Causal counts only the scores that a causal mask allows, Length·(Length+1)/2 of Length² for each head, like
	// kernels that skip masked scores. By default all scores count, as in most papers.
	Causal    bool
	Recompute Recompute
}

// Operations are the FLOPs of the matmuls, by layer.
type Operations struct {
	QKV    float64 // queries, keys and values, with latent attention also what they are computed from
	Scores float64 // queries with keys
	Values float64 // attention weights with values
	Out    float64 // attention's output projection
	MLP    float64 // with experts those that a token is sent to, and the shared ones
	Router float64 // the choice of experts
	Head   float64
}

// Total returns the sum of all FLOPs.
func (o Operations) Total() float64 {
	return o.QKV + o.Scores + o.Values + o.Out + o.MLP + o.Router + o.Head
}

// Work is the FLOPs of a training step.
type Work struct{ Forward, Backward, Recomputed Operations }

// Model returns the model FLOPs: forward and backward, without recomputation.
func (w Work) Model() float64 { return w.Forward.Total() + w.Backward.Total() }

// Hardware returns the hardware FLOPs: those of the model and of recomputation.
func (w Work) Hardware() float64 { return w.Model() + w.Recomputed.Total() }

// FLOPs counts the FLOPs of the matmuls of a training step: 2·m·n·k for [m,k] times [k,n]. For each matmul of the
// forward pass, the backward pass has two of the same size. Elementwise operations and table lookups are not counted.
//
// It returns an error for an invalid model or step.
func (m Model) FLOPs(s Step) (Work, error) {
	if err := m.Validate(); err != nil {
		return Work{}, err
	}
	length := s.Length
	if length == 0 {
		length = m.Context
	}
	switch {
	case s.Sequences < 1:
		return Work{}, fmt.Errorf("cost: Step.Sequences is %d: set it to at least 1", s.Sequences)
	case length < 0 || length > m.Context:
		return Work{}, fmt.Errorf("cost: Step.Length is %d: set it to at most Model.Context, which is %d, or to 0 for "+
			"that", length, m.Context)
	case s.Recompute != Nothing && s.Recompute != Selective && s.Recompute != Full:
		return Work{}, fmt.Errorf("cost: Step.Recompute is %q: set it to %q, %q or %q", s.Recompute, Nothing, Selective,
			Full)
	}
	var w Work
	w.Forward = m.forward(float64(s.Sequences), float64(length), s.Causal)
	w.Backward = w.Forward.times(2)
	switch s.Recompute {
	case Selective:
		w.Recomputed = Operations{Scores: w.Forward.Scores, Values: w.Forward.Values}
	case Full:
		w.Recomputed = w.Forward
		w.Recomputed.Head = 0
	}
	return w, nil
}

func (m Model) forward(sequences, length float64, causal bool) Operations {
	pairs := length * length // of a query and a key
	if causal {
		pairs = length * (length + 1) / 2
	}
	core := 2 * float64(m.Layers) * sequences * pairs * float64(m.Heads)
	o := Operations{Scores: core * float64(m.HeadDim()), Values: core * float64(m.ValueDim()),
		Head: 2 * sequences * length * float64(m.Width) * float64(m.Vocab)}
	for _, t := range m.Tensors() {
		if !strings.HasSuffix(t.Name, ".w") {
			continue
		}
		flops := 2 * sequences * length * float64(t.Count) * float64(t.Size())
		switch {
		case t.Name == "h.o.w":
			o.Out += flops
		case t.Part == Attention:
			o.QKV += flops
		case t.Part == MLP, t.Part == Shared:
			o.MLP += flops
		case t.Part == Routed:
			o.MLP += flops / float64(m.Experts) * float64(m.ExpertsPerToken)
		case t.Part == Router:
			o.Router += flops
		}
	}
	return o
}

func (o Operations) times(k float64) Operations {
	return Operations{k * o.QKV, k * o.Scores, k * o.Values, k * o.Out, k * o.MLP, k * o.Router, k * o.Head}
}

// TokenFLOPs returns the FLOPs of training on one token of a sequence of the given length, by the formula of Chowdhery
// et al. 2022, "PaLM", appendix B: 6N + 12·L·H·Q·T, with N parameters, L layers, H heads of width Q and length T. N are
// the active parameters, and Q is the mean of the widths of queries and values. It has no recomputation and no causal
// mask. Unlike [Model.FLOPs] it also counts 6 FLOPs for each parameter of tables and vectors.
func (m Model) TokenFLOPs(length int) float64 {
	heads := m.attentionWidth() + m.Heads*m.ValueDim()
	return 6*float64(m.Params().Active()) + 6*float64(m.Layers)*float64(heads)*float64(length)
}
