package engine

import (
	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/lib/step"
)

// prepared is a plan, cut into segments for a rank.
type prepared struct {
	plan     *step.Plan
	flow     *step.Flow
	versions []int // by position: the version of the parameters that an operation uses or makes
	segments []*segment
	waits    map[int][]int // by position: the operations that must be done before
}

// prepare makes the programs for micro-batches of a shape, before the step begins on any rank.
func (r *Rank) prepare(part microBatch) error {
	in, out := part.Inputs.Shape().Clone(), part.Targets.Shape().Clone()
	if in.Equal(r.inputs) && out.Equal(r.targets) {
		return nil
	}
	r.inputs, r.evaluation, r.prepared = shapes.Shape{}, nil, nil // until all is well
	local := func(s shapes.Shape) shapes.Shape {
		s = s.Clone()
		s.Dimensions[0] /= r.Mesh[0].Size
		return s
	}
	if r.mesh.NumDevices() == 1 { // blocks of one kind share programs
		if err := r.kinds.Check(r.textOf, r.own.passes, in); err != nil {
			return err
		}
	}
	_, split := find(r.Plans[0], func(op step.Op) bool { return op.Kind == step.InputGrad })
	var err error
	if r.sizes, err = r.measure(r.own, local(in), local(out), split); err != nil {
		return err
	}
	r.own = r.ranks[r.own.rank].without(r.sizes.idle)
	for _, p := range r.Plans {
		one, err := r.ready(r.own, p)
		if err != nil {
			return err
		}
		r.prepared = append(r.prepared, one)
	}
	r.inputs, r.targets = in, out
	return nil
}

// ready cuts a plan into segments and makes their programs.
func (r *Rank) ready(o *own, p *step.Plan) (*prepared, error) {
	f, err := p.Flow(o.rank)
	if err != nil {
		return nil, err
	}
	versions := make([][]int, len(p.Ranks))
	if p.Weights != step.Flush { // else there is only one
		if versions, err = p.Versions(); err != nil {
			return nil, err
		}
	}
	// Passes that use versions of the parameters need programs of their own.
	alone := r.world.Size() == 1 && p.Weights == step.Flush && !r.Blockwise
	one := &prepared{plan: p, flow: f, versions: versions[o.rank], waits: map[int][]int{}}
	one.segments = o.segments(p, f, alone)
	for at, done := range f.Done {
		if done != at {
			one.waits[done] = append(one.waits[done], at)
		}
	}
	summed := map[int]bool{}
	for _, s := range one.segments {
		s.keepsOld = one.keepsOld(s, p.Ranks[o.rank])
		if err := r.devices.prepare(o, p, f, s, r.sizes, summed, r.world.Size()); err != nil {
			return nil, err
		}
		for _, op := range p.Ranks[o.rank][s.from:s.to] {
			o.sum(op, summed)
		}
	}
	return one, nil
}

// sum tracks the parameters whose accumulated gradients are not used up.
func (o *own) sum(op step.Op, summed map[int]bool) {
	switch {
	case op.Kind == step.Backward, op.Kind == step.WeightGrad:
		for _, at := range o.blockParams[op.Block] {
			summed[at] = true
		}
	case op.What == step.Gradient && (op.Kind == step.Reduce || op.Kind == step.Store), op.Kind == step.Update:
		for _, at := range o.updated(op.Unit) {
			reduce := o.unitOf[at].Reduce
			used := len(reduce) == 0
			if op.Kind == step.Reduce {
				used = reduce[0] == op.Axis
			}
			if used {
				delete(summed, at)
			}
		}
	}
}

// keepsOld reports whether later passes use the parameters from before an update.
func (p *prepared) keepsOld(s *segment, list []step.Op) bool {
	at := s.to - 1
	return p.versions != nil && list[at].Kind == step.Update && p.uses(list, s.to, p.versions[at]-1)
}

// uses reports whether passes from a position on use a version of the parameters.
func (p *prepared) uses(list []step.Op, from, version int) bool {
	for i := from; i < len(list); i++ {
		if list[i].Kind.Pass() && list[i].Kind != step.Update && p.versions[i] == version {
			return true
		}
	}
	return false
}
