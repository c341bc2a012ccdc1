package checkpoint

import (
	"fmt"
	"unicode/utf8"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Part is a run of a tensor's elements, in row-major order, as one writer has them: all of a tensor, or the shard of it
// that a rank of ZeRO holds.
type Part struct {
	// Spec is the whole tensor.
	Spec params.Spec
	// From is the place of the first element in the whole, at least 0.
	From int
	// Value has the elements, in whatever shape, on the host or on any device; it has the whole's element type. What
	// would lie beyond the whole's end is padding, and is not written. An element type of less than a byte must be
	// whole.
	Value *tensors.Tensor
}

func (p Part) check() error {
	if err := (params.Tree{p.Spec}).Validate(); err != nil {
		return err
	}
	if err := checkValue(p.Spec, p.Value); err != nil {
		return err
	}
	dtype := p.Spec.Shape.DType
	if got := p.Value.DType(); got != dtype {
		return fmt.Errorf("the part of %q has element type %s, the whole %s: give it in the whole's", p.Spec.Name, got, dtype)
	}
	if _, ok := byteSize(dtype, p.Spec.Shape.Dimensions); !ok {
		return fmt.Errorf("%s is larger than any memory: give the shape of the whole", p.Spec)
	}
	if p.From < 0 {
		return fmt.Errorf("a part of %q begins at element %d: it must not be negative", p.Spec.Name, p.From)
	}
	if dtype.IsPacked() && (p.From != 0 || p.Value.Size() != p.Spec.Size()) {
		return fmt.Errorf("%d elements of %q from %d: %s cannot lie in parts, which need not begin at a byte; "+
			"write all %d at once",
			p.Value.Size(), p.Spec.Name, p.From, dtype, p.Spec.Size())
	}
	return nil
}

// elements returns how many of the value's elements are not padding.
func (p Part) elements() int { return max(0, min(p.Value.Size(), p.Spec.Size()-p.From)) }

// bytes returns the memory of these elements, which is where the value's begins.
func (p Part) bytes() int64 {
	n, _ := byteSize(p.Spec.Shape.DType, []int{p.elements()})
	return n
}

// checkValue returns an error if the value cannot be read or cannot be written under the name.
func checkValue(spec params.Spec, value *tensors.Tensor) error {
	if !utf8.ValidString(spec.Name) || spec.Name == metadataKey {
		return fmt.Errorf("a safetensors file cannot hold the name %q: choose another", spec.Name)
	}
	if err := value.CheckValid(); err != nil {
		return fmt.Errorf("the value of %q cannot be read: %w", spec.Name, err)
	}
	return nil
}
