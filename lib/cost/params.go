package cost

// Part is the part of the model that a parameter belongs to.
type Part string

const (
	Embedding Part = "embedding" // token embedding
	Position  Part = "position"  // learned position embedding
	Attention Part = "attention"
	MLP       Part = "mlp"
	Norm      Part = "norm"
	LastNorm  Part = "last norm" // after the blocks
	Head      Part = "head"      // if it is not tied to the embedding
)

// Tensor is a parameter of a model. A parameter that every block has is listed once.
type Tensor struct {
	// Name is the name in lib/gpt, but with "h" for every block: "tok", "h.qkv.w", "lnf.g". Matrices end in ".w" and
	// have dimensions [in, out]; biases end in ".b", scales of normalizations in ".g".
	Name  string
	Part  Part
	Dims  []int
	Count int // the number of layers for a block's parameter, else 1
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
	attention, mlp := m.attentionWidth(), m.MLPWidth()
	tensors := []Tensor{{"tok", Embedding, []int{m.Vocab, m.Width}, 1}}
	if m.PositionRows != 0 {
		tensors = append(tensors, Tensor{"pos", Position, []int{m.PositionRows, m.Width}, 1})
	}
	tensors = append(tensors, m.norm("h.ln1", Norm, m.Layers)...)
	tensors = append(tensors, m.linear("h.qkv", Attention, m.Width, attention+2*m.KV()*m.HeadDim(), m.QKVBias)...)
	tensors = append(tensors, m.linear("h.o", Attention, attention, m.Width, m.OutBias)...)
	tensors = append(tensors, m.norm("h.ln2", Norm, m.Layers)...)
	if m.Gated {
		tensors = append(tensors, m.linear("h.gate", MLP, m.Width, mlp, m.MLPBias)...)
	}
	tensors = append(tensors, m.linear("h.up", MLP, m.Width, mlp, m.MLPBias)...)
	tensors = append(tensors, m.linear("h.down", MLP, mlp, m.Width, m.MLPBias)...)
	tensors = append(tensors, m.norm("lnf", LastNorm, 1)...)
	if !m.Tied {
		tensors = append(tensors, Tensor{"head.w", Head, []int{m.Width, m.Vocab}, 1})
	}
	return tensors
}

func (m Model) linear(name string, part Part, in, out int, bias bool) []Tensor {
	tensors := []Tensor{{name + ".w", part, []int{in, out}, m.Layers}}
	if bias {
		tensors = append(tensors, Tensor{name + ".b", part, []int{out}, m.Layers})
	}
	return tensors
}

func (m Model) norm(name string, part Part, count int) []Tensor {
	tensors := []Tensor{{name + ".g", part, []int{m.Width}, count}}
	if m.NormBias {
		tensors = append(tensors, Tensor{name + ".b", part, []int{m.Width}, count})
	}
	return tensors
}

// Params are the numbers of a model's parameters, by part.
type Params struct {
	Layers                int
	Embeddings            int64 // token embedding
	Positions             int64 // learned position embedding
	Attention, MLP, Norms int64 // of all blocks together
	LastNorm              int64
	Head                  int64 // 0 if it is tied to the embedding
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
		case MLP:
			p.MLP += size
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

// nonEmbedding returns the parameters without embeddings and head, the N of scaling laws (Kaplan et al. 2020, "Scaling
// Laws for Neural Language Models", §1.3).
func (p Params) nonEmbedding() int64 { return p.Attention + p.MLP + p.Norms + p.LastNorm }

// Block returns the number of parameters of one block.
func (p Params) Block() int64 { return (p.Attention + p.MLP + p.Norms) / int64(max(1, p.Layers)) }
