package pipeline

import (
	"context"
	"errors"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// worker is a rank in a step: it implements [Worker].
type worker struct {
	*Rank
	sizes   []sizes // by block
	parts   []rank.MicroBatch
	stashed map[place]*stash
	peak    int // the most that were stashed at once
	done    int // actions
	loss    float64
	updated int // stages whose update has come, of those of the rank
}

// Room implements [Worker].
func (w *worker) Room(of schedule.Action) (Message, error) {
	blocks := w.pipeline.Stages[of.Stage]
	if of.Pass == schedule.Forward {
		return w.borrow(w.sizes[blocks[len(blocks)-1]].y)
	}
	return w.borrow(w.sizes[blocks[0]].x)
}

// Compute implements [Worker].
func (w *worker) Compute(ctx context.Context, a schedule.Action, version int, in Message) (out Message, err error) {
	defer func() {
		w.forget(w.done) // versions that no later action needs
		w.done++
	}()
	given, _ := in.(*borrowed)
	at := place{a.Stage, a.Microbatch}
	switch a.Pass {
	case schedule.Forward:
		return w.forward(at, version, given)
	case schedule.Backward:
		return w.backward(at, given)
	case schedule.InputGrad:
		return w.inputGrad(at, given)
	case schedule.WeightGrad:
		return nil, w.weightGrad(at)
	}
	if w.updated++; w.updated < w.stages() {
		return nil, nil // the rank's stages are updated together
	}
	w.updated = 0
	return nil, w.update(ctx, version, float32(w.loss/float64(len(w.parts))))
}

// forward begins a micro-batch's stash.
func (w *worker) forward(at place, version int, in *borrowed) (Message, error) {
	s := &stash{in: in, version: version, row: w.parts[at.microbatch].Row}
	w.stashed[at] = s
	w.peak = max(w.peak, len(w.stashed))
	w.count()
	var err error
	if at.stage == 0 {
		s.x, err = w.pipeline.backend.Put(w.parts[at.microbatch].Inputs, w.device)
	} else {
		s.x = in.tensor
	}
	if err == nil && at.stage == len(w.pipeline.Stages)-1 {
		s.targets, err = w.pipeline.backend.Put(w.parts[at.microbatch].Targets, w.device)
	}
	if err != nil {
		return nil, err
	}
	y, err := w.run(at, s)
	if err != nil {
		return nil, err
	}
	if w.pipeline.options.Recompute {
		if err := s.freeBlocks(); err != nil {
			return nil, err
		}
	}
	if at.stage < len(w.pipeline.Stages)-1 {
		return &borrowed{tensor: y}, nil
	}
	w.loss += float64(tensors.ToScalar[float32](y))
	return nil, y.FinalizeAll()
}

// run computes a stage, fills the stash, and returns the output.
func (w *worker) run(at place, s *stash) (y *tensors.Tensor, err error) {
	x := s.x
	for k, i := range w.pipeline.Stages[at.stage] {
		out, err := w.pipeline.blocks[i].forward.Call(w.device, w.operands(i, s, x)...)
		if err != nil {
			if k > 0 {
				err = errors.Join(err, rank.Free(x))
			}
			return nil, err
		}
		s.blocks = append(s.blocks, kept{x: x, own: k > 0, kept: out[1:]})
		x = out[0]
	}
	return x, nil
}

// operands are those of a block's programs.
func (w *worker) operands(i int, s *stash, x *tensors.Tensor) (args []any) {
	for _, at := range w.pipeline.blocks[i].params {
		args = append(args, w.weights[s.version][w.local[at]])
	}
	args = append(args, x)
	if w.pipeline.model.Noisy {
		args = append(args, int32(w.steps), s.row)
	}
	if w.pipeline.last(i) {
		args = append(args, s.targets)
	}
	return args
}

// again is the stash of a micro-batch, with what was not kept computed again.
func (w *worker) again(at place) (*stash, error) {
	s := w.stashed[at]
	if s == nil {
		return nil, errors.New("nothing is stashed: a forward pass must come first")
	}
	if len(s.blocks) > 0 {
		return s, nil
	}
	y, err := w.run(at, s)
	if err != nil {
		return nil, err
	}
	return s, y.FinalizeAll()
}

// backward ends a micro-batch's stash.
func (w *worker) backward(at place, in *borrowed) (Message, error) {
	s, err := w.again(at)
	if err != nil {
		return nil, errors.Join(err, in.Free())
	}
	above := in
	for k := len(s.blocks) - 1; k >= 0; k-- {
		i, b := w.pipeline.Stages[at.stage][k], &s.blocks[k]
		b.above = above.on()
		x, err := w.both(i, s, b)
		if err := errors.Join(err, above.Free(), b.free()); err != nil {
			return nil, errors.Join(err, rank.Free(x))
		}
		above = &borrowed{tensor: x}
	}
	return above.message(at), w.drop(at)
}

// both is the backward pass of a block, whose parts are two programs unless they are to be one.
func (w *worker) both(i int, s *stash, b *kept) (x *tensors.Tensor, err error) {
	if w.pipeline.options.Fused {
		return w.add(w.pipeline.blocks[i].backward, i, s, b, i > 0)
	}
	if i > 0 {
		if x, err = w.toInput(i, s, b); err != nil {
			return x, err
		}
	}
	return x, w.toWeights(i, s, b)
}

// toInput returns the gradient of a block's input, and keeps what toWeights needs.
func (w *worker) toInput(i int, s *stash, b *kept) (*tensors.Tensor, error) {
	args := append(w.toward(i, b.above), w.operands(i, s, b.x)...)
	out, err := w.pipeline.blocks[i].input.Call(w.device, appendAll(args, b.kept)...)
	if err != nil {
		return nil, err
	}
	b.left = out[1:]
	return out[0], nil
}

// toWeights adds up the gradients of a block's parameters.
func (w *worker) toWeights(i int, s *stash, b *kept) error {
	program := w.pipeline.blocks[i].weights
	if program == nil {
		return nil
	}
	_, err := w.add(program, i, s, b, false)
	return err
}

// inputGrad is the first part of a backward pass. What the second needs stays.
func (w *worker) inputGrad(at place, in *borrowed) (Message, error) {
	s, err := w.again(at)
	if err != nil {
		return nil, errors.Join(err, in.Free())
	}
	s.above = in
	above := in.on()
	for k := len(s.blocks) - 1; k >= 0; k-- {
		i, b := w.pipeline.Stages[at.stage][k], &s.blocks[k]
		b.above = above
		if i == 0 {
			return nil, nil
		}
		var err error
		if above, err = w.toInput(i, s, b); err != nil {
			return nil, err
		}
	}
	return &borrowed{tensor: above}, nil
}

// weightGrad is the second part, and ends the stash.
func (w *worker) weightGrad(at place) error {
	s := w.stashed[at]
	for k := len(s.blocks) - 1; k >= 0; k-- {
		i, b := w.pipeline.Stages[at.stage][k], &s.blocks[k]
		if err := w.toWeights(i, s, b); err != nil {
			return err
		}
		if k < len(s.blocks)-1 { // above the last block is the message
			if err := rank.Free(b.above); err != nil {
				return err
			}
		}
		if err := b.free(); err != nil {
			return err
		}
	}
	return w.drop(at)
}

// add runs a program that adds gradients up, and returns the gradient of the input, where there is one.
func (w *worker) add(program rank.Program, i int, s *stash, b *kept, input bool) (x *tensors.Tensor, err error) {
	sums, err := w.sumsOf(i)
	if err != nil {
		return nil, err
	}
	some := int32(0)
	if w.some[i] {
		some = 1
	}
	args := append(appendAll(nil, sums), some)
	args = append(append(args, w.toward(i, b.above)...), w.operands(i, s, b.x)...)
	out, err := program.Call(w.device, appendAll(args, b.kept, b.left)...)
	if err != nil {
		return nil, err
	}
	if input {
		x, out = out[0], out[1:]
	}
	if len(sums) > 0 {
		w.sums[i], w.some[i] = out, true
		return x, nil
	}
	return x, rank.Free(out...)
}

// toward is what the backward pass of a block begins with.
func (w *worker) toward(i int, above *tensors.Tensor) (args []any) {
	if !w.pipeline.last(i) {
		return []any{above}
	}
	return appendAll(nil, w.scaling())
}

func appendAll(args []any, lists ...[]*tensors.Tensor) []any {
	for _, values := range lists {
		for _, v := range values {
			args = append(args, v)
		}
	}
	return args
}

// drop ends a stash.
func (w *worker) drop(at place) error {
	s := w.stashed[at]
	delete(w.stashed, at)
	w.count()
	return s.free()
}

func (w *worker) count() {
	w.pipeline.options.Trace.Count(w.world.Rank(), "stashed activations", int64(len(w.stashed)))
}
