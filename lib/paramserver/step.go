package paramserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/trace"
)

// going is one step of a rank as it goes on: the passes on this goroutine, communication in the background.
type going struct {
	*Rank
	ctx    context.Context
	stream *rank.Stream
	micro  int               // the number of the micro-batch, from 0
	last   bool              // it is the last one
	left   []int             // by bucket: gradients that are still to come in this backward pass
	writes []int             // by parameter: gradients that have come in this step
	busy   []<-chan struct{} // by bucket: closed when it is communicated; nil if it is not being
}

func (r *Rank) newStep(ctx context.Context, micro int) *going {
	n := len(r.buckets)
	return &going{Rank: r, ctx: ctx, stream: rank.NewStream(max(1, n*micro)),
		left: make([]int, n), writes: make([]int, len(r.engine.tree)), busy: make([]<-chan struct{}, n)}
}

// passes makes the forward and backward passes of all micro-batches, and returns the rank's loss.
func (s *going) passes(parts []rank.MicroBatch) (loss float64, err error) {
	for i, p := range parts {
		s.micro, s.last = i, i == len(parts)-1
		clear(s.left)
		for _, places := range s.engine.all {
			for _, at := range places {
				s.left[s.engine.slots[at].bucket]++
			}
		}
		l, err := s.pass(p)
		if err != nil {
			return 0, err
		}
		loss += l
	}
	if !s.engine.options.SumLoss {
		loss /= float64(len(parts))
	}
	return loss, nil
}

// finish waits for what is communicated.
func (s *going) finish() error {
	defer s.span(trace.Wait, "gradients")()
	return s.stream.Finish()
}

// pass is the forward and the backward pass of a micro-batch.
func (s *going) pass(p rank.MicroBatch) (loss float64, err error) {
	var mine []*tensors.Tensor // what is on the device for this pass alone
	defer func() { err = errors.Join(err, rank.Free(mine...)) }()
	hold := func(ts ...*tensors.Tensor) { mine = append(mine, ts...) }
	end := s.span(trace.Copy, "batch")
	x, err := s.engine.backend.Put(p.Inputs, s.device)
	if err != nil {
		return 0, err
	}
	hold(x)
	above, err := s.engine.backend.Put(p.Targets, s.device)
	if err != nil {
		return 0, err
	}
	hold(above)
	end()
	blocks := s.engine.blocks
	inputs, kept := make([]*tensors.Tensor, len(blocks)), make([][]*tensors.Tensor, len(blocks))
	for i, b := range blocks {
		inputs[i] = x
		if i == len(blocks)-1 {
			break
		}
		if err := rank.Ended(s.ctx, s.g); err != nil {
			return 0, err
		}
		end := s.span(trace.Compute, "forward "+b.Name)
		out, err := b.forward.Call(s.device, s.operands(b, x, p.Row)...)
		end()
		if err != nil {
			return 0, fmt.Errorf("forward pass of %s: %w", b.Name, err)
		}
		hold(out...)
		x, kept[i] = out[0], out[1:]
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		if err := rank.Ended(s.ctx, s.g); err != nil {
			return 0, err
		}
		out, err := s.backward(i, inputs[i], above, kept[i], p.Row)
		if err != nil {
			return 0, fmt.Errorf("backward pass of %s: %w", blocks[i].Name, err)
		}
		if i == len(blocks)-1 {
			loss, out = float64(tensors.ToScalar[float32](out[0])), out[1:]
		}
		err = rank.Free(append(kept[i], above, inputs[i])...)
		if i > 0 {
			above = out[0]
			hold(above)
		}
		if err = errors.Join(err, s.ready(i)); err != nil {
			return 0, err
		}
	}
	return loss, nil
}

// operands are what the passes of a block take first.
func (s *going) operands(b *block, x *tensors.Tensor, row uint32) []any {
	var args []any
	for _, at := range b.params {
		args = append(args, s.state[at])
	}
	args = append(args, x)
	if s.engine.model.Noisy {
		args = append(args, int32(s.steps), row)
	}
	return args
}

// backward runs the backward pass of a block, which writes its gradients into the buckets, and returns its other outputs.
func (s *going) backward(i int, x, above *tensors.Tensor, kept []*tensors.Tensor, row uint32) ([]*tensors.Tensor, error) {
	b := s.engine.blocks[i]
	var args []any
	for _, k := range b.buckets {
		if s.busy[k] != nil { // by the last micro-batch's gradients
			end := s.span(trace.Wait, "bucket")
			<-s.busy[k]
			end()
			s.busy[k] = nil
		}
		args = append(args, s.buckets[k])
	}
	offsets, adds := make([]int32, len(b.params)), make([]int32, len(b.params))
	for k, at := range b.params {
		offsets[k] = int32(s.engine.slots[at].offset)
		if s.writes[at]++; s.writes[at] > 1 {
			adds[k] = 1
		}
	}
	args = append(args, offsets, adds, above)
	args = append(args, s.operands(b, x, row)...)
	for _, t := range kept {
		args = append(args, t)
	}
	end := s.span(trace.Compute, "backward "+b.Name)
	out, err := b.backward.Call(s.device, args...)
	end()
	if err != nil {
		return nil, err
	}
	n := len(out) - len(b.buckets)
	for j, k := range b.buckets {
		s.buckets[k] = out[n+j]
	}
	return out[:n], nil
}

// ready is called when the gradients of a block are in their buckets: what has all of its gradients goes on its way. This
// is the hook at the end of the backward pass of each block.
func (s *going) ready(i int) error {
	for _, at := range s.engine.all[i] {
		b := s.engine.slots[at].bucket
		if s.left[b]--; s.left[b] > 0 || !s.last {
			continue
		}
		if err := s.push(b); err != nil {
			return err
		}
	}
	return nil
}

// push has the stream give a bucket to its server.
func (s *going) push(b int) error {
	kind, data, err := rank.Memory(s.buckets[b])
	if err != nil {
		return err
	}
	s.busy[b] = s.stream.Add(func() error {
		defer s.span(trace.Send, fmt.Sprintf("bucket %d", b))()
		return s.client.push(b, kind, data)
	})
	return nil
}
