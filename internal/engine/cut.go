package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

// declare declares the axes between ranks in a graph that is built only for its shapes or text.
func (c *common) declare(g *graph.Graph) {
	for _, a := range c.inside {
		collective.Between(g, a.Name, a.Size, graph.Const(g, int32(0)))
	}
}

// textOf is xla.Backend.Text for functions that may use the axes between ranks.
func (r *Rank) textOf(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (string, error) {
	return r.backend.Text(func(in []*graph.Node) []*graph.Node {
		r.declare(in[0].Graph())
		return fn(in)
	}, in...)
}

// cutProgram is a pass during which ranks exchange tensors: several programs.
type cutProgram struct {
	*xla.Segments
	programs []program
	outputs  int
	apart    xla.Placement // of carried and received tensors, which differ on each device
}

// Call fails: use [play.runCut], which has the group.
func (c *cutProgram) Call(...any) ([]*dtensor.Tensor, error) {
	return nil, errors.New("engine: a program with exchanges between ranks cannot run by itself")
}

// compileCut compiles a function that may exchange tensors with other ranks.
func (d *devices) compileCut(key string, fn func(in []*graph.Node) []*graph.Node, in []shapes.Shape, l layout,
	apart xla.Placement) (program, error) {
	cut, err := xla.NewSegments(d.mesh, fn, in...)
	if err != nil {
		return nil, err
	}
	if len(cut.Shifts) == 0 {
		return d.compile(key, fn, l)
	}
	c := &cutProgram{Segments: cut, programs: make([]program, len(cut.Programs)), outputs: len(l.out), apart: apart}
	for k, of := range cut.Programs {
		var own layout
		for i, ref := range of.In {
			on := apart
			if ref.Kind == xla.RefInput {
				on = l.in[ref.Number]
				if slices.Contains(l.donated, ref.Number) && !cut.Takes(k+1, ref) {
					own.donated = append(own.donated, i)
				}
			}
			own.in = append(own.in, on)
		}
		for _, ref := range of.Out {
			on := apart
			if ref.Kind == xla.RefOutput {
				on = l.out[ref.Number]
			}
			own.out = append(own.out, on)
		}
		if c.programs[k], err = d.compile(fmt.Sprint(key, " part ", k), cut.Program(k), own); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// exchange is a shift under way.
type exchange struct {
	*arrival
	of             *dtensor.Tensor // sent
	from           *memory         // of it
	sent, received *group.Pending
	done           chan struct{} // closed when the tensor is received
	ended          bool
}

// runCut runs the programs in order. A shift starts as soon as its operand is there, overlaps with the next programs,
// and is waited for by the first program that uses the received tensor. Name is the pass's, for the trace.
func (p *play) runCut(c *cutProgram, name string, args []any) (out []*dtensor.Tensor, err error) {
	has, begun := map[xla.Ref]*dtensor.Tensor{}, make([]*exchange, len(c.Shifts))
	out = make([]*dtensor.Tensor, c.outputs)
	defer func() {
		if err != nil {
			p.cancel(err) // ends the shifts under way
			err, out = errors.Join(err, p.arrays.release(out...)), nil
		}
		for n, e := range begun {
			if late := p.endShift(c, n, e, has); err == nil {
				err = late
			}
		}
		for _, t := range has {
			err = errors.Join(err, p.arrays.release(t))
		}
	}()
	next := 0 // shift
	for k, of := range c.Programs {
		for ; next < len(c.Shifts) && c.Shifts[next].Before == k; next++ {
			of := c.Shifts[next].Of
			if of.Kind == xla.RefReceived {
				if err := p.endShift(c, of.Number, begun[of.Number], has); err != nil {
					return out, err
				}
			}
			if begun[next], err = p.beginShift(c, next, has[of]); err != nil {
				return out, err
			}
		}
		var in []any
		for _, ref := range of.In {
			if ref.Kind == xla.RefInput {
				in = append(in, args[ref.Number])
				continue
			}
			if ref.Kind == xla.RefReceived {
				if err := p.endShift(c, ref.Number, begun[ref.Number], has); err != nil {
					return out, err
				}
			}
			in = append(in, has[ref])
		}
		end := p.span(trace.Compute, name)
		made, err := p.run(c.programs[k], in...)
		end()
		if err != nil {
			return out, err
		}
		for i, ref := range of.Out {
			if ref.Kind == xla.RefOutput {
				out[ref.Number] = made[i]
				continue
			}
			p.arrays.add(memest.Activations, made[i])
			has[ref] = made[i]
		}
		for ref, t := range has {
			sending := func(e *exchange) bool { return e != nil && !e.ended && e.of == t }
			if c.Takes(k+1, ref) || slices.ContainsFunc(begun, sending) {
				continue
			}
			if err := p.arrays.release(t); err != nil {
				return out, err
			}
			delete(has, ref)
		}
	}
	return out, nil
}

// beginShift starts to send x to another rank, and to receive a tensor of the same shape.
func (p *play) beginShift(c *cutProgram, n int, x *dtensor.Tensor) (*exchange, error) {
	shift := c.Shifts[n]
	g := p.groups[shift.Axis]
	ranks := g.Size()
	to, from := ((g.Rank()+shift.By)%ranks+ranks)%ranks, ((g.Rank()-shift.By)%ranks+ranks)%ranks
	e := &exchange{of: x, done: make(chan struct{})}
	var err error
	if e.from, err = p.memoryOf(x); err != nil {
		return nil, err
	}
	if e.arrival, err = p.expect(memest.Communication, x.Shape(), c.apart, nil); err != nil {
		return nil, errors.Join(err, p.arrays.release(e.into))
	}
	p.traffic.sent[shift.Axis] += x.Shape().ByteSize()
	end := p.span(trace.Send, shift.String())
	e.sent = p.start(g, group.Call{Kind: group.KindSend, Type: e.from.kind, Peer: to, In: e.from.buffer})
	e.received = p.start(g, group.Call{Kind: group.KindRecv, Type: e.to.kind, Peer: from, Out: e.to.buffer})
	go func() {
		<-e.received.Done()
		end()
		close(e.done)
	}()
	return e, nil
}

// endShift waits for a shift, and stores the received tensor.
func (p *play) endShift(c *cutProgram, n int, e *exchange, has map[xla.Ref]*dtensor.Tensor) error {
	if e == nil || e.ended {
		return nil
	}
	end := p.span(trace.Wait, c.Shifts[n].Shift.String())
	err := errors.Join(e.sent.Wait(), e.received.Wait())
	<-e.done
	end()
	e.ended = true
	if err == nil {
		e.into, err = p.received(e.arrival)
	}
	if e.into != nil {
		has[xla.Ref{Kind: xla.RefReceived, Number: n}] = e.into
	}
	if err != nil {
		return fmt.Errorf("in the exchange %v: %w", c.Shifts[n].Shift, p.within(step.Op{Axis: c.Shifts[n].Axis}, err))
	}
	return nil
}
