package cost

import "slices"

// Part is the part of the model that a parameter belongs to.
type Part string

const (
	Embedding Part = "embedding" // token embedding
	Position  Part = "position"  // learned position embedding
	Attention Part = "attention"
	MLP       Part = "mlp"
	Router    Part = "router"         // of blocks with experts
	Routed    Part = "experts"        // that the router chooses from
	Shared    Part = "shared experts" // that have all tokens
	Norm      Part = "norm"
	LastNorm  Part = "last norm" // after the blocks
	Head      Part = "head"      // if it is not tied to the embedding
)

// Tensor is a parameter of a model. A parameter that every block has is listed once.
type Tensor struct {
	// Name is the name in lib/gpt, but with "h" for every block: "tok", "h.qkv.w", "lnf.g". Matrices end in ".w" and
	// have dimensions [in, out]; biases end in ".b" or ".bias", scales of normalizations in ".g". Those of all experts of a block
	// are one tensor, whose first dimension is the expert.
	Name  string
	Part  Part
	Dims  []int
	Count int // the number of blocks that have it for a block's parameter, else 1
}

// Size returns the number of elements of one tensor.
func (t Tensor) Size() int64 {
	size := int64(1)
	for _, d := range t.Dims {
		size *= int64(d)
	}
	return size
}

// Tensors lists the parameters in the model's order.
func (m Model) Tensors() []Tensor {
	l := &list{tensors: []Tensor{{"tok", Embedding, []int{m.Vocab, m.Width}, 1}}}
	if m.PositionRows != 0 {
		l.add("pos", Position, m.PositionRows, m.Width)
	}
	l.count = m.Layers
	l.norm("h.ln1", Norm, m)
	l.attention(m)
	l.norm("h.ln2", Norm, m)
	if l.count = m.Layers - m.ExpertLayers(); l.count > 0 {
		l.mlp("h", MLP, m, m.MLPWidth())
	}
	if l.count = m.ExpertLayers(); l.count > 0 {
		l.add("h.router.w", Router, m.Width, m.Experts)
		if m.RouterBias {
			l.add("h.router.bias", Router, m.Experts)
		}
		routed := m
		routed.MLPBias = m.MLPBias && !m.NoExpertBias
		l.mlp("h.experts", Routed, routed, m.ExpertWidth(), m.Experts)
		if m.SharedExperts > 0 { // together they are one MLP
			l.mlp("h.shared", Shared, m, m.SharedExperts*m.ExpertWidth())
		}
	}
	l.count = 1
	l.norm("lnf", LastNorm, m)
	if !m.Tied {
		l.add("head.w", Head, m.Width, m.Vocab)
	}
	return l.tensors
}

// list collects tensors that each occur count times.
type list struct {
	tensors []Tensor
	count   int
}

func (l *list) add(name string, part Part, dims ...int) {
	l.tensors = append(l.tensors, Tensor{name, part, dims, max(1, l.count)})
}

// linear adds a matrix and its bias. The last two dimensions are [in, out].
func (l *list) linear(name string, part Part, bias bool, dims ...int) {
	l.add(name+".w", part, dims...)
	if n := len(dims); bias {
		l.add(name+".b", part, append(slices.Clone(dims[:n-2]), dims[n-1])...)
	}
}

func (l *list) norm(name string, part Part, m Model) {
	l.add(name+".g", part, m.Width)
	if m.NormBias {
		l.add(name+".b", part, m.Width)
	}
}

// mlp adds an MLP, or one for each index of the dimensions before its own.
func (l *list) mlp(name string, part Part, m Model, hidden int, before ...int) {
	dims := func(in, out int) []int { return append(slices.Clone(before), in, out) }
	if m.Gated {
		l.linear(name+".gate", part, m.MLPBias, dims(m.Width, hidden)...)
	}
	l.linear(name+".up", part, m.MLPBias, dims(m.Width, hidden)...)
	l.linear(name+".down", part, m.MLPBias, dims(hidden, m.Width)...)
}

func (l *list) attention(m Model) {
	queries, keys := m.attentionWidth(), m.KV()*m.HeadDim()
	values := m.Heads * m.ValueDim()
	switch {
	case m.KVRank == 0:
		l.linear("h.qkv", Attention, m.QKVBias, m.Width, queries+2*keys)
	case m.QueryRank == 0:
		l.add("h.q.w", Attention, m.Width, queries)
	default: // down to the rank, normalized, and up
		l.add("h.qdown.w", Attention, m.Width, m.QueryRank)
		l.add("h.qdown.g", Attention, m.QueryRank)
		l.add("h.qup.w", Attention, m.QueryRank, queries)
	}
	if m.KVRank != 0 { // beside the rank is the key with rotary positions
		l.add("h.kvdown.w", Attention, m.Width, m.KVRank+m.RopeWidth)
		l.add("h.kvdown.g", Attention, m.KVRank)
		l.add("h.kvup.w", Attention, m.KVRank, queries-m.Heads*m.RopeWidth+values)
	}
	switch m.QKNorm {
	case "head":
		l.add("h.qnorm.g", Attention, m.HeadDim())
		l.add("h.knorm.g", Attention, m.HeadDim())
	case "all":
		l.add("h.qnorm.g", Attention, queries)
		l.add("h.knorm.g", Attention, keys)
	}
	if m.Sinks {
		l.add("h.sinks", Attention, m.Heads)
	}
	l.linear("h.o", Attention, m.OutBias, values, m.Width)
}

// Params are the numbers of a model's parameters, by part.
type Params struct {
	Layers                int
	Embeddings            int64 // token embedding
	Positions             int64 // learned position embedding
	Attention, MLP, Norms int64 // of all blocks together, MLP also with routers and experts
	LastNorm              int64
	Head                  int64 // 0 if it is tied to the embedding

	Experts int64 // the part of MLP that is routed experts
	Idle    int64 // the part of Experts that a token is not sent to
}

// Params counts the parameters. The counts are meaningless for a model for which [Model.Validate] returns an error.
func (m Model) Params() Params {
	p := Params{Layers: m.Layers}
	for _, t := range m.Tensors() {
		size := t.Size() * int64(t.Count)
		switch t.Part {
		case Embedding:
			p.Embeddings += size
		case Position:
			p.Positions += size
		case Attention:
			p.Attention += size
		case MLP, Router, Shared:
			p.MLP += size
		case Routed:
			p.MLP += size
			p.Experts += size
			p.Idle += size / int64(m.Experts) * int64(m.Experts-m.ExpertsPerToken)
		case Norm:
			p.Norms += size
		case LastNorm:
			p.LastNorm += size
		case Head:
			p.Head += size
		}
	}
	return p
}

// Total returns the number of all parameters.
func (p Params) Total() int64 { return p.Embeddings + p.Positions + p.nonEmbedding() + p.Head }

// Active returns the number of parameters that a token passes through: all but the experts that it is not sent to. It
// counts the whole token embedding, as Mistral AI and Qwen do; DeepSeek and OpenAI leave that out.
func (p Params) Active() int64 { return p.Total() - p.Idle }

// nonEmbedding returns the parameters without embeddings and head, the N of scaling laws (Kaplan et al. 2020, "Scaling
// Laws for Neural Language Models", §1.3).
func (p Params) nonEmbedding() int64 { return p.Attention + p.MLP + p.Norms + p.LastNorm }

// Block returns the number of parameters of one block, or their mean if only some blocks have experts.
func (p Params) Block() int64 { return (p.Attention + p.MLP + p.Norms) / int64(max(1, p.Layers)) }
