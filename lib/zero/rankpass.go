package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// rankPass is the forward and the backward pass of a micro-batch on a rank, block by block: computing on this goroutine,
// communicating on the stream.
type rankPass struct {
	*Rank
	ctx      context.Context
	stream   *rank.Stream
	batch    rank.MicroBatch
	first    bool // micro-batch of the step
	last     bool // one
	coming   []stay
	guests   []*guest
	gathered int64

	partial  []*tensors.Tensor // by unit: whole gradients that other blocks, still to come, have a part in
	reducing []<-chan struct{} // that have not been waited for
}

// run makes the pass, and returns the loss.
func (p *rankPass) run() (loss float64, err error) {
	var mine []*tensors.Tensor // what is on the device for this pass alone
	defer func() {
		for _, g := range p.guests { // that an error has left
			<-g.there
		}
		p.dismiss(2 * len(p.blocks))
		err = errors.Join(err, rank.Free(mine...), rank.Free(p.partial...))
	}()
	hold := func(ts ...*tensors.Tensor) { mine = append(mine, ts...) }
	end := p.span(trace.Copy, "batch")
	x, err := p.engine.backend.Put(p.batch.Inputs, p.device)
	if err != nil {
		return 0, err
	}
	hold(x)
	above, err := p.engine.backend.Put(p.batch.Targets, p.device)
	if err != nil {
		return 0, err
	}
	hold(above)
	end()
	last := len(p.blocks) - 1
	inputs, kept := make([]*tensors.Tensor, last+1), make([][]*tensors.Tensor, last+1)
	for position := range 2*last + 1 {
		if err := rank.Ended(p.ctx, p.world); err != nil {
			return 0, err
		}
		if err := p.invite(position + p.engine.options.Prefetch); err != nil {
			return 0, err
		}
		i := blockAt(position, last+1)
		units := p.needed(position)
		if position < last {
			inputs[i] = x
			end := p.span(trace.Compute, "forward "+p.blocks[i].Name)
			out, err := p.blocks[i].forward.Call(p.device, p.operands(units, x)...)
			end()
			if err != nil {
				return 0, fmt.Errorf("forward pass of %s: %w", p.blocks[i].Name, err)
			}
			hold(out...)
			if err := p.leave(i, x); err != nil {
				return 0, err
			}
			x, kept[i] = out[0], out[1:]
			p.dismiss(position)
			continue
		}
		args := []any{above}
		if i < last && p.stash != nil {
			if inputs[i], err = p.stash.Get(p.ctx, i); err != nil {
				return 0, err
			}
			hold(inputs[i])
		}
		if i == last {
			inputs[i] = x
			scaling, err := p.scaling()
			if err != nil {
				return 0, err
			}
			args = append(args, scaling...)
		}
		args = append(args, p.operands(units, inputs[i])...)
		for _, k := range kept[i] {
			args = append(args, k)
		}
		end := p.span(trace.Compute, "backward "+p.blocks[i].Name)
		out, err := p.blocks[i].backward.Call(p.device, args...)
		end()
		if err != nil {
			return 0, fmt.Errorf("backward pass of %s: %w", p.blocks[i].Name, err)
		}
		p.dismiss(position)
		if i == last {
			loss = float64(tensors.ToScalar[float32](out[0]))
			hold(out[0])
			out = out[1:]
		}
		if err := rank.Free(append(kept[i], above, inputs[i])...); err != nil {
			return 0, err
		}
		if i > 0 {
			above, out = out[0], out[1:]
			hold(above)
		}
		if len(p.uses[i]) == 0 { // nothing, or what stands for it
			hold(out...)
			continue
		}
		if err := p.arrived(i, out); err != nil {
			return 0, err
		}
	}
	return loss, nil
}

// leave puts the input of a block away until its backward pass, if it is not to stay.
func (p *rankPass) leave(block int, x *tensors.Tensor) error {
	if p.stash == nil {
		return nil
	}
	end := p.span(trace.Copy, "activations to host")
	defer end()
	return p.stash.Put(p.ctx, block, x)
}

// operands are what both passes of a block take.
func (p *rankPass) operands(units []any, x *tensors.Tensor) []any {
	args := append(units, x)
	if p.engine.model.Noisy {
		args = append(args, int32(p.steps), p.batch.Row)
	}
	return args
}

// scaling are the states of the loss scaling, as arguments of a program of the device.
func (p *rankPass) scaling() (args []any, err error) {
	_, scaling, _ := train.Tail(p.engine.recipe, p.held.rest)
	for _, s := range scaling {
		if p.engine.options.Offload { // it is another backend's
			if s, err = s.LocalClone(); err != nil {
				return nil, err
			}
		}
		args = append(args, s)
	}
	return args, nil
}

// arrived takes the whole gradients of a block's units, and has those that are complete reduced.
func (p *rankPass) arrived(block int, grads []*tensors.Tensor) (err error) {
	for k, u := range p.uses[block] {
		whole := grads[k]
		p.memory.add(memest.Communication, whole.Shape().ByteSize())
		if p.partial[u] != nil {
			if whole, err = p.plus(p.partial[u], whole); err != nil {
				return err
			}
		}
		if p.partial[u] = whole; p.units[u].blocks[0] < block {
			continue
		}
		p.partial[u] = nil
		if err := p.take(u, whole); err != nil {
			return err
		}
	}
	return nil
}

// plus adds b to a, and frees b.
func (r *Rank) plus(a, b *tensors.Tensor) (*tensors.Tensor, error) {
	out, err := r.add.Call(r.device, a, b)
	r.memory.add(memest.Communication, -b.Shape().ByteSize())
	if err = errors.Join(err, b.FinalizeAll()); err != nil {
		return nil, err
	}
	return out[0], nil
}
