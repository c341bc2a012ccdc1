package engine

import (
	"cmp"
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

// build builds the graph of a segment, operation by operation, as each device runs it.
type build struct {
	*own
	plan *step.Plan
	flow *step.Flow
	io   *io
	g    *graph.Graph
	// A slot has one node, or several for values that are lists. Accumulated gradients are in sums, by parameter.
	has   map[slot][]*graph.Node
	sums  map[slot]*sum
	last  *graph.Node   // result of the last pass, which gathers wait for
	hold  []*graph.Node // what the next pass waits for
	sizes *sizes
	parts []slot // shards of inputs that the segment makes (ZeRO-R)
	// between sums x over the ranks along an axis of the plan, or over all ranks for "".
	between func(x *graph.Node, axis string) *graph.Node
	// serial makes each pass wait for the one before it, so that the compiler does not keep all results at once.
	serial bool
}

// segment returns the graph function of some operations of a rank.
func (o *own) segment(p *step.Plan, f *step.Flow, from, to int, s *io, sizes *sizes) summing {
	return func(in []*graph.Node, between func(x *graph.Node, axis string) *graph.Node) []*graph.Node {
		b := &build{own: o, plan: p, flow: f, io: s, sizes: sizes, g: in[0].Graph(), between: between,
			has: map[slot][]*graph.Node{}, sums: map[slot]*sum{}}
		for _, op := range p.Ranks[o.rank][from:to] {
			if op.Kind == step.Free && op.What == step.Activation {
				b.parts = append(b.parts, valueOf(step.Part, op.Block, op.Micro))
			}
			b.serial = b.serial || !op.Kind.Pass()
		}
		b.read(in)
		for i, a := range b.inside {
			if rank := b.number(rankSlot, i); rank != nil {
				collective.Between(b.g, a.Name, a.Size, rank)
			}
		}
		for _, op := range p.Ranks[o.rank][from:to] {
			b.do(op)
		}
		return b.write()
	}
}

// read assigns the inputs to the slots that the segment takes.
func (b *build) read(in []*graph.Node) {
	for _, x := range b.io.in {
		_, want := b.lies(x, b.sizes)
		nodes := slices.Clone(in[:len(want)])
		in = in[len(want):]
		for i, n := range nodes { // scalars that differ between devices are passed as vectors
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
}

// write lists the outputs, from the slots that the segment gives.
func (b *build) write() (out []*graph.Node) {
	for _, x := range b.io.out {
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

// get returns the one node of a slot, or nil.
func (b *build) get(x slot) *graph.Node {
	if of := b.has[x]; len(of) > 0 {
		return of[0]
	}
	return nil
}

func (b *build) number(kind slotKind, number int) *graph.Node {
	return b.get(slot{kind: kind, number: number})
}

func (b *build) put(x slot, nodes ...*graph.Node) { b.has[x] = nodes }

// after makes x wait for others, which may be nil.
func after(x *graph.Node, others ...*graph.Node) *graph.Node {
	others = slices.DeleteFunc(others, func(n *graph.Node) bool { return n == nil })
	if len(others) == 0 {
		return x
	}
	return graph.SchedulingBarrier(x, others...)
}

func (b *build) do(op step.Op) {
	switch op.Kind {
	case step.Forward, step.Recompute:
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
	case step.Free: // nothing uses it any more; the shard of an input has its own slot
	case step.Reduce:
		b.reduce(op)
	case step.Wait:
		b.wait(op)
	default:
		panic(fmt.Errorf("engine: %s is not for one rank", b.plan.Text(op)))
	}
}

// view returns a parameter from its unit's matrix.
func (b *build) view(matrix *graph.Node, at int) *graph.Node {
	offset, length, shape := b.offsets[at], b.lengths[at], b.tree[at].Shape
	x := graph.Slice(matrix, graph.AxisRange(), graph.AxisRange(offset, offset+length))
	x = graph.Reshape(x, b.shards*length)
	return graph.Reshape(graph.Slice(x, graph.AxisRange(0, shape.Size())), shape.Dimensions...)
}

// columns returns a parameter as columns of its unit's matrix: a row for each shard, padded with zeros.
func (b *build) columns(at int, x *graph.Node) *graph.Node {
	length := b.lengths[at]
	flat := graph.Reshape(x, x.Shape().Size())
	if missing := b.shards*length - flat.Shape().Size(); missing > 0 {
		flat = graph.Pad(flat, graph.ScalarZero(b.g, flat.DType()), compute.PadAxis{End: missing})
	}
	return graph.Reshape(flat, b.shards, length)
}

// gather gathers a unit's parameters from the shards of the rank's devices.
func (b *build) gather(op step.Op) {
	shard := b.number(freshSlot, op.Unit)
	if !b.flow.Resident[op.Unit] {
		shard = after(b.number(cellSlot, b.cellOf(op.Unit)), b.last)
	}
	full := collective.AllGather(graph.InsertAxes(shard, 0), 0, axisNames(op.Axis)...)
	b.put(b.slotOf(step.Value{Held: step.Full, Unit: op.Unit}), full)
}

// operands returns the operands of a block's passes.
func (b *build) operands(op step.Op) chain.Operands {
	x := b.get(valueOf(step.Input, op.Block, op.Micro))
	o := chain.Operands{X: graph.Identity(graph.StopGradient(x))} // each block has its own gradient
	if b.model.Noisy {
		o.Key = b.Recipe.Key(b.number(stepSlot, 0))
		rows := graph.Const(b.g, uint32(x.Shape().Dim(0)))
		device := graph.Const(b.g, uint32(0))
		if b.devices() > 1 {
			device = graph.ConvertDType(collective.Rank(b.g, b.Mesh[0].Name), dtypes.Uint32)
		}
		o.Row = graph.Add(b.number(rowSlot, op.Micro), graph.Mul(device, rows))
	}
	for _, at := range b.blockParams[op.Block] {
		o.Weights = append(o.Weights, b.weight(at))
	}
	if op.Block == len(b.plan.Blocks)-1 {
		o.Targets = b.number(targetSlot, op.Micro)
	}
	return o
}

// weight returns a parameter as a device computes with it: an array, or columns of its unit's matrix.
func (b *build) weight(at int) *graph.Node {
	if !b.flat {
		return b.number(cellSlot, b.weights[at])
	}
	u := b.unitOf[at]
	return b.view(b.get(b.slotOf(step.Value{Held: step.Full, Unit: u.number})), at)
}

func (b *build) forward(op step.Op) {
	in := valueOf(step.Input, op.Block, op.Micro)
	x := b.waits(b.get(in))
	if b.serial && op.Block == 0 { // after the previous micro-batch
		x = after(x, b.last)
	}
	if op.Kind == step.Recompute { // or the compiler would reuse the first result
		x = after(x, cmp.Or(b.last, b.get(valueOf(step.OutGrad, op.Block, op.Micro))))
	}
	part := valueOf(step.Part, op.Block, op.Micro)
	// Computed together with the input, or the compiler would keep the input until then.
	if op.Kind == step.Forward && slices.Contains(b.parts, part) {
		held := residual.Hold(b.Shards.Axis, x, residual.Shard(x, b.Shards.Axis))
		x = held[0]
		b.put(part, held[1:]...)
	}
	b.put(in, x)
	y, saved := b.passes.Forward(op.Block, b.operands(op))
	b.put(valueOf(step.Saved, op.Block, op.Micro), saved...)
	if op.Block == len(b.plan.Blocks)-1 {
		if op.Kind == step.Forward {
			b.put(slot{kind: lossSlot, number: op.Micro}, b.meanOver(y))
		}
	} else {
		b.put(valueOf(step.Input, op.Block+1, op.Micro), y)
	}
	b.last = y
}

// gatherInput gathers the input of a block from the devices' shards, after the last pass.
func (b *build) gatherInput(op step.Op) {
	part, axis := b.get(valueOf(step.Part, op.Block, op.Micro)), b.Shards.Axis
	if b.last != nil {
		out := valueOf(step.OutGrad, op.Block, op.Micro)
		held := residual.Hold(axis, part, b.last)
		if b.get(out) == b.last { // or the input would be gathered before the gradient is there
			b.put(out, held[1])
		}
		part, b.last = held[0], held[1]
	}
	b.put(valueOf(step.Input, op.Block, op.Micro), residual.Gather(part, b.sizes.blocks[op.Block].x, axis))
}

// meanOver returns the mean, or the sum if losses are sums, over the devices with different examples or tokens.
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

// scaling returns the states of loss scaling.
func (b *build) scaling() (state []*graph.Node) {
	for _, i := range b.scalingCells() {
		state = append(state, b.number(cellSlot, i))
	}
	return state
}

func (b *build) backward(op step.Op) {
	from := valueOf(step.OutGrad, op.Block, op.Micro)
	if b.get(from) == nil { // the backward pass starts with the loss
		from.value.Held = step.Input
	}
	b.put(from, b.waits(b.get(from)))
	outGrad := b.get(valueOf(step.OutGrad, op.Block, op.Micro))
	o := b.operands(op)
	saved := b.has[valueOf(step.Saved, op.Block, op.Micro)]
	var scaling []*graph.Node
	if op.Block == len(b.plan.Blocks)-1 {
		scaling = b.scaling()
	}
	var x *graph.Node
	var grads []*graph.Node
	switch op.Kind {
	case step.Backward:
		x, grads = b.passes.Backward(op.Block, o, saved, outGrad, scaling)
	case step.InputGrad:
		var forWeights []*graph.Node
		x, forWeights = b.passes.BackwardInput(op.Block, o, saved, outGrad, scaling)
		b.put(valueOf(step.ForWeightGrad, op.Block, op.Micro), forWeights...)
	default:
		forWeights := b.has[valueOf(step.ForWeightGrad, op.Block, op.Micro)]
		grads = b.passes.BackwardWeights(op.Block, o, saved, outGrad, scaling, forWeights)
	}
	if x != nil {
		b.put(valueOf(step.OutGrad, op.Block-1, op.Micro), x)
		b.last = x
	}
	for k, at := range b.blockParams[op.Block] {
		if grads == nil || b.idle[at] {
			continue
		}
		s := b.sumOf(slot{kind: sumSlot, number: b.unitOf[at].number})
		grad := grads[k]
		if n := b.summands(); n > 1 && b.scalesEarly() {
			grad = scaled(grad, graph.Const(b.g, float32(1/float64(n))))
		}
		s.added[at] = plus(s.added[at], graph.ConvertDType(grad, b.policy.Reduce))
		if x == nil {
			b.last = s.added[at]
		}
	}
}

// waits makes a value wait for what the next pass waits for.
func (b *build) waits(x *graph.Node) *graph.Node {
	x = after(x, b.hold...)
	b.hold = nil
	return x
}

// sum is the accumulated gradients of a unit: a matrix from outside the segment, and what is added, by parameter.
type sum struct {
	matrix *graph.Node
	added  map[int]*graph.Node
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

// part returns a parameter's accumulated gradient.
func (b *build) part(x slot, at int) *graph.Node {
	s := b.sumOf(x)
	added := s.added[at]
	switch {
	case b.idle[at] || s.matrix == nil && added == nil: // no gradient: the loss does not depend on it
		return graph.Zeros(b.g, shapes.Make(b.policy.Reduce, b.tree[at].Shape.Dimensions...))
	case s.matrix == nil:
		return added
	case added == nil:
		return b.view(s.matrix, at)
	}
	return b.addedTo(b.view(s.matrix, at), at, added)
}

// joined returns the matrix of a unit's accumulated gradients.
func (b *build) joined(x slot) *graph.Node {
	var all []*graph.Node
	for _, at := range b.units[x.number].members {
		all = append(all, b.columns(at, b.part(x, at)))
	}
	return concatenate(all, 1)
}

// addedTo accumulates a parameter's gradient, unless it is the first.
func (b *build) addedTo(before *graph.Node, at int, fresh *graph.Node) *graph.Node {
	if slices.Contains(b.io.begins, at) {
		return fresh
	}
	return graph.Add(before, fresh)
}

// matrix returns a unit's accumulated gradients as they are passed between segments. The columns of parameters are an
// argument of the program, so blocks of one kind share it.
func (b *build) matrix(x slot) *graph.Node {
	s, u := b.sums[x], b.units[x.number]
	if s.matrix == nil {
		return b.joined(x)
	}
	if s.matrix.Rank() == 1 { // a shard
		return s.matrix
	}
	matrix := s.matrix
	for k, at := range b.io.touched {
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

// reduce reduces a unit's gradients over the rank's devices: an all-reduce, or a reduce-scatter.
func (b *build) reduce(op step.Op) {
	from, to := slot{kind: sumSlot, number: op.Unit}, slot{kind: reducedSlot, number: op.Unit}
	u, axes := b.units[op.Unit], axisNames(op.Axis)
	if u.size == 0 {
		return // the loss depends on none of its parameters
	}
	if u.Reduce[0] != op.Axis {
		from = to
	}
	if op.Axis == u.Shard {
		shard := collective.ReduceScatter(b.joined(from), collective.Sum, 0, axes...)
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

// wait makes the next pass wait for an operation's result.
func (b *build) wait(op step.Op) {
	switch op.Of {
	case step.Gather:
		b.hold = append(b.hold, b.has[b.slotOf(step.Value{Held: step.Full, Unit: op.Unit})]...)
	case step.Reduce:
		s := b.sums[slot{kind: reducedSlot, number: op.Unit}]
		if s == nil {
			return
		}
		b.hold = append(b.hold, s.matrix)
		for _, at := range b.units[op.Unit].members {
			b.hold = append(b.hold, s.added[at])
		}
	}
}

func concatenate(all []*graph.Node, axis int) *graph.Node {
	if len(all) == 1 {
		return all[0]
	}
	return graph.Concatenate(all, axis)
}

// summed returns a parameter's gradient, summed over all micro-batches and ranks, or the rank's shard of it.
func (b *build) summed(at int) *graph.Node {
	u := b.unitOf[at]
	x := slot{kind: reducedSlot, number: u.number}
	if len(u.Reduce) == 0 {
		x.kind = sumSlot
	}
	if s := b.sums[x]; s != nil && s.matrix != nil && s.matrix.Rank() == 1 {
		return b.cut(s.matrix, at)
	}
	if b.flat { // updates on the host without shards
		return graph.Reshape(b.columns(at, b.part(x, at)), b.lengths[at])
	}
	return b.part(x, at)
}

// scaled returns x, of any floating-point type, times a float32 scalar. Means are sums times 1/n: compilers turn a
// quotient into a division or a multiplication, and programs would differ in bits.
func scaled(x, factor *graph.Node) *graph.Node {
	return graph.ConvertDType(graph.Mul(graph.ConvertDType(x, dtypes.Float32), factor), x.DType())
}
