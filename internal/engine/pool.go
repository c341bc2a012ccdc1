package engine

import (
	"errors"
	"sync"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/xla"
)

// pool has arrays to communicate with. Equal ones are used again and again: as many bytes for a deep model as for a shallow one
// (constant-size buffers, Rajbhandari et al. 2020, "ZeRO", §6.2). It may be used by several goroutines at once.
type pool struct {
	devices *devices
	mu      sync.Mutex
	spare   map[string][]*dtensor.Tensor // by shape and placement
	lent    map[*dtensor.Tensor]string
}

func newPool(d *devices) *pool {
	return &pool{devices: d, spare: map[string][]*dtensor.Tensor{}, lent: map[*dtensor.Tensor]string{}}
}

// borrow returns an array, whatever is in it, of a shape that all devices have together.
func (p *pool) borrow(shape shapes.Shape, on xla.Placement) (*dtensor.Tensor, error) {
	key := shape.String() + on.String()
	p.mu.Lock()
	defer p.mu.Unlock()
	if free := p.spare[key]; len(free) > 0 {
		p.spare[key] = free[:len(free)-1]
		p.lent[free[len(free)-1]] = key
		return free[len(free)-1], nil
	}
	t, err := p.devices.place(tensors.FromShape(shape), on)
	if err == nil {
		p.lent[t] = key
	}
	return t, err
}

// release ends the use of an array: one that was borrowed goes back, another one is freed.
func (p *pool) release(t *dtensor.Tensor) error {
	if t == nil {
		return nil
	}
	p.mu.Lock()
	key, ok := p.lent[t]
	delete(p.lent, t)
	if ok && t.Ok() {
		p.spare[key] = append(p.spare[key], t)
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	return t.FinalizeAll()
}

// changed says that a program has returned a borrowed array, whose memory it was given, as another one.
func (p *pool) changed(from, to *dtensor.Tensor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key, ok := p.lent[from]; ok {
		delete(p.lent, from)
		p.lent[to] = key
	}
}

// close frees the arrays that nobody uses.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, free := range p.spare {
		errs = append(errs, freeAll(free...))
	}
	clear(p.spare)
	return errors.Join(errs...)
}

// freeAll frees device memory at once: the garbage collector would come late. Values may be nil.
func freeAll(values ...*dtensor.Tensor) error {
	var errs []error
	for _, v := range values {
		if v != nil {
			errs = append(errs, v.FinalizeAll())
		}
	}
	return errors.Join(errs...)
}
