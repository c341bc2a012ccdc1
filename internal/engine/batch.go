package engine

import (
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"
)

// microBatch is the examples that a rank computes with at once.
type microBatch struct {
	Inputs, Targets *tensors.Tensor
	Row             uint32 // index of the first example in the batch of all ranks
}

// microBatches returns a rank's micro-batches of the batch of all ranks, of which the first rank has the first
// examples. It returns an error if the examples cannot be divided evenly.
func microBatches(inputs, targets *tensors.Tensor, rank, ranks, micro int) ([]microBatch, error) {
	if inputs == nil || targets == nil {
		return nil, errors.New("engine: the inputs or the targets are nil: give both")
	}
	if in, out := inputs.Shape(), targets.Shape(); in.Rank() == 0 || out.Rank() == 0 || in.Dim(0) != out.Dim(0) ||
		in.Dim(0) == 0 {
		return nil, fmt.Errorf("engine: inputs of shape %s and targets of shape %s: give both the same number of "+
			"examples, along their first axis", in, out)
	}
	n := inputs.Shape().Dim(0)
	if n%(ranks*micro) != 0 {
		return nil, fmt.Errorf("engine: a batch of %d examples is not divisible by %d ranks with %d micro-batches "+
			"each: make it a multiple of %d", n, ranks, micro, ranks*micro)
	}
	size := n / (ranks * micro)
	all := make([]microBatch, micro)
	for i := range all {
		first := (rank*micro + i) * size
		in, err := examples(inputs, first, size)
		if err != nil {
			return nil, err
		}
		out, err := examples(targets, first, size)
		if err != nil {
			return nil, err
		}
		all[i] = microBatch{in, out, uint32(first)}
	}
	return all, nil
}

// examples copies the examples of a batch from first on.
func examples(t *tensors.Tensor, first, size int) (*tensors.Tensor, error) {
	shape := t.Shape().Clone()
	each := shape.Size() / shape.Dim(0)
	shape.Dimensions[0] = size
	part := tensors.FromShape(shape)
	return part, moved(part, t, func(move func(to, from, n int)) { move(0, first*each, size*each) })
}
