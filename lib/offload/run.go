package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Run is a run of a model on the device of a mesh. It is not safe for use by several goroutines at once.
//
// It learns what a train.Run of the same model, rule and precision learns, up to rounding: a train.Run is one program,
// and XLA may round a product and the sum after it once or twice as it compiles a program; and plain Go, which computes
// updates on the host, rounds twice. Options that say only where things are kept change no bit.
type Run struct {
	*link
	options Options
	policy  precision.Policy
	rule    optim.Rule
	tree    params.Tree // the parameters
	passes  chain.Passes
	kinds   chain.Kinds
	stages  []*stage
	masters bool // the states begin with copies of the parameters as they are kept
	weights []*dtensor.Tensor
	acts    *Stash // inputs of blocks
	updater updater
	steps   int
	lost    error // what the run was lost by
	closed  bool
}

// New starts a run at the model's initial parameters, on a mesh of one device. Invalid options, an invalid model or
// rule, a model with noise, and a larger mesh are errors.
func New(mesh *xla.Mesh, model chain.Model, rule optim.Rule, o Options) (*Run, error) {
	if mesh == nil || mesh.NumDevices() != 1 {
		return nil, errors.New("offload: the mesh is nil or has several devices: give one of one device")
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if model.Noisy {
		return nil, errors.New("offload: the model has noise, and blocks have none here: set gpt.Config.Dropout to 0")
	}
	recipe := train.Recipe{Model: model, Rule: rule, Precision: o.Precision}
	if err := recipe.Validate(); err != nil {
		return nil, err
	}
	policy := o.Precision
	if policy == (precision.Policy{}) {
		policy, _ = precision.ParsePolicy("fp32")
	}
	r := &Run{link: newLink(mesh, o.Bandwidth, o.Trace), options: o, policy: policy, rule: rule, tree: model.Params()}
	r.masters = policy.Mixed() || o.Update == Host
	r.weights = make([]*dtensor.Tensor, len(r.tree))
	r.acts = newStash(r.link, Activations, o.Activations)
	r.passes = chain.Passes{Model: model, Precision: policy}
	var err error
	if r.stages, err = stages(mesh, r.passes); err != nil {
		return nil, err
	}
	if o.Update == Host {
		r.updater, err = newHostUpdater(r)
	} else {
		r.updater = &deviceUpdater{r, newStash(r.link, Optimizer, o.Optimizer), map[string]*xla.Program{}}
	}
	if err != nil {
		return nil, err
	}
	initial, err := recipe.Initial()
	if err == nil {
		err = r.start(initial)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// start puts everything where it belongs, of a list of the parameters and then their states.
func (r *Run) start(initial []*tensors.Tensor) error {
	values, rest := initial[:len(r.tree)], initial[len(r.tree):]
	for i, s := range r.stages {
		n := len(r.kept(s))
		states := rest[:n:n]
		rest = rest[n:]
		own := pick(values, s.home)
		placed, err := r.placeComputed(own)
		if err != nil {
			return err
		}
		for k, at := range s.home {
			r.weights[at] = placed[k]
		}
		if r.masters {
			states = slices.Concat(own, states)
		}
		if err := r.updater.start(context.Background(), i, states); err != nil {
			return err
		}
	}
	return nil
}

// kept lists the rule's states of a block.
func (r *Run) kept(s *stage) params.Tree { return optim.States(r.rule, r.own(s).As(r.policy.Params)) }

// own lists the parameters that are updated with a block.
func (r *Run) own(s *stage) params.Tree { return pick(r.tree, s.home) }

// placeComputed puts parameters on the device in the type to compute in.
func (r *Run) placeComputed(values []*tensors.Tensor) ([]*dtensor.Tensor, error) {
	if !r.policy.Mixed() || len(values) == 0 {
		return r.place(Parameters, values...)
	}
	host, err := PlainGo()
	if err != nil {
		return nil, err
	}
	defer host.Finalize()
	copies := make([]any, len(values))
	for i, v := range values { // a tensor that was on one backend is not for another
		if copies[i], err = v.LocalClone(); err != nil {
			return nil, err
		}
	}
	cast, err := graph.CallOnceN(host, func(in []*graph.Node) []*graph.Node { return precision.Cast(in, r.policy.Compute) }, copies...)
	if err != nil {
		return nil, err
	}
	return r.place(Parameters, cast...)
}

// place copies tensors of the host to the device.
func (r *Run) place(kind Kind, values ...*tensors.Tensor) ([]*dtensor.Tensor, error) {
	placed := make([]*dtensor.Tensor, len(values))
	for i, v := range values {
		var err error
		if placed[i], err = r.mesh.Place(v, xla.Replicated()); err != nil {
			return nil, errors.Join(err, r.held.free(placed[:i]...))
		}
		r.held.onDevice(kind, placed[i])
	}
	return placed, nil
}

func (r *Run) arithmetic(s *stage, b blockUpdate) arithmetic {
	parts := make([]int, len(b.grads))
	for i, grads := range b.grads {
		parts[i] = len(grads)
	}
	return arithmetic{r.rule, r.policy, r.own(s), parts}
}

// Steps is the number of batches trained on.
func (r *Run) Steps() int { return r.steps }

// Params returns copies of the parameters, in the order of chain.Model.Params and the type that the precision keeps them in.
// It is an error if the run is lost or closed.
func (r *Run) Params() ([]*tensors.Tensor, error) {
	values, _, err := r.state()
	return values, err
}

// State returns copies of the rule's states, in the order in which optim.States lists them for chain.Model.Params. It is an
// error if the run is lost or closed.
func (r *Run) State() ([]*tensors.Tensor, error) {
	_, states, err := r.state()
	return states, err
}

func (r *Run) state() (values, states []*tensors.Tensor, err error) {
	if r.lost != nil {
		return nil, nil, r.lost
	}
	clone := func(to []*tensors.Tensor, of ...*tensors.Tensor) []*tensors.Tensor {
		for _, x := range of {
			copied, e := x.LocalClone()
			to, err = append(to, copied), errors.Join(err, e)
		}
		return to
	}
	for i, s := range r.stages {
		kept, n := r.updater.states(i), len(s.home)
		if r.masters {
			values, kept = clone(values, kept[:n]...), kept[n:]
		} else {
			for _, x := range pick(r.weights, s.home) {
				values = clone(values, x.Shards()[0])
			}
		}
		states = clone(states, kept...)
	}
	return values, states, err
}

// Memory is what the run's arrays take, and took at most in the last step.
func (r *Run) Memory() Memory { return r.held.memory() }

// Close frees everything. What is asked of the run after is an error. It may be called more than once.
func (r *Run) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	for _, s := range r.stages {
		if s.forward != nil {
			s.forward.Close()
		}
		s.backward.Close()
	}
	r.lost = errors.New("offload: the run is closed: begin another")
	return errors.Join(r.acts.Close(), r.updater.close(), r.held.freeKinds(Parameters, Optimizer, Activations, Gradients, Batch))
}

// lose frees everything, and remembers why.
func (r *Run) lose(by error) {
	err := r.Close()
	r.lost = fmt.Errorf("offload: the run is lost: begin another; it was lost by: %w", errors.Join(by, err))
}

// pick returns the elements at some places.
func pick[S ~[]T, T any](of S, at []int) S {
	picked := make(S, len(at))
	for i, j := range at {
		picked[i] = of[j]
	}
	return picked
}
