package memest

import (
	"fmt"
	"maps"
	"slices"
)

// Accelerate counts as Hugging Face's accelerate estimate-memory does (accelerate/commands/estimate.py, 0.30.0). What
// it prints as KB, MB and GB are 2¹⁰, 2²⁰ and 2³⁰ bytes. It knows nothing of activations.
type Accelerate struct {
	// Size is the bytes of a model in float32, for its column "Total Size", or of its largest layer, for "Largest
	// Layer". It counts buffers, such as tables of rotary positions, and what transformers' AutoModel loads, which has
	// no head.
	Size  int64
	DType string // "float32", "float16", "int8" or "int4"

	// Documented counts training as its documentation ("Model memory estimator") and versions before 0.29 do: four
	// times the model, whatever its type.
	Documented bool
}

var accelerateDivisors = map[string]string{"float32": "", "float16": "/2", "int8": "/4", "int4": "/8"}

func (a Accelerate) validate() error {
	if err := inRange("Accelerate", field{"Size", a.Size, 1, 4 * mostParameters}); err != nil {
		return err
	}
	if _, ok := accelerateDivisors[a.DType]; !ok {
		return fmt.Errorf("memest: Accelerate.DType is %q: set it to one of %q", a.DType,
			slices.Sorted(maps.Keys(accelerateDivisors)))
	}
	return nil
}

const accelerateSource = "Hugging Face accelerate, estimate-memory"

// Loading is the model as it is loaded. An error names the field that is not valid.
func (a Accelerate) Loading() ([]Item, error) {
	if err := a.validate(); err != nil {
		return nil, err
	}
	return vars{"S": a.Size}.published(accelerateSource,
		Item{Kind: Parameters, Name: a.DType + " parameters", Formula: "S" + accelerateDivisors[a.DType]})
}

// Training is the column "Training using Adam". In float16 it is no sum, but the largest of four moments: the float32
// model S, its gradients 3/2·S, the optimizer's states 2·S, and the update, again 2·S; the one line is that. An error
// names the field that is not valid: int8 and int4 have no training, unless it is Documented.
func (a Accelerate) Training() ([]Item, error) {
	if err := a.validate(); err != nil {
		return nil, err
	}
	v, divisor := vars{"S": a.Size}, accelerateDivisors[a.DType]
	switch {
	case a.Documented || a.DType == "float32":
		return v.published(accelerateSource,
			Item{Kind: Parameters, Name: a.DType + " parameters", Formula: "S" + divisor},
			Item{Kind: Gradients, Name: a.DType + " gradients", Formula: "S" + divisor},
			Item{Kind: Optimizer, Name: a.DType + " optimizer states", Formula: "2*S" + divisor})
	case a.DType == "float16":
		return v.published(accelerateSource,
			Item{Kind: Optimizer, Name: "float32 optimizer states, as the largest moment", Formula: "2*S"})
	}
	return nil, fmt.Errorf("memest: Accelerate.DType is %q: training is estimated in float32 and float16 alone", a.DType)
}
