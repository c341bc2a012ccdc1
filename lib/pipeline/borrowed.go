package pipeline

import (
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// borrow returns memory for a message, whatever is in it.
func (r *Rank) borrow(shape shapes.Shape) (*borrowed, error) {
	t, _, err := r.pool.Borrow(shape)
	return &borrowed{t, r.pool}, err
}

// borrowed is a tensor on a device as a message; with a pool, it goes back there.
type borrowed struct {
	tensor *tensors.Tensor
	pool   *rank.Pool
}

// Memory implements [Message].
func (b *borrowed) Memory() (group.Type, group.Buffer, error) { return rank.Memory(b.tensor) }

// Free implements [Message].
func (b *borrowed) Free() error {
	if b == nil || b.tensor == nil {
		return nil
	}
	t := b.tensor
	b.tensor = nil
	if b.pool == nil {
		return t.FinalizeAll()
	}
	b.pool.GiveBack(t)
	return nil
}

// on is the tensor of a message, or nil.
func (b *borrowed) on() *tensors.Tensor {
	if b == nil {
		return nil
	}
	return b.tensor
}

// message is the gradient of a stage's input, which the first stage has none of.
func (b *borrowed) message(of place) Message {
	if of.stage == 0 {
		return nil
	}
	return b
}
