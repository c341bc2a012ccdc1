package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
)

// release frees values at the end of their live range. Accumulated gradients are freed by what uses them.
func (p *play) release(ended []step.Value) error {
	var errs []error
	for _, v := range ended {
		if v.Held == step.Sum || v.Held == step.Reduced || v.Host {
			continue
		}
		if p.storing[v] > 0 {
			p.storing[v]--
			continue
		}
		errs = append(errs, p.arrays.release(p.values[v]...))
		delete(p.values, v)
	}
	return errors.Join(errs...)
}

// oldParams returns the parameters that a segment's pass uses, if they are not the newest.
func (p *play) oldParams(s *segment) []*dtensor.Tensor {
	if p.versions == nil {
		return nil
	}
	for i, op := range p.plan.Ranks[p.own.rank][s.from:s.to] {
		if op.Kind.Pass() && op.Kind != step.Update {
			return p.old[p.versions[s.from+i]]
		}
	}
	return nil
}

// forget frees the versions of parameters that no operation from a position on uses.
func (p *play) forget(from int) error {
	var errs []error
	for version, list := range p.old {
		if !p.uses(p.plan.Ranks[p.own.rank], from, version) {
			errs = append(errs, p.arrays.release(list...))
			delete(p.old, version)
		}
	}
	return errors.Join(errs...)
}

// arg returns what is in a slot.
func (p *play) arg(x slot, s *segment) ([]any, error) {
	switch x.kind {
	case cellSlot:
		if old := p.oldParams(s); old != nil && p.own.ofParameters(x) {
			return []any{old[x.number]}, nil
		}
		return []any{p.cells[x.number]}, nil
	case sumSlot:
		t, err := p.sumOf(x)
		return []any{t}, err
	case freshSlot, reducedSlot:
		return []any{*p.placeOf(x)}, nil
	case touchedSlot:
		where := make([]int32, len(s.io.touched))
		for k, at := range s.io.touched {
			where[k] = int32(p.own.offsets[at])
		}
		return []any{where}, nil
	case targetSlot:
		if p.targets[x.number] == nil {
			on, _ := p.own.lies(x, p.sizes)
			t, err := p.arrays.place(batchKind, p.parts[x.number].Targets, on)
			if err != nil {
				return nil, err
			}
			p.targets[x.number] = t
		}
		return []any{p.targets[x.number]}, nil
	case rowSlot:
		return []any{p.parts[x.number].Row}, nil
	case stepSlot:
		return []any{int32(p.steps)}, nil
	case shardSlot:
		return []any{int32(p.shardIndex)}, nil
	case rankSlot:
		return []any{int32(p.groups[p.inside[x.number].Name].Rank())}, nil
	case factorSlot:
		return []any{p.factor()}, nil
	}
	if x.value.Held == step.Input && x.value.Block == 0 && p.values[x.value] == nil {
		on, _ := p.own.lies(x, p.sizes)
		t, err := p.arrays.place(memest.Activations, p.parts[x.value.Micro].Inputs, on)
		if err != nil {
			return nil, err
		}
		p.values[x.value] = []*dtensor.Tensor{t}
	}
	list, ok := p.values[x.value]
	if _, all := p.own.lies(x, p.sizes); !ok && len(all) > 0 {
		return nil, fmt.Errorf("engine: %v is not there", x.value)
	}
	var args []any
	for _, t := range list {
		args = append(args, t)
	}
	return args, nil
}

// factor is what an update multiplies accumulated gradients by.
func (p *play) factor() float32 {
	if p.own.scalesEarly() {
		return 1
	}
	return float32(1 / float64(p.own.summands()))
}

// placeOf returns where the array of a slot is stored; nil for slots of values, and those that the host gives.
func (p *play) placeOf(x slot) **dtensor.Tensor {
	switch x.kind {
	case cellSlot:
		return &p.cells[x.number]
	case sumSlot:
		return &p.gradsOf(x.number).sum
	case reducedSlot:
		return &p.gradsOf(x.number).reduced
	case freshSlot:
		return &p.gradsOf(x.number).fresh
	case metricSlot:
		return &p.metrics
	}
	return nil
}

func (p *play) gradsOf(unit int) *grads {
	if p.grads[unit] == nil {
		p.grads[unit] = &grads{}
	}
	return p.grads[unit]
}

// sumOf returns the matrix of a unit's accumulated gradients, with undefined elements if there are none.
func (p *play) sumOf(x slot) (*dtensor.Tensor, error) {
	g := p.gradsOf(x.number)
	if g.sum != nil {
		return g.sum, nil
	}
	on, shape := p.own.lies(x, p.sizes)
	full := shape[0].Clone()
	if p.own.sumsDiffer() {
		full.Dimensions[0] *= p.mesh.NumDevices()
	} else {
		full.Dimensions[0] *= p.own.units[x.number].cuts
	}
	var err error
	g.sum, err = p.arrays.borrow(memest.Gradients, full, on)
	return g.sum, err
}

// assign stores the results of a segment in their slots.
func (p *play) assign(s *segment, out []*dtensor.Tensor) error {
	var errs []error
	for _, x := range s.io.out {
		_, shapes := p.own.lies(x, p.sizes)
		mine := out[:len(shapes):len(shapes)]
		out = out[len(shapes):]
		at, kind := p.placeOf(x), p.own.kindOf(x)
		if x.kind == freshSlot || x.value.Held == step.Full {
			kind = memest.Communication
		}
		switch {
		case x.kind == lossSlot:
			p.arrays.add(batchKind, mine[0])
			p.losses = append(p.losses, mine[0])
		case at == nil:
			errs = append(errs, p.arrays.release(p.values[x.value]...))
			p.arrays.add(kind, mine...)
			p.values[x.value] = mine
		case s.keepsOld && p.own.ofParameters(x):
			version := p.versions[s.to-1] - 1
			p.old[version] = append(p.old[version], *at)
			p.arrays.add(kind, mine[0])
			*at = mine[0]
		case *at != nil && slices.Contains(s.io.donated, x):
			p.arrays.changed(*at, mine[0])
			*at = mine[0]
		default:
			errs = append(errs, p.arrays.put(at, kind, mine[0]))
		}
	}
	for _, x := range s.io.in { // frees gradients and new parameters that were used up
		if at := p.placeOf(x); at != nil && x.kind != cellSlot && !slices.Contains(s.io.out, x) {
			errs = append(errs, p.arrays.release(*at))
			*at = nil
		}
	}
	for _, op := range p.plan.Ranks[p.own.rank][s.from:s.to] {
		if op.Block == len(p.plan.Blocks)-1 && (op.Kind == step.Backward || op.Kind == step.WeightGrad) {
			errs = append(errs, p.arrays.release(p.targets[op.Micro]))
			delete(p.targets, op.Micro)
		}
	}
	return errors.Join(errs...)
}
