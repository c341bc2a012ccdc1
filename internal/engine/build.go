package engine

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

// build builds the graph of a segment, operation by operation, as each device sees it.
type build struct {
	*own
	plan *step.Plan
	flow *step.Flow
	g    *graph.Graph
	// There is one node for what a slot has, but several for values that are lists, and for sums, which lie apart by parameter.
	has   map[slot][]*graph.Node
	sums  map[slot]*sum
	again map[step.Value]bool // what is saved of a block is to be computed with its backward pass
	last  *graph.Node         // what the last pass made: what is gathered waits for it
	hold  []*graph.Node       // what the next pass waits for
	sizes *sizes
	parts []slot // of inputs, which the segment makes
	// touched are the parameters whose gradients are added to sums that lie outside, or begin them.
	touched, begins []int
	// between adds x up over the ranks along an axis of the plan, or over all ranks for "".
	between func(x *graph.Node, axis string) *graph.Node
	// serial has passes wait for what was made before them, so that the compiler does not hold everything at once.
	serial bool
}

// sum is the sums of a unit's gradients: what lies in a matrix, and what the segment adds to it, by parameter.
type sum struct {
	matrix *graph.Node
	added  map[int]*graph.Node
}

// segment is the graph function of some operations of a rank.
func (o *own) segment(p *step.Plan, f *step.Flow, from, to int, s *io, sizes *sizes) summing {
	return func(in []*graph.Node, between func(x *graph.Node, axis string) *graph.Node) []*graph.Node {
		b := &build{own: o, plan: p, flow: f, g: in[0].Graph(), has: map[slot][]*graph.Node{}, sums: map[slot]*sum{},
			again: map[step.Value]bool{}, between: between, touched: s.touched, begins: s.begins, sizes: sizes}
		for _, op := range p.Ranks[o.rank][from:to] {
			if op.Kind == step.Free && op.What == step.Activation {
				b.parts = append(b.parts, b.value(step.Part, op.Block, op.Micro))
			}
			b.serial = b.serial || !op.Kind.Pass()
		}
		rest := b.read(s.in, in, sizes)
		if len(rest) > 0 {
			panic(fmt.Errorf("engine: %d values more than the segment takes", len(rest)))
		}
		for _, op := range p.Ranks[o.rank][from:to] {
			b.do(op)
		}
		return b.write(s, sizes)
	}
}

// read takes what is in slots from the front of in.
func (b *build) read(slots []slot, in []*graph.Node, sizes *sizes) (rest []*graph.Node) {
	for _, x := range slots {
		_, want := b.lies(x, sizes)
		nodes := slices.Clone(in[:len(want)])
		in = in[len(want):]
		for i, n := range nodes { // scalars of which each device has its own come as vectors
			if x.kind == valueSlot && want[i].IsScalar() && !n.IsScalar() {
				nodes[i] = graph.Reshape(n)
			}
		}
		if x.kind == sumSlot || x.kind == reducedSlot {
			b.sums[x] = &sum{matrix: nodes[0], added: map[int]*graph.Node{}}
			continue
		}
		b.has[x] = nodes
	}
	return in
}

// write lists what is in the slots that a segment gives.
func (b *build) write(s *io, sizes *sizes) (out []*graph.Node) {
	for _, x := range s.out {
		if x.kind == sumSlot || x.kind == reducedSlot {
			out = append(out, b.matrix(x))
			continue
		}
		for _, n := range b.has[x] {
			if x.kind == valueSlot && n.IsScalar() {
				n = graph.Reshape(n, 1)
			}
			out = append(out, n)
		}
	}
	return out
}

// number is the one node of a slot of the host's numbers.
func (b *build) number(kind slotKind, number int) *graph.Node {
	if of := b.has[slot{kind: kind, number: number}]; len(of) > 0 {
		return of[0]
	}
	return nil
}

func (b *build) value(h step.Held, block, micro int) slot {
	return slot{kind: valueSlot, value: step.Value{Held: h, Block: block, Micro: micro}}
}

// one is the node of a value of one array, or nil.
func (b *build) one(h step.Held, block, micro int) *graph.Node {
	if of := b.has[b.value(h, block, micro)]; len(of) > 0 {
		return of[0]
	}
	return nil
}

func (b *build) do(op step.Op) {
	switch op.Kind {
	case step.Forward:
		b.forward(op)
	case step.Recompute:
		b.again[step.Value{Held: step.Saved, Block: op.Block, Micro: op.Micro}] = true
		b.forward(op)
	case step.Backward, step.InputGrad, step.WeightGrad:
		b.backward(op)
	case step.Update, step.HostUpdate:
		b.makeUpdate(op)
	case step.Gather:
		if op.What == step.Activation {
			b.gatherInput(op)
		} else {
			b.gather(op)
		}
	case step.Free: // nothing uses it any more; of an input there is the device's part
	case step.Reduce:
		b.reduce(op)
	case step.Wait:
		b.wait(op)
	default:
		panic(fmt.Errorf("engine: %s lies between ranks", b.plan.Text(op)))
	}
}

// operands are those of a block's passes.
func (b *build) operands(op step.Op) chain.Operands {
	x := b.one(step.Input, op.Block, op.Micro)
	o := chain.Operands{X: graph.Identity(graph.StopGradient(x))} // each block has a gradient of its own
	if b.model.Noisy {
		o.Key = b.Recipe.Key(b.number(stepSlot, 0))
		rows := graph.Const(b.g, uint32(x.Shape().Dim(0)))
		device := graph.Const(b.g, uint32(0))
		if b.devices() > 1 {
			device = graph.ConvertDType(collective.Rank(b.g, b.Mesh[0].Name), dtypes.Uint32)
		}
		o.Row = graph.Add(b.number(rowSlot, op.Micro), graph.Mul(device, rows))
	}
	for _, at := range b.homes[op.Block] {
		o.Weights = append(o.Weights, b.weight(at))
	}
	if op.Block == len(b.plan.Blocks)-1 {
		o.Targets = b.number(targetSlot, op.Micro)
	}
	return o
}

// weight is a parameter, whole or as a device has it: an array of its own, or columns of its unit's matrix.
func (b *build) weight(at int) *graph.Node {
	if !b.flat {
		return b.number(cellSlot, b.weights[at])
	}
	u := b.unitOf[at]
	matrix := b.has[b.slotOf(step.Value{Held: step.Whole, Unit: u.number})][0]
	return b.view(matrix, at)
}

// view is the array of a parameter that lies in its unit's matrix.
func (b *build) view(matrix *graph.Node, at int) *graph.Node {
	offset, length, shape := b.offset(at), b.length(at), b.tree[at].Shape
	x := graph.Slice(matrix, graph.AxisRange(), graph.AxisRange(offset, offset+length))
	x = graph.Reshape(x, b.shards*length)
	return graph.Reshape(graph.Slice(x, graph.AxisRange(0, shape.Size())), shape.Dimensions...)
}

// columns is the matrix of a parameter's array: a row for each shard, filled up with zeros.
func (b *build) columns(at int, x *graph.Node) *graph.Node {
	length := b.length(at)
	flat := graph.Reshape(x, x.Shape().Size())
	if missing := b.shards*length - flat.Shape().Size(); missing > 0 {
		flat = graph.Pad(flat, graph.ScalarZero(b.g, flat.DType()), compute.PadAxis{End: missing})
	}
	return graph.Reshape(flat, b.shards, length)
}

// waits has a value wait for what the passes wait for.
func (b *build) waits(x *graph.Node) *graph.Node {
	if len(b.hold) > 0 {
		x = graph.SchedulingBarrier(x, b.hold...)
		b.hold = nil
	}
	return x
}

func (b *build) forward(op step.Op) {
	in := b.value(step.Input, op.Block, op.Micro)
	x := b.waits(b.has[in][0])
	if b.serial && b.last != nil && op.Block == 0 { // behind the micro-batch before
		x = graph.SchedulingBarrier(x, b.last)
	}
	if op.Kind == step.Recompute { // or the compiler would find that it has been computed before
		wait := b.last
		if wait == nil {
			wait = b.one(step.OutGrad, op.Block, op.Micro)
		}
		if wait != nil {
			x = graph.SchedulingBarrier(x, wait)
		}
	}
	part := b.value(step.Part, op.Block, op.Micro)
	if op.Kind == step.Forward && slices.Contains(b.parts, part) { // made with the input, or the compiler would keep that for as long
		held := residual.Hold(b.Shares.Axis, x, residual.Part(x, b.Shares.Axis))
		x, b.has[part] = held[0], held[1:]
	}
	b.has[in] = []*graph.Node{x}
	y, saved := b.passes.Forward(op.Block, b.operands(op))
	b.has[b.value(step.Saved, op.Block, op.Micro)] = saved
	if op.Block == len(b.plan.Blocks)-1 {
		if op.Kind == step.Forward {
			b.has[slot{kind: lossSlot, number: op.Micro}] = []*graph.Node{b.meanOver(y)}
		}
	} else {
		b.has[b.value(step.Input, op.Block+1, op.Micro)] = []*graph.Node{y}
	}
	b.last = y
}

// gatherInput makes the whole input of a block of the devices' parts, behind the last pass.
func (b *build) gatherInput(op step.Op) {
	part, axis := b.one(step.Part, op.Block, op.Micro), b.Shares.Axis
	if b.last != nil {
		part = residual.Hold(axis, part, b.last)[0]
	}
	b.has[b.value(step.Input, op.Block, op.Micro)] = []*graph.Node{residual.Whole(part, b.sizes.blocks[op.Block].x, axis)}
}

// meanOver is the mean, or where losses are sums the sum, over the devices that have other rows or tokens.
func (b *build) meanOver(x *graph.Node) *graph.Node {
	if b.devices() == 1 {
		return x
	}
	axes := b.averaged()
	x = collective.AllReduce(x, collective.Sum, axes...)
	if b.Sum {
		return x
	}
	return graph.MulScalar(x, 1/float64(collective.AxisSize(b.g, axes...)))
}

// scaling is the state of the loss scaling.
func (b *build) scaling() (state []*graph.Node) {
	for _, i := range b.scalingCells() {
		state = append(state, b.number(cellSlot, i))
	}
	return state
}

func (b *build) backward(op step.Op) {
	above := b.one(step.OutGrad, op.Block, op.Micro)
	if above != nil {
		above = b.waits(above)
		b.has[b.value(step.OutGrad, op.Block, op.Micro)] = []*graph.Node{above}
	} else {
		in := b.value(step.Input, op.Block, op.Micro)
		b.has[in] = []*graph.Node{b.waits(b.has[in][0])}
	}
	o := b.operands(op)
	saved := b.has[b.value(step.Saved, op.Block, op.Micro)]
	var scaling []*graph.Node
	if op.Block == len(b.plan.Blocks)-1 {
		scaling = b.scaling()
	}
	var x *graph.Node
	var grads []*graph.Node
	switch op.Kind {
	case step.Backward:
		all := b.passes.Backward(op.Block, o, saved, above, scaling)
		x, grads = all.X, all.Weights
	case step.InputGrad:
		var left []*graph.Node
		x, left = b.passes.BackwardInput(op.Block, o, saved, above, scaling)
		b.has[b.value(step.Left, op.Block, op.Micro)] = left
	default:
		grads = b.passes.BackwardWeights(op.Block, o, saved, above, scaling, b.has[b.value(step.Left, op.Block, op.Micro)])
	}
	if x != nil {
		b.has[b.value(step.OutGrad, op.Block-1, op.Micro)] = []*graph.Node{x}
		b.last = x
	}
	for k, at := range b.homes[op.Block] {
		if grads == nil {
			break
		}
		if b.idle[at] {
			continue
		}
		s := b.sumOf(slot{kind: sumSlot, number: b.unitOf[at].number})
		grad := grads[k]
		if n := b.summands(); n > 1 && b.early() {
			grad = scaled(grad, graph.Const(b.g, float32(1/float64(n))))
		}
		s.added[at] = plus(s.added[at], graph.ConvertDType(grad, b.policy.Reduce))
		if x == nil {
			b.last = s.added[at]
		}
	}
}

func (b *build) sumOf(x slot) *sum {
	if b.sums[x] == nil {
		b.sums[x] = &sum{added: map[int]*graph.Node{}}
	}
	return b.sums[x]
}

// plus adds b to a, which may be nil.
func plus(a, b *graph.Node) *graph.Node {
	if a == nil || b == nil {
		return b
	}
	return graph.Add(a, b)
}

// part is the sum of a parameter's gradients, of what lies in the matrix and what the segment has added.
func (b *build) part(x slot, at int) *graph.Node {
	s := b.sums[x]
	if s.matrix == nil {
		if s.added[at] == nil { // no pass has come to it
			return graph.Zeros(b.g, shapes.Make(b.policy.Reduce, b.tree[at].Shape.Dimensions...))
		}
		return s.added[at]
	}
	before := b.view(s.matrix, at)
	if s.added[at] == nil {
		return before
	}
	return b.addedTo(before, at, s.added[at])
}

// addedTo adds what the segment has made of a parameter's gradients to what was there, unless they are the first.
func (b *build) addedTo(before *graph.Node, at int, fresh *graph.Node) *graph.Node {
	if slices.Contains(b.begins, at) {
		return fresh
	}
	return graph.Add(before, fresh)
}

// matrix is the sums of a unit's gradients as they lie outside of segments. Where parameters lie is told when the segment
// runs: so blocks that are alike share one.
func (b *build) matrix(x slot) *graph.Node {
	s, u := b.sums[x], b.units[x.number]
	if s.matrix == nil {
		var all []*graph.Node
		for _, at := range u.members {
			all = append(all, b.columns(at, b.part(x, at)))
		}
		return concatenate(all, 1)
	}
	if s.matrix.Rank() == 1 { // a shard
		return s.matrix
	}
	matrix := s.matrix
	for k, at := range b.touched {
		if s.added[at] == nil || b.unitOf[at] != u {
			continue
		}
		fresh := b.columns(at, s.added[at])
		offset := graph.Squeeze(graph.Slice(b.number(touchedSlot, 0), graph.AxisElem(k)))
		place := []*graph.Node{graph.Const(b.g, int32(0)), offset}
		before := graph.DynamicSlice(matrix, place, fresh.Shape().Dimensions)
		matrix = graph.DynamicUpdateSlice(matrix, b.addedTo(before, at, fresh), place)
	}
	return matrix
}

func concatenate(all []*graph.Node, axis int) *graph.Node {
	if len(all) == 1 {
		return all[0]
	}
	return graph.Concatenate(all, axis)
}

// gather makes the whole of a unit of the devices' shards.
func (b *build) gather(op step.Op) {
	shard := b.number(freshSlot, op.Unit)
	if !b.flow.Resident[op.Unit] {
		if shard = b.number(cellSlot, b.cellOf(op.Unit)); b.last != nil {
			shard = graph.SchedulingBarrier(shard, b.last)
		}
	}
	whole := collective.AllGather(graph.InsertAxes(shard, 0), 0, axisNames(op.Axis)...)
	b.has[b.slotOf(step.Value{Held: step.Whole, Unit: op.Unit})] = []*graph.Node{whole}
}

// reduce adds the devices' sums of a unit's gradients up: each gets the whole, or its shard.
func (b *build) reduce(op step.Op) {
	from, to := slot{kind: sumSlot, number: op.Unit}, slot{kind: reducedSlot, number: op.Unit}
	u, axes := b.units[op.Unit], axisNames(op.Axis)
	if u.size == 0 {
		return // the loss depends on none of it
	}
	if u.Reduce[0] != op.Axis {
		from = to
	}
	if op.Axis == u.Shard {
		var all []*graph.Node
		for _, at := range u.members {
			all = append(all, b.columns(at, b.part(from, at)))
		}
		shard := collective.ReduceScatter(concatenate(all, 1), collective.Sum, 0, axes...)
		s := b.sumOf(to)
		s.matrix = plus(s.matrix, graph.Reshape(shard, u.size))
		delete(b.sums, from)
		return
	}
	var all []*graph.Node
	for _, at := range u.members {
		all = append(all, b.part(from, at))
	}
	all = collective.AllReduceEach(all, collective.Sum, axes...)
	delete(b.sums, from)
	s := b.sumOf(to)
	for i, at := range u.members {
		s.added[at] = plus(s.added[at], all[i])
	}
}

// wait has the next pass wait for an operation's result.
func (b *build) wait(op step.Op) {
	switch op.Of {
	case step.Gather:
		b.hold = append(b.hold, b.has[b.slotOf(step.Value{Held: step.Whole, Unit: op.Unit})]...)
	case step.Reduce:
		s := b.sums[slot{kind: reducedSlot, number: op.Unit}]
		if s == nil {
			return
		}
		if s.matrix != nil {
			b.hold = append(b.hold, s.matrix)
		}
		for _, at := range b.units[op.Unit].members {
			if s.added[at] != nil {
				b.hold = append(b.hold, s.added[at])
			}
		}
	}
}
