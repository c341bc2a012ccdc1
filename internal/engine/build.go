package engine

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/step"
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
		if place := b.number(ringSlot, 0); place != nil {
			collective.Between(b.g, b.Ring, b.ring, place)
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
	offset, length, shape := b.offset(at), b.length(at), b.tree[at].Shape
	x := graph.Slice(matrix, graph.AxisRange(), graph.AxisRange(offset, offset+length))
	x = graph.Reshape(x, b.shards*length)
	return graph.Reshape(graph.Slice(x, graph.AxisRange(0, shape.Size())), shape.Dimensions...)
}

// columns returns a parameter as columns of its unit's matrix: a row for each shard, padded with zeros.
func (b *build) columns(at int, x *graph.Node) *graph.Node {
	length := b.length(at)
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
