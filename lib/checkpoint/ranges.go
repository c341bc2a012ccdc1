package checkpoint

import (
	"context"
	"fmt"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Range is a run of a tensor's elements in row-major order: Length of them from place From, neither of them negative.
// It may go beyond the end of the whole, and is zero there. An element type of less than a byte must be read whole.
type Range struct {
	// Spec is the whole tensor.
	Spec         params.Spec
	From, Length int
}

// span returns the range of the elements that the whole has.
func (r Range) span() (first, end int) {
	size := r.Spec.Size()
	return r.From, r.From + min(r.Length, size-r.From)
}

// maxVector is more memory, in bytes, than a processor of today addresses; Go panics when it is asked for it.
const maxVector = 1 << 47

func (r Range) check() error {
	dtype := r.Spec.Shape.DType
	if bytes, ok := byteSize(dtype, []int{r.Length}); !ok || bytes > maxVector || r.From < 0 {
		return fmt.Errorf("%d elements of %q from %d: there are none such", r.Length, r.Spec.Name, r.From)
	}
	if dtype.IsPacked() && (r.From != 0 || r.Length != r.Spec.Size()) {
		return fmt.Errorf("%d elements of %q from %d: %s has none that begin at a byte; read all %d", r.Length, r.Spec.Name,
			r.From, dtype, r.Spec.Size())
	}
	return nil
}

// ReadRanges returns a new host vector for each range, in order. Ranges may overlap, and leave out what they like of
// the checkpoint; a tensor that it does not have, or has in another shape or element type, is an error as in
// [Checkpoint.Read], before anything is read.
//
// Every file that holds an element of the ranges is read once and whole, and no vector is handed out unless all of
// these files have the checksums that they were written with. No more memory is taken than the vectors are. Cancelling
// ctx stops the reading between two pieces of a tensor.
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
