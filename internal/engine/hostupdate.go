package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/xla"
)

// hostPrograms are updates in plain Go, which ranks share.
type hostPrograms struct {
	backend compute.Backend
	execs   map[string]*graph.Exec
}

// newHostPrograms opens GoMLX's backend in plain Go, which does one operation after another: loops side by side may wait for
// each other for ever (docs/upstream.md, "loops side by side in plain Go"), and a rule may have some.
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

// prepareHost makes the programs of an update on the host: one for each phase of what ranks add up, and the update.
func (d *devices) prepareHost(key string, s *segment, fn summing, all []sumOf, inputs int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range len(s.phases) + 1 {
		name, one := fmt.Sprint(key, " sums ", i), behind(fn, all, s.phases, inputs)
		if i < len(s.phases) {
			one = before(fn, all, s.phases, i, inputs)
		}
		if d.host.execs[name] == nil {
			exec, err := graph.NewExec(d.host.backend, xla.ThrowingErrors(one))
			if err != nil {
				return err
			}
			d.host.execs[name] = exec
		}
		s.onHost = append(s.onHost, d.host.execs[name])
	}
	return nil
}

// hostUpdate begins to update on the host, with gradients and states in its memory.
func (p *play) hostUpdate(s *segment, op step.Op) error {
	args := make([]*tensors.Tensor, len(s.io.in)) // nil ones lie on the host when it begins
	for i, x := range s.io.in {
		switch {
		case x.kind == stepSlot:
			args[i] = tensors.FromScalar(int32(p.steps))
		case x.kind == placeSlot:
			args[i] = tensors.FromScalar(int32(p.place_))
		case x.kind == factorSlot:
			args[i] = tensors.FromScalar(p.factor())
		case x.kind == cellSlot && p.cells[x.number] != nil: // of all units, such as counters
			var err error
			if args[i], err = merged(p.cells[x.number]); err != nil {
				return err
			}
		}
	}
	common := map[slot]*tensors.Tensor{} // what it makes of these
	p.background(s.from, op, op.Stream(), func() error {
		for i, x := range s.io.in {
			switch {
			case args[i] != nil:
			case x.kind == cellSlot:
				args[i] = p.host.get(x.number)
			default:
				v := step.Value{Held: step.Sum, Unit: x.number, Host: true}
				if x.kind == reducedSlot {
					v.Held = step.Reduced
				}
				args[i] = p.host.take(v)
			}
			if args[i] == nil {
				return fmt.Errorf("engine: %v is not in the host's memory", x)
			}
		}
		out, err := p.callHost(s, args)
		if err != nil {
			return err
		}
		for k, x := range s.io.out {
			switch {
			case x.kind == freshSlot:
				p.host.put(step.Value{Held: step.Fresh, Unit: x.number, Host: true}, out[k])
			case x.kind == cellSlot && p.host.get(x.number) != nil:
				old := p.host.take(x.number)
				p.host.put(x.number, out[k])
				err = errors.Join(err, old.FinalizeAll())
			default:
				common[x] = out[k]
			}
		}
		return err
	}, func() error {
		var errs []error
		for x, t := range common {
			errs = append(errs, p.takeCommon(x, t))
		}
		return errors.Join(errs...)
	})
	return nil
}

// callHost runs the programs of an update.
func (p *play) callHost(s *segment, args []*tensors.Tensor) ([]*tensors.Tensor, error) {
	call := func(e *graph.Exec) ([]*tensors.Tensor, error) {
		all := make([]any, len(args))
		for i, t := range args {
			all[i] = t
		}
		return e.Call(all...)
	}
	for i, f := range s.phases {
		out, err := call(s.onHost[i])
		if err != nil {
			return nil, err
		}
		for k, sum := range out {
			if err := p.addUpHost(sum, f.axes[k]); err != nil {
				return nil, err
			}
		}
		args = slices.Concat(args, out)
	}
	return call(s.onHost[len(s.phases)])
}

// takeCommon puts on the device what an update on the host has made of what belongs to no unit.
func (p *play) takeCommon(x slot, t *tensors.Tensor) error {
	own, err := t.LocalClone() // of one backend it is not for another
	if err != nil {
		return err
	}
	on, err := p.place(own, xla.Replicated())
	if err != nil {
		return errors.Join(err, t.FinalizeAll())
	}
	if x.kind == metricSlot {
		p.arrays.add(batchKind, on)
		p.metrics = on
		return t.FinalizeAll()
	}
	old := p.cells[x.number]
	p.arrays.changed(old, on)
	p.cells[x.number] = on
	return errors.Join(old.FinalizeAll(), t.FinalizeAll())
}

// storeGradients begins to move a unit's gradients to the host's memory.
func (p *play) storeGradients(i int, op step.Op) error {
	g, v := p.gradsOf(op.Unit), step.Value{Held: step.Reduced, Unit: op.Unit, Host: true}
	var own *dtensor.Tensor
	if len(p.own.units[op.Unit].Reduce) == 0 {
		if own, v.Held = g.sum, step.Sum; own == nil {
			return fmt.Errorf("engine: there are no gradients of unit %d", op.Unit)
		}
		p.forgetSum(op.Unit)
	}
	_, shape := p.own.lies(p.own.slotOf(v), p.sizes)
	p.move(i, op, shape[0].ByteSize(), func() error {
		if own == nil { // it may have been under way
			own, g.reduced = g.reduced, nil
		}
		t, err := merged(own)
		p.host.put(v, t)
		return err
	}, func() error { return p.arrays.release(own) })
	return nil
}

// fetchParameters begins to bring up what an update on the host has made.
func (p *play) fetchParameters(i int, op step.Op) error {
	x := slot{kind: freshSlot, number: op.Unit}
	on, shape := p.own.lies(x, p.sizes)
	g, resident := p.gradsOf(op.Unit), p.flow.Resident[op.Unit]
	p.move(i, op, shape[0].ByteSize(), func() error {
		t := p.host.take(step.Value{Held: step.Fresh, Unit: op.Unit, Host: true})
		own, err := t.LocalClone() // of one backend it is not for another
		if err == nil {
			g.fresh, err = p.place(own, on)
		}
		if err == nil && resident { // it is gathered next
			p.arrays.add(memest.Communication, g.fresh)
		}
		return errors.Join(err, t.FinalizeAll())
	}, func() error {
		if resident {
			return nil
		}
		cell := p.own.cellOf(op.Unit)
		old := p.cells[cell]
		p.arrays.changed(old, g.fresh)
		p.cells[cell], g.fresh = g.fresh, nil
		return old.FinalizeAll()
	})
	return nil
}

// addUpHost adds a vector of the host up over the ranks along an axis, or all.
func (p *play) addUpHost(t *tensors.Tensor, axis string) error {
	g := p.world
	if axis != "" {
		g = p.groups[axis]
	}
	var own error
	err := tensors.MutableFlatData(t, func(flat []float32) { own = group.AllReduce(p.ctx, g, flat, group.Sum) })
	return errors.Join(err, p.within(step.Op{Axis: axis}, own))
}
