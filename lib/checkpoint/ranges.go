package checkpoint

import (
	"context"
	"fmt"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Range is a range of a tensor's elements in row-major order: Length elements starting at From, both at least 0.
// Elements beyond the end of the tensor are zero. Tensors with elements smaller than a byte must be read in full.
type Range struct {
	// Spec is the full tensor.
	Spec         params.Spec
	From, Length int
}

// span returns the part of the range that is inside of the tensor.
func (r Range) span() (first, end int) {
	size := r.Spec.Size()
	return r.From, r.From + min(r.Length, size-r.From)
}

// maxVector is more memory, in bytes, than processors address; Go panics if it is asked for it.
const maxVector = 1 << 47

func (r Range) check() error {
	dtype := r.Spec.Shape.DType
	if bytes, ok := byteSize(dtype, []int{r.Length}); !ok || bytes > maxVector || r.From < 0 {
		return fmt.Errorf("%d elements of %q from %d: choose numbers of at least 0 that fit memory", r.Length,
			r.Spec.Name, r.From)
	}
	if dtype.IsPacked() && (r.From != 0 || r.Length != r.Spec.Size()) {
		return fmt.Errorf("%d elements of %q from %d: %s elements may not begin at a byte; read all %d", r.Length,
			r.Spec.Name, r.From, dtype, r.Spec.Size())
	}
	return nil
}

// ReadRanges returns a new host vector for each range, in order. Ranges may overlap and need not cover the checkpoint.
// A tensor that the checkpoint does not have, or has with another shape or element type, is an error before anything is
// read, as in [Checkpoint.Read].
//
// It reads every file with an element of the ranges once and in full, and returns nothing unless the checksums of all
// these files match. It allocates only the vectors. Cancelling ctx stops it between two pieces of a tensor.
func (c *Checkpoint) ReadRanges(ctx context.Context, want []Range) ([]*tensors.Tensor, error) {
	tree := make(params.Tree, len(want))
	for i, r := range want {
		tree[i] = r.Spec
	}
	if err := c.compare(tree); err != nil {
		return nil, err
	}
	values := make([]*tensors.Tensor, len(want))
	for i, r := range want {
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
		values[i] = tensors.FromShape(shapes.Make(r.Spec.Shape.DType, r.Length))
	}
	if err := c.fill(ctx, want, values); err != nil {
		return nil, err
	}
	return values, nil
}
