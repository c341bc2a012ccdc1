package memest

import "fmt"

// Accelerate computes memory as Hugging Face's accelerate estimate-memory does (accelerate/commands/estimate.py,
// 0.30.0). It prints units of 2¹⁰, 2²⁰ and 2³⁰ bytes as KB, MB and GB, and ignores activations.
type Accelerate struct {
	// Size is the bytes of the model in float32, without the head (as transformers' AutoModel), but with buffers such
	// as tables of rotary positions.
	Size  int64
	DType string // "float32" or "float16"
}

// Training lists the column "Training using Adam". For float16 accelerate takes the largest of four moments, not their
// sum: the float32 model (S), its gradients (3/2·S), the optimizer states (2·S), the update (2·S). It returns an error
// for an invalid field.
func (a Accelerate) Training() ([]Item, error) {
	if err := inRange("Accelerate", field{"Size", a.Size, 1, 4 * mostParameters}); err != nil {
		return nil, err
	}
	v, source := vars{"S": a.Size}, "Hugging Face accelerate, estimate-memory"
	switch a.DType {
	case "float32":
		return v.published(source, Item{Kind: Parameters, Name: "float32 parameters", Formula: "S"},
			Item{Kind: Gradients, Name: "float32 gradients", Formula: "S"},
			Item{Kind: Optimizer, Name: "float32 optimizer states", Formula: "2*S"})
	case "float16":
		return v.published(source,
			Item{Kind: Optimizer, Name: "float32 optimizer states, as the largest moment", Formula: "2*S"})
	}
	return nil, fmt.Errorf(`memest: Accelerate.DType is %q: set it to "float32" or "float16"`, a.DType)
}
