package offload

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/train"
)

// going is one step as it goes on.
type going struct {
	*Run
	ctx     context.Context // ends waiting; until the first update begins, the caller's
	pace    context.Context // ends simulated slowness: the caller's
	leaving []*transfer     // begun and not waited for, the oldest first
	grads   map[int][]*dtensor.Tensor
	changed bool // an update has begun
}

// Step trains on one batch, and returns its mean loss before the update, in nats. The tensors are copied; they are what
// the first block and the criterion take.
//
// A context that is cancelled before the first block is updated, which is the last of the chain, ends the step with the
// context's error, and the run stands where it stood. After that the step is carried to its end, without simulated
// slowness, and is none the worse. So it is with any other error: before the first update the run stands where it stood;
// after it, it is lost, as the message says, and holds no memory any more.
func (r *Run) Step(ctx context.Context, inputs, targets *tensors.Tensor) (loss float64, err error) {
	if r.lost != nil {
		return 0, r.lost
	}
	r.held.newPeak()
	s := &going{Run: r, ctx: ctx, pace: ctx, grads: map[int][]*dtensor.Tensor{}}
	loss, err = s.run(inputs, targets)
	if err = s.finish(err); err == nil {
		r.steps++
		return loss, nil
	}
	if s.changed {
		r.lose(err)
		return 0, r.lost
	}
	return 0, err
}

// run is the step but for what goes on in the background.
func (s *going) run(inputs, targets *tensors.Tensor) (loss float64, err error) {
	if inputs == nil || targets == nil {
		return 0, errors.New("offload: the inputs or the targets are nil: give both")
	}
	if err := train.CheckBatch(s.passes.Model, inputs, targets); err != nil {
		return 0, err
	}
	if err := s.kinds.Check(s.mesh.Backend().Text, s.passes, inputs.Shape()); err != nil {
		return 0, err
	}
	input, err := s.place(Activations, inputs)
	if err != nil {
		return 0, err
	}
	x := input[0]
	last := len(s.stages) - 1
	for i := range last {
		if x, err = s.forward(i, x); err != nil {
			return 0, err
		}
	}
	target, err := s.place(Batch, targets)
	if err != nil {
		return 0, err
	}
	above := target[0] // what a block's backward pass takes from above
	for i := last; i >= 0; i-- {
		if i < last {
			if x, err = s.collect(i); err != nil {
				return 0, err
			}
		}
		if err := s.ahead(i); err != nil {
			return 0, err
		}
		var out []*dtensor.Tensor
		if out, err = s.backward(i, x, above); err != nil {
			return 0, err
		}
		if i == last {
			flat, err := tensors.CopyFlatData[float32](out[0].Shards()[0])
			if err := errors.Join(err, s.held.free(out[0])); err != nil {
				return 0, err
			}
			loss, out = float64(flat[0]), out[1:]
		}
		if i > 0 {
			above, out = out[0], out[1:]
		}
		for k, at := range s.stages[i].params {
			s.grads[at] = append(s.grads[at], out[k])
		}
		if err := s.update(i); err != nil {
			return 0, err
		}
	}
	return loss, nil
}

// forward computes a block and puts its input away. The input leaves when the block is done with it, while the next one
// computes.
func (s *going) forward(i int, x *dtensor.Tensor) (*dtensor.Tensor, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	st := s.stages[i]
	out, err := s.call("forward "+st.Name, st.forward, append(pick(s.weights, st.params), x), Activations)
	if err != nil {
		return nil, err
	}
	t, err := s.acts.put(s.pace, st.Name, x)
	return out[0], errors.Join(err, s.leave(t))
}

// collect waits for the input of a block.
func (s *going) collect(i int) (*dtensor.Tensor, error) {
	xs, err := s.acts.get(s.ctx, s.pace, s.stages[i].Name)
	if err != nil {
		return nil, err
	}
	return xs[0], nil
}

// ahead begins to bring what will be needed after the backward pass of block i has begun: the states for its update, then
// inputs and states of the blocks below it.
func (s *going) ahead(i int) error {
	if s.options.Prefetch == 0 {
		return nil
	}
	for below := range 1 + min(i, s.options.Prefetch) {
		if below > 0 {
			if err := s.acts.Prefetch(s.pace, s.stages[i-below].Name); err != nil {
				return err
			}
		}
		if err := s.updater.ahead(s.pace, i-below); err != nil {
			return err
		}
	}
	return nil
}

// backward computes a block's gradients, and frees what they were computed from.
func (s *going) backward(i int, x, above *dtensor.Tensor) ([]*dtensor.Tensor, error) {
	st := s.stages[i]
	var kinds []Kind
	if i == len(s.stages)-1 {
		kinds = append(kinds, Batch)
	}
	if i > 0 {
		kinds = append(kinds, Activations)
	}
	out, err := s.call("backward "+st.Name, st.backward, append(pick(s.weights, st.params), x, above), append(kinds, Gradients)...)
	return out, errors.Join(err, s.held.free(x, above))
}

// update updates a block.
func (s *going) update(i int) error {
	home := s.stages[i].home
	if len(home) == 0 {
		return nil
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	s.changed, s.ctx = true, context.WithoutCancel(s.ctx)
	u := blockUpdate{block: i, step: int32(s.steps + 1), pace: s.pace}
	for _, at := range home {
		u.grads = append(u.grads, s.grads[at])
	}
	t, err := s.updater.update(s.ctx, u)
	return errors.Join(err, s.leave(t))
}

// leave waits until no more than the permitted number of transfers is under way, with a new one.
func (s *going) leave(t *transfer) error {
	if t != nil {
		s.leaving = append(s.leaving, t)
	}
	for len(s.leaving) > s.options.Prefetch {
		oldest := s.leaving[0]
		if err := oldest.wait(s.ctx); err != nil {
			return err
		}
		s.leaving = s.leaving[1:]
	}
	return nil
}

// finish waits for what is under way. After an error it frees what the step made, and all is where it was before.
func (s *going) finish(err error) error {
	for _, t := range s.leaving {
		if e := t.wait(context.WithoutCancel(s.ctx)); !errors.Is(err, e) { // it may have ended the step
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		err = errors.Join(err, s.acts.Close(), s.updater.retreat(s.pace))
	}
	if err = errors.Join(err, s.held.freeKinds(Activations, Gradients, Batch)); err != nil {
		return fmt.Errorf("offload: step %d: %w", s.steps, err)
	}
	return nil
}
