package engine

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/xla"
)

// hostPrograms are updates in plain Go, shared by ranks.
type hostPrograms struct {
	backend compute.Backend
	execs   map[string]*graph.Exec
}

// newHostPrograms opens GoMLX's backend in plain Go with one operation after another: loops in parallel may deadlock
// (docs/upstream.md, "loops side by side in plain Go"), and optimizers may have loops.
func newHostPrograms() (*hostPrograms, error) {
	backend, err := gobackend.New("ops_sequential")
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
				p.host.take(x)
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
					p.host.put(x, t)
				}
			case old != nil:
				p.host.take(x)
				p.host.put(x, t)
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
			at := &p.metrics
			if x.kind == cellSlot {
				at = &p.cells[x.number]
			}
			if err := p.arrays.put(at, batchKind, on); err != nil {
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
