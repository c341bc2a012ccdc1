package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
)

// host is what a rank has put into the host's memory. Streams work on it beside the passes.
type host struct {
	mu     sync.Mutex
	values map[step.Value]*tensors.Tensor
	cells  map[int]*tensors.Tensor
}

func newHost() *host {
	return &host{values: map[step.Value]*tensors.Tensor{}, cells: map[int]*tensors.Tensor{}}
}

func (h *host) put(v step.Value, t *tensors.Tensor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.values[v] = t
}

func (h *host) take(v step.Value) *tensors.Tensor {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.values[v]
	delete(h.values, v)
	return t
}

func (h *host) putCell(i int, t *tensors.Tensor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cells[i] = t
}

// cell is what lies there of a cell, or nil.
func (h *host) cell(i int) *tensors.Tensor {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cells[i]
}

func (h *host) takeCell(i int) *tensors.Tensor {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.cells[i]
	delete(h.cells, i)
	return t
}

// store begins to move something to the host's memory. Its arrays are freed when all of it is there.
func (p *play) store(i int, op step.Op) error {
	switch op.What {
	case step.Activation:
		v := step.Value{Held: step.Input, Block: op.Block, Micro: op.Micro}
		list := p.values[v]
		if len(list) != 1 {
			return fmt.Errorf("engine: %v is not there", v)
		}
		delete(p.values, v)
		p.taken[v]++
		there := v
		there.Host = true
		p.traffic.sent[step.ToHost] += list[0].ShardShape().ByteSize()
		p.background(i, op, trace.Copy, func() error {
			t, err := merged(list[0])
			p.host.put(there, t)
			return err
		}, func() error { return p.arrays.release(list...) })
		return nil
	case step.State:
		cells := p.own.statesOn(op.Unit)
		gone := map[int]*dtensor.Tensor{}
		for _, k := range cells {
			if gone[k], p.cells[k] = p.cells[k], nil; gone[k] == nil {
				return fmt.Errorf("engine: the states of unit %d are not on the device", op.Unit)
			}
			p.traffic.sent[step.ToHost] += p.own.cells[k].shape.ByteSize()
		}
		p.background(i, op, trace.Copy, func() error {
			for k, on := range gone {
				t, err := merged(on)
				if err != nil {
					return err
				}
				p.host.putCell(k, t)
			}
			return nil
		}, func() error {
			var errs []error
			for _, on := range gone {
				errs = append(errs, p.arrays.release(on))
			}
			return errors.Join(errs...)
		})
		return nil
	}
	return fmt.Errorf("engine: it is not carried out yet")
}

// fetch begins to bring something back from the host's memory.
func (p *play) fetch(i int, op step.Op) error {
	switch op.What {
	case step.Activation:
		v := step.Value{Held: step.Input, Block: op.Block, Micro: op.Micro}
		there := v
		there.Host = true
		on, shape := p.own.lies(slot{kind: valueSlot, value: v}, p.sizes)
		p.traffic.sent[step.ToHost] += shape[0].ByteSize()
		var t *dtensor.Tensor
		p.background(i, op, trace.Copy, func() (err error) {
			t, err = p.place(p.host.take(there), on)
			return err
		}, func() error {
			p.arrays.add(memest.Activations, t)
			p.values[v] = []*dtensor.Tensor{t}
			return nil
		})
		return nil
	case step.State:
		cells := p.own.statesOn(op.Unit)
		there := map[int]*dtensor.Tensor{}
		for _, k := range cells {
			p.traffic.sent[step.ToHost] += p.own.cells[k].shape.ByteSize()
		}
		p.background(i, op, trace.Copy, func() (err error) {
			for _, k := range cells {
				if there[k], err = p.place(p.host.takeCell(k), p.own.cells[k].on); err != nil {
					return err
				}
			}
			return nil
		}, func() error {
			for k, on := range there {
				p.arrays.add(p.own.kindOf(k), on)
				p.cells[k] = on
			}
			return nil
		})
		return nil
	}
	return fmt.Errorf("engine: it is not carried out yet")
}

// statesOn are the cells of a unit's states: the optimizer's, and the master copy where there is one besides.
func (o *own) statesOn(unit int) (cells []int) {
	if at, ok := o.masters[unit]; ok {
		cells = append(cells, at)
	}
	for _, at := range o.updated(unit) {
		for _, e := range o.statesOf[at] {
			cells = append(cells, o.cellOf(e))
		}
	}
	return cells
}

// cellOf is the cell of an entry of the state that is no parameter.
func (o *own) cellOf(entry int) int {
	if o.shards == 1 {
		return entry
	}
	return o.rest + entry - len(o.whole)
}

// hosted says which units' states lie on the host between steps: those that a plan fetches first.
func (o *own) hosted() map[int]bool {
	first := map[int]bool{}
	for _, op := range o.Plans[0].Ranks[o.rank] {
		if op.What == step.State && (op.Kind == step.Fetch || op.Kind == step.Store) {
			if _, seen := first[op.Unit]; !seen {
				first[op.Unit] = op.Kind == step.Fetch
			}
		}
	}
	return first
}

// cellNow is what lies in a cell, whole over the rank's devices and on the host.
func (r *Rank) cellNow(i int) (*tensors.Tensor, error) {
	if t := r.host.cell(i); t != nil {
		return t.LocalClone()
	}
	return merged(r.cells[i])
}
