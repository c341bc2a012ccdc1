package memest

import (
	"cmp"
	"fmt"

	"github.com/shardbook/shardbook/lib/cost"
)

// Korthikanti computes activations as Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
// Models", §4 and §5: in 16 bits, with dropout and masks of one byte an element. The paper's GB are 2³⁰ bytes.
//
// The paper's model is a GPT with an ungated MLP of width 4h and without grouped queries. For other models this type
// uses only the layers L, width h, heads a and vocabulary v. It refuses experts, which have more activations.
type Korthikanti struct {
	Model cost.Model
	Batch int // sequences of a micro-batch, b; defaults to 1
	Seq   int // tokens of a sequence, s; defaults to Model.Context

	Tensor           int  // tensor-parallel degree, t; defaults to 1
	SequenceParallel bool // tensor-parallel devices also split the tokens between the matmuls
	Recompute        cost.Recompute

	Pipeline int // stages, p; defaults to 1
	Chunks   int // model chunks on each device of an interleaved pipeline, m; defaults to 1, which is 1F1B
}

func (k Korthikanti) withDefaults() Korthikanti {
	k.Batch, k.Seq, k.Tensor = cmp.Or(k.Batch, 1), cmp.Or(k.Seq, k.Model.Context), cmp.Or(k.Tensor, 1)
	k.Pipeline, k.Chunks = cmp.Or(k.Pipeline, 1), cmp.Or(k.Chunks, 1)
	return k
}

func (k Korthikanti) validate() error {
	if err := k.Model.Validate(); err != nil {
		return err
	}
	if err := inRange("Korthikanti", field{"Batch", int64(k.Batch), 1, 1 << 31}, field{"Seq", int64(k.Seq), 1, 1 << 28},
		field{"Tensor", int64(k.Tensor), 1, 1 << 20}, field{"Pipeline", int64(k.Pipeline), 1, 1 << 14},
		field{"Chunks", int64(k.Chunks), 1, 1 << 14}); err != nil {
		return err
	}
	switch {
	case k.Model.Experts > 0:
		return fmt.Errorf("memest: Korthikanti.Model has %d experts, and the paper's formulas are those of an MLP: give "+
			"a model without experts", k.Model.Experts)
	case k.Model.Heads%k.Tensor != 0:
		return fmt.Errorf("memest: Korthikanti.Tensor is %d, which does not divide the model's %d heads", k.Tensor,
			k.Model.Heads)
	case k.SequenceParallel && k.Seq%k.Tensor != 0:
		return fmt.Errorf("memest: Korthikanti.Tensor is %d, which does not divide the sequence of %d tokens", k.Tensor,
			k.Seq)
	case k.Model.Layers%(k.Pipeline*k.Chunks) != 0:
		return fmt.Errorf("memest: Korthikanti.Pipeline is %d with Chunks %d, and %d does not divide the model's %d "+
			"layers", k.Pipeline, k.Chunks, k.Pipeline*k.Chunks, k.Model.Layers)
	case k.Chunks > 1 && k.Pipeline == 1:
		return fmt.Errorf("memest: Korthikanti.Chunks is %d without a pipeline: set Pipeline to at least 2", k.Chunks)
	case k.Recompute != cost.Nothing && k.Recompute != cost.Selective && k.Recompute != cost.Full:
		return fmt.Errorf("memest: Korthikanti.Recompute is %q: set it to %q, %q or %q",
			k.Recompute, cost.Nothing, cost.Selective, cost.Full)
	}
	return nil
}

// Layer lists the activations that a device saves of one layer for one micro-batch, by operation (§4.1). Their sum is a
// line of table 2. It returns an error for an invalid field.
func (k Korthikanti) Layer() ([]Item, error) {
	k = k.withDefaults()
	if err := k.validate(); err != nil {
		return nil, err
	}
	return k.vars().published("Korthikanti et al. 2022, §4.1 and table 2", k.layer(1)...)
}

// FirstStage lists the activations that a device of the first pipeline stage saves (the stage that saves most): those
// of L/p layers for p micro-batches, so as many as of all L layers for one (§4.2.3), and those outside the layers
// (§4.3). It returns an error for an invalid field.
func (k Korthikanti) FirstStage() ([]Item, error) {
	k = k.withDefaults()
	if err := k.validate(); err != nil {
		return nil, err
	}
	layers := k.Model.Layers
	if k.Chunks > 1 { // L·(1+(p−1)/(pm))
		layers = layers / (k.Pipeline * k.Chunks) * (k.Pipeline*k.Chunks + k.Pipeline - 1)
	}
	items := append(k.layer(int64(layers)),
		Item{Kind: Activations, Name: "embedding's dropout mask", Count: int64(k.Pipeline), Formula: k.tokens("s*b*h")})
	if k.Pipeline == 1 { // otherwise on the last stage
		items = append(items, Item{Kind: Activations, Name: "last normalization's input", Formula: k.tokens("2*s*b*h")},
			Item{Kind: Activations, Name: "head's input", Formula: k.tokens("2*s*b*h")},
			Item{Kind: Logits, Name: "32-bit logits", Formula: "4*s*b*v/t"})
	}
	return k.vars().published("Korthikanti et al. 2022, §4.2.3 and §4.3", items...)
}

func (k Korthikanti) layer(count int64) []Item {
	var items []Item
	keep := func(name, formula string) {
		items = append(items, Item{Kind: Activations, Name: name, Count: count, Formula: formula})
	}
	if k.Recompute == cost.Full { // not split by tokens, which would add an all-gather (§5)
		keep("layer's input", "2*s*b*h")
		return items
	}
	keep("first normalization's input", k.tokens("2*s*b*h"))
	keep("attention's input", k.tokens("2*s*b*h"))
	keep("queries and keys", "4*s*b*h/t")
	if k.Recompute != cost.Selective {
		keep("softmax's output", "2*a*s*s*b/t")
		keep("softmax's dropout mask", "a*s*s*b/t")
		keep("softmax after dropout", "2*a*s*s*b/t")
	}
	keep("values", "2*s*b*h/t")
	keep("output projection's input", "2*s*b*h/t")
	keep("attention's dropout mask", k.tokens("s*b*h"))
	keep("second normalization's input", k.tokens("2*s*b*h"))
	keep("MLP's input", k.tokens("2*s*b*h"))
	keep("GELU's input", "8*s*b*h/t")
	keep("MLP's second matrix's input", "8*s*b*h/t")
	keep("MLP's dropout mask", k.tokens("s*b*h"))
	return items
}

// tokens is the formula of an activation between the matmuls, which only sequence parallelism splits.
func (k Korthikanti) tokens(formula string) string {
	if k.SequenceParallel {
		return formula + "/t"
	}
	return formula
}

func (k Korthikanti) vars() vars {
	return vars{"s": int64(k.Seq), "b": int64(k.Batch), "h": int64(k.Model.Width), "a": int64(k.Model.Heads),
		"v": int64(k.Model.Vocab), "t": int64(k.Tensor)}
}
