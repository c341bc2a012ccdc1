package engine

import (
	"cmp"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

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
