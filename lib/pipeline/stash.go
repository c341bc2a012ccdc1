package pipeline

import (
	"errors"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
)

// place says whose passes something is for.
type place struct{ stage, microbatch int }

// stash is what is kept of a micro-batch between the passes of a stage.
type stash struct {
	in      *borrowed // nil for the first stage
	x       *tensors.Tensor
	targets *tensors.Tensor // of the last stage
	row     uint32
	version int
	blocks  []kept
	above   *borrowed // between the two parts of a backward pass
}

// kept is what is kept of a block.
type kept struct {
	x     *tensors.Tensor   // its input
	own   bool              // which is not the stage's
	kept  []*tensors.Tensor // of its forward pass
	above *tensors.Tensor   // between the two parts of a backward pass: the gradient of its output
	left  []*tensors.Tensor // and what the first part left
}

// free frees all that there is, in whatever state.
func (s *stash) free() error {
	errs := []error{s.freeBlocks(), s.in.Free(), s.above.Free(), rank.Free(s.targets)}
	if s.in == nil {
		errs = append(errs, rank.Free(s.x))
	}
	return errors.Join(errs...)
}

// freeBlocks frees what is kept of the blocks.
func (s *stash) freeBlocks() error {
	var errs []error
	for k := range s.blocks {
		b := &s.blocks[k]
		if k < len(s.blocks)-1 {
			errs = append(errs, rank.Free(b.above))
		}
		errs = append(errs, b.free())
	}
	s.blocks = nil
	return errors.Join(errs...)
}

// free frees what is kept of a block, but for what belongs to others.
func (b *kept) free() error {
	err := errors.Join(rank.Free(b.kept...), rank.Free(b.left...))
	if b.own {
		err = errors.Join(err, rank.Free(b.x))
	}
	b.x, b.kept, b.left, b.above = nil, nil, nil, nil
	return err
}
