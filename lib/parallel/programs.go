package parallel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// programs are what a rank runs on its mesh. They are compiled when they are first called.
type programs struct {
	*own
	mesh   *xla.Mesh
	stages map[int]*stagePrograms // by number
	zeros  *xla.Program           // makes the sums of the gradients, before there are any
	// update makes a step of the sums. Where ranks have gradients in common, or ask for totals of all, it comes in parts, between which
	// ranks add up: reduce, totals and apply.
	update, reduce, totals, apply *xla.Program
	all                           []*xla.Program
}

type stagePrograms struct {
	*stage
	forward, backward, input, weights *xla.Program
}

// program makes a program, which close frees.
func (p *programs) program(fn func(in []*graph.Node) []*graph.Node, layout xla.Layout) (*xla.Program, error) {
	one, err := xla.Compile(p.mesh, fn, layout)
	if err == nil {
		p.all = append(p.all, one)
	}
	return one, err
}

func (p *programs) close() {
	for _, one := range p.all {
		one.Close()
	}
}

// newPrograms makes the programs of a rank that has these stages; outside says whether ranks have gradients in common.
func (o *own) newPrograms(mesh *xla.Mesh, stages []int, outside bool) (*programs, error) {
	p := &programs{own: o, mesh: mesh, stages: map[int]*stagePrograms{}}
	var errs []error
	add := func(fn func(in []*graph.Node) []*graph.Node, layout xla.Layout) *xla.Program {
		one, err := p.program(fn, layout)
		errs = append(errs, err)
		return one
	}
	for _, number := range stages {
		s := o.newStage(number)
		of := &stagePrograms{stage: s}
		p.stages[number] = of
		given, toward, apart, n := s.placements(false), s.placements(true), o.apart(), len(s.params)
		y := o.activations()
		if s.last() {
			y = xla.Replicated()
		}
		first := []xla.Placement{o.activations()}
		if s.first() {
			first = nil
		}
		sums := make([]int, n)
		for i := range sums {
			sums[i] = len(toward) + i
		}
		of.forward = add(s.forward, xla.In(append(given, apart)...).Gives(y, apart))
		of.backward = add(s.backward, xla.In(append(toward, apart)...).Gives(append(first, apart)...).Donates(sums...))
		if !s.first() {
			of.input = add(s.input, xla.In(append(toward, apart)...).Gives(o.activations(), apart))
			of.weights = add(s.weightGrads, xla.In(append(toward, apart)...).Gives(apart).Donates(sums...))
		}
	}
	n, entries := len(o.tree), len(o.entries)
	zeros, err := xla.Compile(mesh, func(g *graph.Graph) []*graph.Node {
		var all []*graph.Node
		for i := range n {
			all = append(all, vector(graph.Zeros(g, shapes.Make(o.policy.Reduce, o.sumDims(i)...))))
		}
		return all
	}, xla.Out(o.apart()))
	p.zeros, p.all, errs = zeros, append(p.all, zeros), append(errs, err)
	apart := slices.Repeat([]xla.Placement{o.apart()}, n)
	state, grads := o.entryPlacements(), o.gradPlacements()
	after := slices.Clone(state)
	if o.besides() {
		after = append(after, o.weights()...)
	}
	after = append(after, xla.Replicated()) // metrics
	whole := xla.Replicated()
	if !outside {
		p.update = add(func(in []*graph.Node) []*graph.Node {
			sums, state, loss := in[:n], in[n:n+entries], in[n+entries]
			grads := o.reduce(sums)
			var totals *graph.Node
			if o.asks() {
				totals = o.totals(grads, scalingOf(o.Plan, state))
			}
			return o.apply(state, grads, loss, totals)
		}, xla.In(slices.Concat(apart, state, []xla.Placement{whole})...).Gives(after...).Donates(rank.Firsts(n+entries)...))
		return p, errors.Join(errs...)
	}
	p.reduce = add(o.reduce, xla.In(apart...).Gives(grads...).Donates(rank.Firsts(n)...))
	if o.asks() {
		p.totals = add(func(in []*graph.Node) []*graph.Node {
			return []*graph.Node{o.totals(in[:n], in[n:])}
		}, xla.In(append(slices.Clone(grads), whole)...).Gives(whole))
	}
	p.apply = add(func(in []*graph.Node) []*graph.Node {
		state, grads, loss := in[:entries], in[entries:entries+n], in[entries+n]
		var totals *graph.Node
		if o.asks() {
			totals = in[entries+n+1]
		}
		return o.apply(state, grads, loss, totals)
	}, xla.In(slices.Concat(state, grads, []xla.Placement{whole})...).Gives(after...).Donates(rank.Firsts(entries+n)...))
	return p, errors.Join(errs...)
}

// placements are those of what passes take: see stage.take.
func (s *stage) placements(backward bool) (all []xla.Placement) {
	weights := s.weights()
	for _, at := range s.params {
		all = append(all, weights[at])
	}
	rows := xla.Shard(0, train.Axis)
	if s.first() {
		all = append(all, rows)
	} else {
		all = append(all, s.activations())
	}
	if s.model.Noisy {
		all = append(all, xla.Replicated(), xla.Replicated())
	}
	if s.last() {
		all = append(all, rows)
	}
	switch {
	case !backward:
	case s.last():
		all = append(all, slices.Repeat([]xla.Placement{xla.Replicated()}, len(s.policy.Scaling.States()))...)
	default:
		all = append(all, s.activations())
	}
	return all
}

// gradPlacements are those of the means of the gradients.
func (o *own) gradPlacements() (all []xla.Placement) {
	for i := range o.tree {
		e := entry{cut: o.cuts[i]}
		if o.zero(1) {
			e.flat = o.lengths[i]
		}
		all = append(all, o.placement(e))
	}
	return all
}

// boundaries returns the shapes, of all devices together, of what each stage gives the next, for micro-batches of these shapes. It
// builds the whole model's graph, so that a batch that does not fit it is known before a step begins.
func (o *own) boundaries(mesh *xla.Mesh, inputs, targets shapes.Shape) ([]shapes.Shape, error) {
	x, y := inputs.Clone(), targets.Clone()
	if x.Dimensions[0]%o.layout.Data != 0 {
		return nil, fmt.Errorf("parallel: a micro-batch of %d rows for %d devices with other rows: make the batch a multiple", x.Dimensions[0], o.layout.Data)
	}
	x.Dimensions[0] /= o.layout.Data
	y.Dimensions[0] /= o.layout.Data
	tree := o.passes.Model.Params()
	var given []shapes.Shape
	for _, s := range tree {
		given = append(given, s.Shape)
	}
	out, err := mesh.Shapes(func(in []*graph.Node) (ends []*graph.Node) {
		named, x, y := tree.Nodes(in[:len(tree)]), in[len(tree)], in[len(tree)+1]
		o.passes.Model.Loss(named, x, y) // which panics if it is no scalar
		for _, blocks := range o.Stages[:len(o.Stages)-1] {
			for _, b := range blocks {
				x = o.passes.Model.Blocks[b].Apply(named, x, nil, nil)
			}
			ends = append(ends, graph.ConvertDType(x, o.policy.Compute))
		}
		return ends
	}, append(given, x, y)...)
	if err != nil {
		return nil, fmt.Errorf("parallel: inputs of shape %s and targets of shape %s: %w", inputs, targets, err)
	}
	for i := range out {
		out[i] = out[i].Clone()
		out[i].Dimensions[0] *= o.layout.Data
		for _, axis := range o.shares.Between {
			n, err := mesh.AxisSize(axis)
			if err != nil {
				return nil, err
			}
			out[i].Dimensions[1] *= n
		}
	}
	return out, nil
}
