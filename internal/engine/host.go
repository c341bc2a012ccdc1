package engine

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
)

// host is what a rank has put into the host's memory: values of the plan, and cells, by number. Streams work on it beside the
// passes.
type host struct {
	own    *own
	arrays *arrays // which count it

	mu   sync.Mutex
	held map[any]*tensors.Tensor
}

func (h *host) put(key any, t *tensors.Tensor) {
	h.count(key, 1, t)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[key] = t
}

// get is what lies there, or nil.
func (h *host) get(key any) *tensors.Tensor {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[key]
}

func (h *host) take(key any) *tensors.Tensor {
	h.mu.Lock()
	t := h.held[key]
	delete(h.held, key)
	h.mu.Unlock()
	if t != nil {
		h.count(key, -1, t)
	}
	return t
}

func (h *host) count(key any, sign int64, t *tensors.Tensor) {
	kind := memest.Activations
	switch k := key.(type) {
	case int:
		kind = h.own.cells[k].kind
	case step.Value:
		switch k.Held {
		case step.Sum, step.Reduced:
			kind = memest.Gradients
		case step.Fresh:
			kind = memest.Parameters
		}
	}
	h.arrays.mu.Lock()
	defer h.arrays.mu.Unlock()
	h.arrays.count(OnHost+kind, sign*t.Shape().ByteSize())
}

// OnHost is before the kind of what lies in the host's memory.
const OnHost memest.Kind = "host "

// move has a transfer to or from the host's memory go on beside the passes.
func (p *play) move(i int, op step.Op, bytes int64, do, end func() error) {
	p.traffic.sent[step.ToHost] += bytes
	p.background(i, op, op.Stream(), func() error {
		start := time.Now()
		err := do()
		if p.HostLink > 0 && err == nil {
			takes := min(float64(bytes)/p.HostLink, 1e9) // at most some thirty years
			err = sleepUntil(p.ctx, start.Add(time.Duration(takes*float64(time.Second))))
		}
		return err
	}, end)
}

// store begins to move something to the host's memory. Its arrays are freed when all of it is there.
func (p *play) store(i int, op step.Op) error {
	switch op.What {
	case step.Gradient:
		return p.storeGradients(i, op)
	case step.State:
		return p.storeStates(i, op)
	}
	v := step.Value{Held: step.Input, Block: op.Block, Micro: op.Micro}
	list := p.values[v]
	if len(list) != 1 {
		return fmt.Errorf("engine: %v is not there", v)
	}
	delete(p.values, v)
	p.taken[v]++
	there := v
	there.Host = true
	p.move(i, op, list[0].ShardShape().ByteSize(), func() error {
		t, err := merged(list[0])
		p.host.put(there, t)
		return err
	}, func() error { return p.arrays.release(list...) })
	return nil
}

// fetch begins to bring something back from the host's memory.
func (p *play) fetch(i int, op step.Op) error {
	switch op.What {
	case step.Parameters:
		return p.fetchParameters(i, op)
	case step.State:
		return p.fetchStates(i, op)
	case step.Gradient:
		return fmt.Errorf("engine: gradients stay in the host's memory: have it update")
	}
	v := step.Value{Held: step.Input, Block: op.Block, Micro: op.Micro}
	there := v
	there.Host = true
	on, shape := p.own.lies(slot{kind: valueSlot, value: v}, p.sizes)
	var t *dtensor.Tensor
	p.move(i, op, shape[0].ByteSize(), func() (err error) {
		t, err = p.place(p.host.take(there), on)
		return err
	}, func() error {
		p.arrays.add(memest.Activations, t)
		p.values[v] = []*dtensor.Tensor{t}
		return nil
	})
	return nil
}

func (p *play) storeStates(i int, op step.Op) error {
	gone, bytes := map[int]*dtensor.Tensor{}, int64(0)
	for _, k := range p.own.statesOn(op.Unit) {
		if gone[k], p.cells[k] = p.cells[k], nil; gone[k] == nil {
			return fmt.Errorf("engine: the states of unit %d are not on the device", op.Unit)
		}
		bytes += p.own.cells[k].shape.ByteSize()
	}
	p.move(i, op, bytes, func() error {
		for k, on := range gone {
			t, err := merged(on)
			if err != nil {
				return err
			}
			p.host.put(k, t)
		}
		return nil
	}, func() error { return p.arrays.release(slices.Collect(maps.Values(gone))...) })
	return nil
}

func (p *play) fetchStates(i int, op step.Op) error {
	there, bytes := map[int]*dtensor.Tensor{}, int64(0)
	cells := p.own.statesOn(op.Unit)
	for _, k := range cells {
		bytes += p.own.cells[k].shape.ByteSize()
	}
	p.move(i, op, bytes, func() (err error) {
		for _, k := range cells {
			if there[k], err = p.place(p.host.take(k), p.own.cells[k].on); err != nil {
				return err
			}
		}
		return nil
	}, func() error {
		for k, on := range there {
			p.arrays.add(p.own.cells[k].kind, on)
			p.cells[k] = on
		}
		return nil
	})
	return nil
}

// cellNow is what lies in a cell, whole over the rank's devices and on the host.
func (r *Rank) cellNow(i int) (*tensors.Tensor, error) {
	if t := r.host.get(i); t != nil {
		return t.LocalClone()
	}
	return merged(r.cells[i])
}
