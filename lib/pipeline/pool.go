package pipeline

import (
	"errors"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/rank"
	"github.com/shardbook/shardbook/lib/xla"
)

// pool has memory of a device for messages, which is used again and again. Its methods are for one goroutine.
type pool struct {
	backend *xla.Backend
	device  int
	spare   map[string][]*tensors.Tensor // by shape
}

// borrow returns memory for a message, whatever is in it.
func (p *pool) borrow(shape shapes.Shape) (*borrowed, error) {
	key := shape.String()
	if free := p.spare[key]; len(free) > 0 {
		p.spare[key] = free[:len(free)-1]
		return &borrowed{free[len(free)-1], p}, nil
	}
	t, err := p.backend.Put(tensors.FromShape(shape), p.device)
	return &borrowed{t, p}, err
}

func (p *pool) close() error {
	var errs []error
	for _, free := range p.spare {
		errs = append(errs, rank.Free(free...))
	}
	clear(p.spare)
	return errors.Join(errs...)
}

// borrowed is a tensor on a device as a message; with a pool, it goes back there.
type borrowed struct {
	tensor *tensors.Tensor
	pool   *pool
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
	key := t.Shape().String()
	b.pool.spare[key] = append(b.pool.spare[key], t)
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
