package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

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

// Call fails: use [cutRun], which has the group.
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
	if len(cut.Exchanges) == 0 {
		return d.compile(key, fn, l)
	}
	one := func(e xla.Exchanged) bool { return e.Kind != xla.Permute }
	if i := slices.IndexFunc(cut.Exchanges, one); i >= 0 && d.mesh.NumDevices() > 1 {
		return nil, fmt.Errorf("engine: the exchange %v is between ranks of one device each, and these have %d",
			cut.Exchanges[i].Exchange, d.mesh.NumDevices())
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

// exchange is one under way.
type exchange struct {
	*arrival
	of    *dtensor.Tensor // sent
	from  *memory         // of it
	calls []*group.Pending
	done  chan struct{} // closed when the tensor is received
	turn  int           // in which it began
	ended bool
}

// cutRun is a pass with exchanges while it runs. An exchange starts as soon as its operands are there, overlaps with
// the next programs, and is waited for by the first program that uses the received tensor.
type cutRun struct {
	*play
	c        *cutProgram
	name     string        // of the pass, for the trace
	least    time.Duration // of a program
	args     []any
	has      map[xla.Ref]*dtensor.Tensor
	begun    []*exchange
	out      []*dtensor.Tensor
	at, turn int // the next program, the number of turns
}

func (p *play) startCut(c *cutProgram, s *segment, args []any) *cutRun {
	name := p.plan.Text(firstPass(p.plan.Ranks[p.own.rank][s.from:s.to]))
	return &cutRun{play: p, c: c, name: name, least: p.minTime(s) / time.Duration(len(c.Programs)), args: args,
		has: map[xla.Ref]*dtensor.Tensor{}, out: make([]*dtensor.Tensor, c.outputs)}
}

// takeTurn runs programs in order, until it needs a tensor whose exchange began in this turn: what happens when depends
// on no clock. It reports whether the pass goes on.
func (r *cutRun) takeTurn() (more bool, err error) {
	c := r.c
	for r.turn++; r.at < len(c.Programs); r.at++ {
		for len(r.begun) < len(c.Exchanges) && c.Exchanges[len(r.begun)].Before == r.at {
			x := c.Exchanges[len(r.begun)]
			if there, err := r.receive(x.Of); err != nil || !there {
				return true, err
			}
			var operands []*dtensor.Tensor
			for _, ref := range x.Of {
				operands = append(operands, r.has[ref])
			}
			e, err := r.beginExchange(c, x.Exchange, operands)
			if err != nil {
				return false, err
			}
			e.turn, r.begun = r.turn, append(r.begun, e)
		}
		if there, err := r.receive(c.Programs[r.at].In); err != nil || !there {
			return true, err
		}
		if err := r.runNext(); err != nil {
			return false, err
		}
	}
	return false, nil
}

// receive waits for the tensors that are received of these, and reports false, without waiting, if any of their
// exchanges began in this turn.
func (r *cutRun) receive(refs []xla.Ref) (there bool, err error) {
	for _, wait := range []bool{false, true} {
		for _, ref := range refs {
			if ref.Kind != xla.RefReceived || r.begun[ref.Number].ended {
				continue
			}
			if r.begun[ref.Number].turn == r.turn {
				return false, nil
			}
			if wait {
				err = errors.Join(err, r.endExchange(ref.Number))
			}
		}
	}
	return true, err
}

// runNext runs the next program, and frees what no later one needs.
func (r *cutRun) runNext() error {
	of, start := r.c.Programs[r.at], time.Now()
	var in []any
	for _, ref := range of.In {
		if ref.Kind == xla.RefInput {
			in = append(in, r.args[ref.Number])
		} else {
			in = append(in, r.has[ref])
		}
	}
	end := r.span(trace.Compute, r.name)
	made, err := r.run(r.c.programs[r.at], in...)
	if err == nil && r.least > 0 {
		err = sleepUntil(r.ctx, start.Add(r.least))
	}
	end()
	for i, ref := range of.Out[:len(made)] {
		if ref.Kind == xla.RefOutput {
			r.out[ref.Number] = made[i]
			continue
		}
		r.arrays.add(memest.Activations, made[i])
		r.has[ref] = made[i]
	}
	if err != nil {
		return err
	}
	for ref, t := range r.has {
		sending := func(e *exchange) bool { return !e.ended && e.of == t }
		if r.c.Takes(r.at+1, ref) || slices.ContainsFunc(r.begun, sending) {
			continue
		}
		if err := r.arrays.release(t); err != nil {
			return err
		}
		delete(r.has, ref)
	}
	return nil
}

// finish ends the exchanges under way and frees all but the results; if the pass has failed, these too.
func (r *cutRun) finish(failed error) (err error) {
	if failed != nil {
		r.cancel(failed) // ends the exchanges under way
	}
	for n := range r.begun {
		if late := r.endExchange(n); failed == nil {
			err = errors.Join(err, late)
		}
	}
	if failed != nil || err != nil {
		err = errors.Join(err, r.arrays.release(r.out...))
	}
	for _, t := range r.has {
		err = errors.Join(err, r.arrays.release(t))
	}
	return err
}

// beginExchange starts to send a tensor, or parts of it, to other ranks, and to receive one.
func (p *play) beginExchange(c *cutProgram, x xla.Exchange, of []*dtensor.Tensor) (e *exchange, err error) {
	full := of[0].Shape().Clone()
	g := p.groups[x.Axis]
	ranks := g.Size()
	var give, take []int
	if x.Kind == xla.AllToAllV {
		give, err = p.rowsOf(of[1], ranks, full.Dimensions[0])
		if err == nil {
			take, err = p.rowsOf(of[2], ranks, x.Rows)
		}
		if err != nil {
			return nil, p.during(x, err)
		}
		full.Dimensions[0] = x.Rows
	}
	e = &exchange{of: of[0], done: make(chan struct{})}
	if e.from, err = p.memoryOf(e.of); err != nil {
		return nil, err
	}
	if e.arrival, err = p.expect(memest.Communication, full, c.apart, nil); err != nil {
		return nil, errors.Join(err, p.arrays.release(e.into))
	}
	in, out, kind := e.from.buffer, e.to.buffer, e.from.kind
	own := 0 // elements that stay on the rank
	var calls []group.Call
	switch x.Kind {
	case xla.Permute:
		to, from := ((g.Rank()+x.By)%ranks+ranks)%ranks, ((g.Rank()-x.By)%ranks+ranks)%ranks
		calls = []group.Call{{Kind: group.KindSend, Type: kind, Peer: to, In: in},
			{Kind: group.KindRecv, Type: kind, Peer: from, Out: out}}
	case xla.AllToAll:
		calls, own = []group.Call{{Kind: group.KindAllToAll, Type: kind, In: in, Out: out}}, in.Len/ranks
	case xla.AllToAllV:
		var rest group.Buffer
		in, _ = front(in, kind, give, in.Len/e.of.Shape().Dimensions[0])
		out, rest = front(out, kind, take, out.Len/x.Rows)
		clear(unsafe.Slice((*byte)(rest.Data), rest.Len*kind.Size()))
		calls, own = []group.Call{{Kind: group.KindAllToAll, Type: kind, In: in, Out: out, InCounts: give,
			OutCounts: take}}, give[g.Rank()]
	}
	p.traffic.sent[x.Axis] += int64((in.Len - own) * kind.Size())
	end := p.span(trace.Send, x.String())
	for _, call := range calls {
		e.calls = append(e.calls, p.start(g, x.Axis, call))
	}
	go func() {
		for _, pending := range e.calls {
			<-pending.Done()
		}
		end()
		close(e.done)
	}()
	return e, nil
}

// rowsOf returns the number of rows to or from each rank, from an array of counts, and an error if there are more than
// most.
func (p *play) rowsOf(counts *dtensor.Tensor, ranks, most int) ([]int, error) {
	m, err := p.memoryOf(counts)
	if err != nil {
		return nil, err
	}
	all := unsafe.Slice((*int32)(m.buffer.Data), m.buffer.Len)
	rows, sum := make([]int, ranks), 0
	for i, count := range all {
		if count < 0 {
			return nil, fmt.Errorf("count %d is %d: counts must be at least 0", i, count)
		}
		rows[i*ranks/len(all)] += int(count)
		sum += int(count)
	}
	if sum > most {
		return nil, fmt.Errorf("the counts %v are of %d rows, and there is room for %d: give AllToAllV enough for the "+
			"worst case", all, sum, most)
	}
	return rows, nil
}

// front cuts a buffer after some rows. It turns their numbers into numbers of elements.
func front(b group.Buffer, of group.Type, counts []int, row int) (these, rest group.Buffer) {
	n := 0
	for i := range counts {
		counts[i] *= row
		n += counts[i]
	}
	if these = (group.Buffer{Data: b.Data, Len: n}); n < b.Len { // Go does not like addresses after the end
		rest = group.Buffer{Data: unsafe.Add(b.Data, n*of.Size()), Len: b.Len - n}
	}
	return these, rest
}

// endExchange waits for an exchange, and stores the received tensor.
func (r *cutRun) endExchange(n int) error {
	e, x := r.begun[n], r.c.Exchanges[n].Exchange
	if e.ended {
		return nil
	}
	end := r.span(trace.Wait, x.String())
	var errs []error
	for _, pending := range e.calls {
		errs = append(errs, pending.Wait())
	}
	err := errors.Join(errs...)
	<-e.done
	end()
	e.ended = true
	if err == nil {
		e.into, err = r.received(e.arrival)
	}
	if e.into != nil {
		r.has[xla.Ref{Kind: xla.RefReceived, Number: n}] = e.into
	}
	return r.during(x, err)
}

// during names the exchange in an error.
func (p *play) during(x xla.Exchange, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("in the exchange %v: %w", x, p.within(step.Op{Axis: x.Axis}, err))
}
