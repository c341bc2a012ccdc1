package parallel

import (
	"context"
	"errors"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// worker is a rank in a step: it implements pipeline.Worker.
type worker struct {
	*Rank
	parts   []rank.MicroBatch
	stashed map[place]*stash
	loss    float64
	updated int // stages whose update has come, of those of the rank
}

// place says whose passes something is for.
type place struct{ stage, microbatch int }

// stash is what is kept of a micro-batch between the passes of a stage.
type stash struct {
	x, targets *dtensor.Tensor
	above      *dtensor.Tensor   // between the two parts of a backward pass
	kept       []*dtensor.Tensor // nil is to be made again; there may be nothing to keep
	left       []*dtensor.Tensor
	row        uint32
}

func (s *stash) free() error {
	err := errors.Join(free(s.x, s.targets, s.above), free(s.kept...), free(s.left...))
	*s = stash{}
	return err
}

// Room implements [pipeline.Worker].
func (w *worker) Room(of schedule.Action) (pipeline.Message, error) {
	if of.Pass == schedule.Forward {
		return newMessage(w.bounds[of.Stage]), nil
	}
	return newMessage(w.bounds[of.Stage-1]), nil
}

// Compute implements [pipeline.Worker].
func (w *worker) Compute(ctx context.Context, a schedule.Action, _ int, in pipeline.Message) (out pipeline.Message, err error) {
	defer func() {
		if m, ok := out.(*message); ok && leaves(w.player.Schedule, w.at, a) {
			w.traffic.sent[BetweenStages] += int64(len(m.data))
		}
	}()
	at := place{a.Stage, a.Microbatch}
	s := w.programs.stages[a.Stage]
	var given *dtensor.Tensor
	if in != nil {
		if given, err = w.received(in); err != nil {
			return nil, err
		}
	}
	switch a.Pass {
	case schedule.Forward:
		return w.forward(at, s, given)
	case schedule.Update:
		if w.updated++; w.updated < len(w.programs.stages) {
			return nil, nil // the rank's stages are updated together
		}
		return nil, w.makeUpdate(ctx)
	}
	of := w.stashed[at]
	if of == nil {
		return nil, errors.Join(errors.New("nothing is stashed: a forward pass must come first"), free(given))
	}
	if given != nil {
		of.above = given
	}
	if of.kept == nil {
		y, err := w.run(s, of)
		if err := errors.Join(err, free(y)); err != nil {
			return nil, err
		}
	}
	switch a.Pass {
	case schedule.Backward:
		return w.backward(at, s, s.backward, of)
	case schedule.InputGrad:
		if s.input == nil { // the first stage has no input gradient
			return nil, nil
		}
		out, err := w.call(s.input, w.args(s, of, true, nil, of.kept)...)
		if err != nil {
			return nil, err
		}
		of.left = out[1:]
		return w.sent(out[0])
	default:
		program := s.weights
		if program == nil {
			program = s.backward
		}
		return w.backward(at, s, program, of)
	}
}

// received puts a message on the rank's devices.
func (w *worker) received(m pipeline.Message) (*dtensor.Tensor, error) {
	t, err := m.(*message).tensor()
	if err != nil {
		return nil, err
	}
	return w.mesh.Place(t, w.activations())
}

// sent makes a message of what lies on the devices, and frees that.
func (w *worker) sent(on *dtensor.Tensor) (pipeline.Message, error) {
	m, err := messageOf(on)
	if err := errors.Join(err, free(on)); err != nil {
		return nil, err
	}
	return m, nil
}

// forward begins a micro-batch's stash.
func (w *worker) forward(at place, s *stagePrograms, in *dtensor.Tensor) (_ pipeline.Message, err error) {
	part := w.parts[at.microbatch]
	of := &stash{x: in, row: part.Row}
	w.stashed[at] = of
	rows := xla.Shard(0, train.Axis)
	if s.first() {
		if of.x, err = w.mesh.Place(part.Inputs, rows); err != nil {
			return nil, err
		}
	}
	if s.last() {
		if of.targets, err = w.mesh.Place(part.Targets, rows); err != nil {
			return nil, err
		}
	}
	y, err := w.run(s, of)
	if err != nil {
		return nil, err
	}
	if w.layout.Recompute {
		if err := free(of.kept...); err != nil {
			return nil, err
		}
		of.kept = nil
	}
	if !s.last() {
		return w.sent(y)
	}
	w.loss += float64(tensors.ToScalar[float32](y.Shards()[0]))
	return nil, free(y)
}

// run computes a stage, fills the stash, and returns the output.
func (w *worker) run(s *stagePrograms, of *stash) (*dtensor.Tensor, error) {
	out, err := w.call(s.forward, w.args(s, of, false, nil, nil)...)
	if err != nil {
		return nil, err
	}
	of.kept = out[1:]
	return out[0], nil
}

// args are what a pass takes: see stage.take.
func (w *worker) args(s *stagePrograms, of *stash, backward bool, more ...[]*dtensor.Tensor) (args []any) {
	weights := w.weights()
	for _, at := range s.params {
		args = append(args, weights[at])
	}
	args = append(args, of.x)
	if w.model.Noisy {
		args = append(args, int32(w.steps), of.row)
	}
	if s.last() {
		args = append(args, of.targets)
	}
	switch {
	case !backward:
	case s.last():
		for _, state := range scalingOf(w.Plan, w.state) {
			args = append(args, state)
		}
	default:
		args = append(args, of.above)
	}
	for _, values := range more {
		for _, v := range values {
			args = append(args, v)
		}
	}
	return args
}

// backward adds to the sums of the gradients, and ends a micro-batch's stash.
func (w *worker) backward(at place, s *stagePrograms, program *xla.Program, of *stash) (pipeline.Message, error) {
	sums := make([]*dtensor.Tensor, len(s.params))
	for k, i := range s.params {
		sums[k] = w.sums[i]
	}
	out, err := w.call(program, w.args(s, of, true, sums, of.kept, of.left)...)
	if err != nil {
		return nil, err
	}
	var x *dtensor.Tensor
	if program == s.backward && !s.first() {
		x, out = out[0], out[1:]
	}
	for k, i := range s.params {
		w.sums[i] = out[k]
	}
	err = errors.Join(free(out[len(s.params):]...), of.free())
	delete(w.stashed, at)
	if err != nil || x == nil {
		return nil, errors.Join(err, free(x))
	}
	return w.sent(x)
}
