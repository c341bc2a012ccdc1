package engine

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
)

// host is what a rank has in host memory, by slot. Streams use it beside the passes.
type host struct {
	own    *own
	arrays *arrays // counts it

	mu   sync.Mutex
	held map[slot]*tensors.Tensor
}

// OnHost is the prefix of kinds of memory on the host.
const OnHost memest.Kind = "host "

func (h *host) put(x slot, t *tensors.Tensor) {
	h.count(x, 1, t)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[x] = t
}

// get returns what is there, or nil.
func (h *host) get(x slot) *tensors.Tensor {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[x]
}

func (h *host) take(x slot) *tensors.Tensor {
	h.mu.Lock()
	t := h.held[x]
	delete(h.held, x)
	h.mu.Unlock()
	if t != nil {
		h.count(x, -1, t)
	}
	return t
}

func (h *host) count(x slot, sign int64, t *tensors.Tensor) {
	h.arrays.mu.Lock()
	defer h.arrays.mu.Unlock()
	h.arrays.count(OnHost+h.own.kindOf(x), sign*t.Shape().ByteSize())
}

// moving is an array that is moved between a rank's devices and the host.
type moving struct {
	x    slot
	at   **dtensor.Tensor // its place on the devices
	kind memest.Kind      // kind of memory there
	soon bool             // stored in its place on the stream, for later operations there
}

// moves lists the arrays that an operation moves.
func (p *play) moves(op step.Op) (all []moving, err error) {
	switch op.What {
	case step.State:
		for _, k := range p.own.statesOn(op.Unit) {
			all = append(all, moving{slot{kind: cellSlot, number: k}, &p.cells[k], p.own.cells[k].kind, false})
		}
	case step.Parameters: // computed by an update on the host
		m := moving{slot{kind: freshSlot, number: op.Unit}, &p.gradsOf(op.Unit).fresh, memest.Communication, true}
		if !p.flow.Resident[op.Unit] { // else they are gathered next
			m.at, m.soon = &p.cells[p.own.cellOf(op.Unit)], false
		}
		all = append(all, m)
	case step.Gradient:
		if op.Kind == step.Fetch {
			return nil, errors.New("engine: gradients cannot be fetched from the host: update there")
		}
		g := p.gradsOf(op.Unit)
		m := moving{slot{kind: reducedSlot, number: op.Unit}, &g.reduced, memest.Gradients, false}
		if len(p.own.units[op.Unit].Reduce) == 0 { // the next gradients begin a new sum
			sum := g.sum
			g.sum, m.x.kind, m.at = nil, sumSlot, &sum
		}
		all = append(all, m)
	default:
		v := step.Value{Held: step.Input, Block: op.Block, Micro: op.Micro}
		list := make([]*dtensor.Tensor, 1)
		if op.Kind == step.Fetch {
			p.values[v] = list
		} else if copy(list, p.values[v]) == 0 {
			return nil, fmt.Errorf("engine: %v is not there", v)
		} else {
			delete(p.values, v)
			p.storing[v]++
		}
		all = append(all, moving{slot{kind: valueSlot, value: v}, &list[0], memest.Activations, false})
	}
	return all, nil
}

// store begins to move something to the host. Its arrays are freed when all of them are there.
func (p *play) store(i int, op step.Op) error {
	all, err := p.moves(op)
	if err != nil {
		return err
	}
	var stored []*dtensor.Tensor
	p.move(i, op, all, func() error {
		for _, m := range all {
			on := *m.at // read late: it may still be computed
			if *m.at = nil; on == nil {
				return fmt.Errorf("engine: %v is not on the devices", m.x)
			}
			stored = append(stored, on)
			t, err := merged(on)
			if err != nil {
				return err
			}
			p.host.put(m.x, t)
		}
		return nil
	}, func() error { return p.arrays.release(stored...) })
	return nil
}

// fetch begins to move something back from the host.
func (p *play) fetch(i int, op step.Op) error {
	all, err := p.moves(op)
	if err != nil {
		return err
	}
	fetched := make([]*dtensor.Tensor, len(all))
	p.move(i, op, all, func() (err error) {
		for k, m := range all {
			on, _ := p.own.lies(m.x, p.sizes)
			if fetched[k], err = p.place(p.host.take(m.x), on); err != nil {
				return err
			}
			if m.soon {
				err = p.arrays.put(m.at, m.kind, fetched[k])
			}
		}
		return err
	}, func() (err error) {
		for k, m := range all {
			if !m.soon && err == nil {
				err = p.arrays.put(m.at, m.kind, fetched[k])
			}
		}
		return err
	})
	return nil
}

// move runs a transfer to or from the host beside the passes.
func (p *play) move(i int, op step.Op, all []moving, do, end func() error) {
	bytes := int64(0)
	for _, m := range all {
		_, shape := p.own.lies(m.x, p.sizes)
		bytes += shape[0].ByteSize()
	}
	p.traffic.sent[step.ToHost] += bytes
	p.background(i, op, op.Stream(), func() error {
		start := time.Now()
		err := do()
		if p.HostLink > 0 && err == nil {
			takes := min(float64(bytes)/p.HostLink, 1e9) // at most about thirty years
			err = sleepUntil(p.ctx, start.Add(time.Duration(takes*float64(time.Second))))
		}
		return err
	}, end)
}
