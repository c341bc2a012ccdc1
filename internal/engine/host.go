package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/xla"
)

// host is what a rank has in host memory, by slot. Streams use it beside the passes.
type host struct {
	own    *own
	arrays *arrays // counts it, and has the mutex
	held   map[slot]*tensors.Tensor
}

// OnHost is the prefix of kinds of memory on the host.
const OnHost memest.Kind = "host "

// get returns what is in a slot, or nil.
func (h *host) get(x slot) *tensors.Tensor {
	h.arrays.mu.Lock()
	defer h.arrays.mu.Unlock()
	return h.held[x]
}

// set replaces what is in a slot, by nothing if t is nil, and returns what was there.
func (h *host) set(x slot, t *tensors.Tensor) (old *tensors.Tensor) {
	h.arrays.mu.Lock()
	defer h.arrays.mu.Unlock()
	if old = h.held[x]; old != nil {
		h.arrays.count(OnHost+h.own.kindOf(x), -old.Shape().ByteSize())
	}
	if delete(h.held, x); t != nil {
		h.held[x] = t
		h.arrays.count(OnHost+h.own.kindOf(x), t.Shape().ByteSize())
	}
	return old
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
			p.host.set(m.x, t)
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
			if fetched[k], err = p.place(p.host.set(m.x, nil), on); err != nil {
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

// hostPrograms are updates in plain Go, shared by ranks.
type hostPrograms struct {
	backend compute.Backend
	execs   map[string]*graph.Exec
}

// newHostPrograms opens GoMLX's backend in plain Go with one operation after another: loops in parallel may deadlock
// (docs/upstream.md, "loops side by side in plain Go"), and optimizers may have loops.
func newHostPrograms() (*hostPrograms, error) {
	backend, err := compute.NewWithConfig("go:ops_sequential")
	return &hostPrograms{backend, map[string]*graph.Exec{}}, err
}

func (h *hostPrograms) Close() {
	for _, e := range h.execs {
		e.Finalize()
	}
	h.backend.Finalize()
}

// compileHost returns the host's program of a key, and makes it the first time.
func (d *devices) compileHost(key string, fn func(in []*graph.Node) []*graph.Node, _ layout) (program, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.host.execs[key]
	if e == nil {
		var err error
		if e, err = graph.NewExec(d.host.backend, xla.ThrowingErrors(fn)); err != nil {
			return nil, err
		}
		d.host.execs[key] = e
	}
	return onHost{e, d}, nil
}

// onHost is a program of the host, with its results in host memory.
type onHost struct {
	*graph.Exec
	devices *devices
}

// Call implements [program].
func (p onHost) Call(args ...any) ([]*dtensor.Tensor, error) {
	out, err := p.Exec.Call(args...)
	if err != nil {
		return nil, err
	}
	return p.devices.placed(out...)
}

// hostUpdate begins an update on the host, with gradients and states in its memory.
func (p *play) hostUpdate(s *segment, op step.Op) error {
	args := make([]any, len(s.io.in)) // nil ones are read from host memory when it runs
	for i, x := range s.io.in {
		if x.kind == sumSlot || x.kind == reducedSlot || x.kind == cellSlot && p.cells[x.number] == nil {
			continue
		}
		list, err := p.arg(x, s)
		if err == nil {
			args[i] = list[0]
		}
		if on, is := args[i].(*dtensor.Tensor); is { // common to all units, such as counters
			args[i], err = merged(on)
		}
		if err != nil {
			return err
		}
	}
	common := map[slot]*tensors.Tensor{} // results that belong to no unit
	p.background(s.from, op, op.Stream(), func() error {
		for i, x := range s.io.in {
			if args[i] != nil {
				continue
			}
			t := p.host.get(x)
			if t == nil {
				return fmt.Errorf("engine: %v is not in host memory", x)
			}
			if args[i] = t; x.kind != cellSlot {
				p.host.set(x, nil)
			}
		}
		out, err := p.invoke(s, args)
		if err != nil {
			return err
		}
		for k, x := range s.io.out {
			t, old := out[k].Shards()[0], p.host.get(x)
			switch {
			case x.kind == freshSlot:
				if t, err = detached(t); err == nil {
					p.host.set(x, t)
				}
			case old != nil:
				p.host.set(x, t)
				err = old.FinalizeAll()
			default:
				common[x] = t
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, func() error {
		for x, t := range common { // which are on the devices
			own, err := detached(t)
			if err != nil {
				return err
			}
			on, err := p.place(own, xla.Replicated())
			if err != nil {
				return err
			}
			if err := p.arrays.put(p.placeOf(x), batchKind, on); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// detached copies a tensor of the host's backend, so that other backends can use it.
func detached(t *tensors.Tensor) (*tensors.Tensor, error) {
	own, err := t.LocalClone()
	return own, errors.Join(err, t.FinalizeAll())
}
