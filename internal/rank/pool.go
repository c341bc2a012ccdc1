package rank

import (
	"errors"
	"sync"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/xla"
)

// Pool has buffers on a device to communicate with. Equal messages use the same few again and again: as many bytes for a deep model as
// for a shallow one. It may be used by several goroutines at once.
type Pool struct {
	backend *xla.Backend
	device  int

	mu    sync.Mutex
	spare map[string][]*tensors.Tensor // by shape
}

// NewPool is empty.
func NewPool(backend *xla.Backend, device int) *Pool {
	return &Pool{backend: backend, device: device, spare: map[string][]*tensors.Tensor{}}
}

// Borrow returns a buffer, whatever is in it, and whether it had to be made.
func (p *Pool) Borrow(shape shapes.Shape) (t *tensors.Tensor, made bool, err error) {
	if t = p.reuse(shape.String()); t != nil {
		return t, false, nil
	}
	t, err = p.backend.Put(tensors.FromShape(shape), p.device)
	return t, true, err
}

func (p *Pool) reuse(shape string) *tensors.Tensor {
	p.mu.Lock()
	defer p.mu.Unlock()
	free := p.spare[shape]
	if len(free) == 0 {
		return nil
	}
	p.spare[shape] = free[:len(free)-1]
	return free[len(free)-1]
}

// GiveBack ends the use of a borrowed buffer.
func (p *Pool) GiveBack(t *tensors.Tensor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := t.Shape().String()
	p.spare[key] = append(p.spare[key], t)
}

// Close frees the buffers that nobody uses.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, free := range p.spare {
		errs = append(errs, Free(free...))
	}
	clear(p.spare)
	return errors.Join(errs...)
}
