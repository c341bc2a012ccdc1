package cost

import "fmt"

// Recompute says what the backward pass computes again, rather than keep it from the forward pass.
type Recompute string

const (
	Nothing Recompute = "" // all activations are kept
	// attention's scores and their product with the values (Korthikanti et al. 2022, §5)
	Selective Recompute = "selective"
	Full      Recompute = "full" // each block from its input (Chen et al. 2016)
)

// Step is one step of training, by all devices together.
type Step struct {
	Sequences int // in the batch
	Length    int // tokens of each; 0 is the model's Context
	// Causal counts only the scores that a causal mask leaves, Length·(Length+1)/2 of Length² for each head: what a
	// kernel computes that skips the rest. Without it all are counted, as in most papers, though the model is causal.
	Causal    bool
	Recompute Recompute
}

// Operations are the floating-point operations of the matrix products, by what they compute.
type Operations struct {
	QKV    float64 // queries, keys and values
	Scores float64 // queries with keys
	Values float64 // attention weights with values
	Out    float64 // attention's output projection
	MLP    float64
	Head   float64
}

// Total returns all operations.
func (o Operations) Total() float64 { return o.QKV + o.Scores + o.Values + o.Out + o.MLP + o.Head }

// Work is the operations of a training step.
type Work struct{ Forward, Backward, Recomputed Operations }

// Model returns the operations that training needs, however it is done: forward and backward.
func (w Work) Model() float64 { return w.Forward.Total() + w.Backward.Total() }

// Hardware returns the operations that the devices carry out: also those of the recomputation.
func (w Work) Hardware() float64 { return w.Model() + w.Recomputed.Total() }

// FLOPs counts the operations of a training step exactly: 2·m·n·k for each product of m×k with k×n numbers. The
// backward pass has two such products for each forward, for the gradients of either factor. Only matrix products are
// counted, not elementwise work: normalizations, softmax, activations, rotations, sums, the loss, the update, and
// looking up rows of a table: a few operations for each number, where a product has hundreds.
//
// It returns an error for a model or step that is not valid.
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
		return Work{}, fmt.Errorf("cost: Step.Length is %d: set it to at most Model.Context, %d, or 0 for that", length,
			m.Context)
	case s.Recompute != Nothing && s.Recompute != Selective && s.Recompute != Full:
		return Work{}, fmt.Errorf("cost: Step.Recompute is %q: set it to %q, %q or %q", s.Recompute, Nothing, Selective, Full)
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
	layers, width, attention := float64(m.Layers), float64(m.Width), float64(m.attentionWidth())
	matrices := 2.
	if m.Gated {
		matrices = 3
	}
	tokens := sequences * length
	core := 2 * layers * sequences * pairs * attention
	return Operations{
		QKV:    2 * layers * tokens * width * (attention + 2*float64(m.KV()*m.HeadDim())),
		Scores: core,
		Values: core,
		Out:    2 * layers * tokens * attention * width,
		MLP:    2 * layers * tokens * width * float64(m.MLPWidth()) * matrices,
		Head:   2 * tokens * width * float64(m.Vocab),
	}
}

func (o Operations) times(k float64) Operations {
	return Operations{k * o.QKV, k * o.Scores, k * o.Values, k * o.Out, k * o.MLP, k * o.Head}
}

// TokenFLOPs returns the operations for training on one token of a sequence of the given length as Chowdhery et al.
// 2022, "PaLM", appendix B, count them: 6N + 12·L·H·Q·T, with N all parameters, L layers, H heads of width Q and length
// T. It has no recomputation and no causal mask, and differs from [Model.FLOPs] by counting also tables and vectors in
// N.
func (m Model) TokenFLOPs(length int) float64 {
	return 6*float64(m.Params().Total()) + 12*float64(m.Layers)*float64(m.attentionWidth())*float64(length)
}
