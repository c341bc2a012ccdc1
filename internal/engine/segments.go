package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/xla"
)

// halved returns a plan with each backward pass split into its two parts.
func halved(p *step.Plan) *step.Plan {
	q := p.Clone()
	for r, list := range q.Ranks {
		q.Ranks[r] = nil
		for _, op := range list {
			if op.Kind == step.Backward {
				input := op
				input.Kind, op.Kind = step.InputGrad, step.WeightGrad
				q.Ranks[r] = append(q.Ranks[r], input)
			}
			q.Ranks[r] = append(q.Ranks[r], op)
		}
	}
	return q
}

// segment is a range of a rank's list that runs at once: as one program, or one operation between ranks.
type segment struct {
	from, to int
	local    bool // one program
	io       *io
	ended    []step.Value // nothing needs them after it
	keepsOld bool         // later passes use the parameters from before its update
	program  program      // of a local segment
	sums     []program    // for what ranks sum before it
	phases   []phase
}

// segments cuts a rank's list. Alone says that there are no operations with other ranks.
func (o *own) segments(p *step.Plan, f *step.Flow, alone bool) (all []*segment) {
	list := p.Ranks[o.rank]
	waits := make([]bool, len(list)+1) // for operations between ranks, by position
	for i, done := range f.Done {
		if o.between(p, list[i]) {
			waits[done] = true
		}
	}
	pairs := p.Pairs(o.rank)
	// exchanges in the middle of passes cut their programs
	single := !alone && (o.devices() == 1 || len(o.inside) > 0)
	var open *segment
	micro := -1
	for i, op := range list {
		if i == pairs[i].From || i == pairs[i].Second || i == pairs[max(0, i-1)].To {
			open = nil
		}
		if op.Kind == step.Free {
			if open == nil {
				open = &segment{from: i, to: i, local: true}
				all = append(all, open)
			}
			open.to = i + 1
			continue
		}
		if o.between(p, op) {
			all, open = append(all, &segment{from: i, to: i + 1}), nil
			continue
		}
		pass := op.Kind.Pass() && op.Kind != step.Update
		apart := waits[i] || pass && single && open != nil && !follows(list[open.from:open.to], op) ||
			pass && p.Micro > 1 && micro >= 0 && op.Micro != micro
		if open != nil && (apart && open.to > open.from || op.Kind == step.Update && !alone) {
			open = nil
		}
		if open == nil {
			open = &segment{from: i, local: true}
			all = append(all, open)
		}
		if open.to = i + 1; pass {
			micro = op.Micro
		}
		if op.Kind == step.Update && !alone {
			open = nil
		}
	}
	for _, s := range all {
		s.ended = endedIn(f, s.from, s.to)
	}
	return all
}

// endedIn lists the values that end in a segment, except those that it makes again.
func endedIn(f *step.Flow, from, to int) (all []step.Value) {
	for i := from; i < to; i++ {
		for _, v := range f.Ends[i] {
			if !slices.Contains(slices.Concat(f.Makes[i+1:to]...), v) {
				all = append(all, v)
			}
		}
	}
	return all
}

// follows reports whether a pass belongs to the program of the operations before it: the recomputation of a block
// belongs to its backward pass.
func follows(before []step.Op, op step.Op) bool {
	for _, b := range before {
		if b.Kind.Pass() && (b.Kind != step.Recompute || b.Block != op.Block || op.Kind == step.Recompute) {
			return false
		}
	}
	return true
}

// isBlockPass reports whether a segment is one pass of a block, whose program other blocks of its kind can share.
func isBlockPass(list []step.Op) bool {
	for i, op := range list {
		if op.Kind == step.Update || !op.Kind.Pass() && op.Kind != step.Free || !follows(list[:i], op) {
			return false
		}
	}
	return true
}

// between reports whether an operation is between ranks, or with the host, or waits for one.
func (o *own) between(p *step.Plan, op step.Op) bool {
	if op.Kind == step.Wait {
		op.Kind = op.Of
	}
	a, ok := p.Axis(op.Axis)
	return !op.Kind.Pass() && op.Kind != step.Free && (!ok || len(a.Groups) > 0)
}

// prepare makes the program of a segment. Summed are the parameters that have accumulated gradients before it.
func (d *devices) prepare(o *own, p *step.Plan, f *step.Flow, s *segment, sizes *sizes, summed map[int]bool,
	ranks int) error {
	first := p.Ranks[o.rank][s.from]
	if !s.local && first.Kind != step.HostUpdate {
		return nil
	}
	s.io = o.listIO(p, f, s.from, s.to)
	for _, at := range s.io.touched {
		if !summed[at] {
			s.io.begins = append(s.io.begins, at)
		}
	}
	if s.keepsOld {
		s.io.donated = slices.DeleteFunc(s.io.donated, func(x slot) bool { return o.ofParameters(x) })
	}
	var l layout
	var in []shapes.Shape
	for _, x := range s.io.in {
		on, all := o.lies(x, sizes)
		for _, shape := range all {
			if slices.Contains(s.io.donated, x) {
				l.donated = append(l.donated, len(l.in))
			}
			l.in, in = append(l.in, on), append(in, o.shapeOf(x, shape, s.io))
		}
	}
	for _, x := range s.io.out {
		on, all := o.lies(x, sizes)
		l.out = append(l.out, slices.Repeat([]xla.Placement{on}, len(all))...)
	}
	if len(l.out) == 0 {
		return nil // nothing to compute
	}
	fn := o.segment(p, f, s.from, s.to, s.io, sizes)
	key := o.key(p, s)
	if s.keepsOld {
		key += " keepsOld"
	}
	n := len(in)
	var all []sumOf
	if ranks > 1 && updates(first.Kind) {
		if _, err := d.mesh.Shapes(func(in []*graph.Node) []*graph.Node {
			all, s.phases = phasesOf(in, fn)
			return in[:1]
		}, in...); err != nil {
			return err
		}
	}
	compile := d.compile
	if first.Kind == step.HostUpdate {
		compile = d.compileHost
	}
	for i := range s.phases {
		lay := layout{in: slices.Clone(l.in), out: slices.Repeat([]xla.Placement{xla.Replicated()},
			len(s.phases[i].axes))}
		one, err := compile(fmt.Sprint(key, " sums ", i), phaseFn(fn, all, s.phases, i, n), lay)
		if err != nil {
			return err
		}
		s.sums = append(s.sums, one)
		l.in = append(l.in, lay.out...)
	}
	var err error
	full := phaseFn(fn, all, s.phases, len(s.phases), n)
	if len(o.inside) > 0 && !updates(first.Kind) {
		s.program, err = d.compileCut(key, full, in, l, o.apart())
	} else {
		s.program, err = compile(key, full, l)
	}
	return err
}

// shapeOf returns the shape of a slot as a program takes it.
func (o *own) shapeOf(x slot, shape shapes.Shape, s *io) shapes.Shape {
	switch x.kind {
	case touchedSlot:
		return shapes.Make(dtypes.Int32, len(s.touched))
	case rowSlot:
		return shapes.Make(dtypes.Uint32)
	case stepSlot, shardSlot, rankSlot:
		return shapes.Make(dtypes.Int32)
	case factorSlot:
		return shapes.Make(dtypes.Float32)
	case valueSlot:
		if shape.IsScalar() {
			return shapes.Make(shape.DType, 1)
		}
	}
	return shape
}

// key is equal for segments that can share a program: passes of blocks of one kind, for any micro-batch.
func (o *own) key(p *step.Plan, s *segment) string {
	var b strings.Builder
	list := p.Ranks[o.rank][s.from:s.to]
	programOf, first := o.model.SharedPrograms(), firstPass(list)
	single := isBlockPass(list) && o.devices() == 1
	if !single {
		fmt.Fprint(&b, "rank ", o.rank, " ")
	}
	for _, op := range list {
		if op.Kind == step.Free {
			continue
		}
		if op.Micro -= first.Micro; single && op.Kind.Pass() {
			fmt.Fprintf(&b, "%c of %d", op.Kind, programOf[op.Block])
			seen := map[int]int{}
			for _, at := range o.blockParams[op.Block] {
				u := o.unitOf[at]
				if _, ok := seen[u.number]; !ok {
					seen[u.number] = len(seen)
				}
				fmt.Fprint(&b, " ", seen[u.number], o.idle[at])
				if o.flat {
					fmt.Fprint(&b, ":", u.size, ",", o.offsets[at], ",", o.lengths[at])
				}
			}
			continue
		}
		fmt.Fprint(&b, " ", p.Text(op))
	}
	for _, at := range s.io.touched {
		fmt.Fprint(&b, " ", slices.Contains(s.io.begins, at))
	}
	for _, list := range [][]slot{s.io.in, s.io.out} {
		fmt.Fprint(&b, " |")
		for _, x := range list {
			if x.kind == targetSlot || x.kind == rowSlot || x.kind == lossSlot {
				x.number -= first.Micro
			}
			if single {
				x.number, x.value.Unit = 0, 0
				x.value.Block -= first.Block
			}
			x.value.Micro -= first.Micro
			fmt.Fprint(&b, " ", x)
		}
	}
	return b.String()
}

// firstPass returns the first pass of a segment, or its first operation if it has no passes.
func firstPass(list []step.Op) step.Op {
	return list[max(0, slices.IndexFunc(list, func(op step.Op) bool { return op.Kind.Pass() }))]
}

// lanes are the segments of a pair, which take turns: those of the forward passes and the sends after them, and the
// rest. Other segments are lanes by themselves, with nothing in the second.
type lanes [2][]*segment

func lanesOf(all []*segment, pairs []step.Pair) (of []lanes) {
	for _, s := range all {
		pair := pairs[s.from]
		if pair.To == 0 || s.from == pair.From {
			of = append(of, lanes{})
		}
		k, last := 0, &of[len(of)-1]
		if pair.To > 0 && s.from >= pair.Second {
			k = 1
		}
		last[k] = append(last[k], s)
	}
	return of
}

// prepared is a plan, cut into segments for a rank.
type prepared struct {
	plan     *step.Plan
	flow     *step.Flow
	versions []int // by position: the version of the parameters that an operation uses or makes
	lanes    []lanes
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
		s.Dimensions[0] /= r.size(r.own.examples()...)
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
	segments := o.segments(p, f, alone)
	one.lanes = lanesOf(segments, p.Pairs(o.rank))
	for at, done := range f.Done {
		if done != at {
			one.waits[done] = append(one.waits[done], at)
		}
	}
	summed := map[int]bool{}
	for _, s := range segments {
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
