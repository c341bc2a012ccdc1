package checkpoint

import (
	"fmt"
	"unicode/utf8"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Part is a range of a tensor's elements, in row-major order, for [WriteParts]: all of a tensor, or a rank's shard of
// it.
type Part struct {
	// Spec is the full tensor.
	Spec params.Spec
	// From is the index of the first element in the full tensor, at least 0.
	From int
	// Value has the elements, in any shape, on the host or any device, with the tensor's element type. Elements beyond
	// the end of the tensor are padding, and are not written. With an element type smaller than a byte, the part must
	// be the full tensor.
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
		return fmt.Errorf("the part of %q has element type %s: convert it to %s", p.Spec.Name, got, dtype)
	}
	if _, ok := byteSize(dtype, p.Spec.Shape.Dimensions); !ok {
		return fmt.Errorf("%s is larger than any memory: give the shape of the full tensor", p.Spec)
	}
	if p.From < 0 {
		return fmt.Errorf("a part of %q begins at element %d: choose at least 0", p.Spec.Name, p.From)
	}
	if dtype.IsPacked() && (p.From != 0 || p.Value.Size() != p.Spec.Size()) {
		return fmt.Errorf("%d elements of %q from %d: %s cannot be split, since parts may not begin at a byte; "+
			"write all %d at once", p.Value.Size(), p.Spec.Name, p.From, dtype, p.Spec.Size())
	}
	return nil
}

// elements is the number of elements that are not padding.
func (p Part) elements() int { return max(0, min(p.Value.Size(), p.Spec.Size()-p.From)) }

// bytes is the memory of these elements.
func (p Part) bytes() int64 {
	n, _ := byteSize(p.Spec.Shape.DType, []int{p.elements()})
	return n
}

// checkValue returns an error if the value cannot be read, or its name is not possible in safetensors.
func checkValue(spec params.Spec, value *tensors.Tensor) error {
	if !utf8.ValidString(spec.Name) || spec.Name == metadataKey {
		return fmt.Errorf("a safetensors file cannot hold the name %q: choose another", spec.Name)
	}
	if err := value.CheckValid(); err != nil {
		return fmt.Errorf("the value of %q cannot be read: %w", spec.Name, err)
	}
	return nil
}
