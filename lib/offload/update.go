package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// updater keeps the optimizer's states, block by block, and updates them and the parameters.
type updater interface {
	// start takes a block's states before the first step: the master copies, where there are some, and the rule's.
	start(ctx context.Context, block int, states []*tensors.Tensor) error
	// ahead begins to bring what the update of a block will need.
	ahead(ctx context.Context, block int) error
	// update begins to update a block, and returns what remains to be waited for, or nil. It has an error at once if the
	// context is cancelled before anything was changed.
	update(ctx context.Context, u blockUpdate) (*transfer, error)
	// retreat undoes ahead.
	retreat(ctx context.Context) error
	// states returns the states of a block as they are now, which the updater keeps.
	states(block int) []*tensors.Tensor
	close() error
}

// blockUpdate is what an update of a block is given.
type blockUpdate struct {
	block int
	grads [][]*dtensor.Tensor // of each parameter, one from each block that has it
	step  int32               // 1 for the first
	pace  context.Context     // ends simulated slowness
}

// arithmetic is the graph of one block's update.
type arithmetic struct {
	rule   optim.Rule
	policy precision.Policy
	tree   params.Tree // the parameters
	parts  []int       // how many gradients each has
}

// graph's inputs are the parameters as they are kept, the rule's states, the gradients and the step. Its outputs are
// the new parameters as the passes want them, if they are kept in another type, and the new parameters and states as
// they are kept.
func (a arithmetic) graph(in []*graph.Node) []*graph.Node {
	tree := a.tree.As(a.policy.Params)
	next := func(n int) []*graph.Node {
		part := in[:n:n]
		in = in[n:]
		return part
	}
	values, states := next(len(tree)), next(len(optim.States(a.rule, tree)))
	grads := make([]*graph.Node, len(tree))
	for i, n := range a.parts {
		for _, g := range next(n) {
			if grads[i] == nil {
				grads[i] = g
			} else {
				grads[i] = graph.Add(grads[i], g)
			}
		}
	}
	newValues, newStates := optim.Apply(a.rule, tree, values, grads, states, in[0])
	var copies []*graph.Node
	if a.policy.Mixed() {
		copies = precision.Cast(newValues, a.policy.Compute)
	}
	return slices.Concat(copies, newValues, newStates)
}

// key is the same for updates that one program can make. A rule may tell parameters apart by their names; only of those
// known here it is sure that they do not.
func (a arithmetic) key() string {
	key := fmt.Sprint(a.parts)
	for _, s := range a.tree {
		switch a.rule.(type) {
		case optim.SGDRule, optim.AdamWRule, optim.AdafactorRule, optim.LionRule, optim.LAMBRule:
			key += s.Shape.String()
		default:
			key += s.String()
		}
	}
	return key
}

// deviceUpdater has the device compute updates. The states are in a stash, or stay on the device.
type deviceUpdater struct {
	*Run
	stash    *Stash
	programs map[string]*xla.Program
}

func (u *deviceUpdater) start(ctx context.Context, block int, states []*tensors.Tensor) error {
	placed, err := u.place(Optimizer, states...)
	if err != nil {
		return err
	}
	t, err := u.stash.put(ctx, u.stages[block].Name, placed...)
	return errors.Join(err, t.wait(ctx)) // or all of them would be on the device
}

func (u *deviceUpdater) ahead(ctx context.Context, block int) error {
	return u.stash.Prefetch(ctx, u.stages[block].Name)
}

func (u *deviceUpdater) update(ctx context.Context, b blockUpdate) (*transfer, error) {
	s := u.stages[b.block]
	states, err := u.stash.get(ctx, b.pace, s.Name)
	if err != nil {
		return nil, err
	}
	number, err := u.place(Batch, tensors.FromScalar(b.step))
	if err != nil {
		return nil, err
	}
	grads := slices.Concat(b.grads...)
	n := len(s.home)
	weights := pick(u.weights, s.home)
	kinds := append(slices.Repeat([]Kind{Parameters}, n), Optimizer)
	args := slices.Concat(weights, states, grads, number)
	if u.masters { // the passes' copies are not needed for the new ones
		if err := u.held.free(weights...); err != nil {
			return nil, err
		}
		args = args[n:]
	}
	program, err := u.program(s, b, len(args)-len(grads)-1)
	if err != nil {
		return nil, err
	}
	out, err := u.call("update "+s.Name, program, args, kinds...)
	if err != nil {
		return nil, err
	}
	for i, at := range s.home {
		u.weights[at] = out[i]
	}
	if err := u.held.free(append(grads, number...)...); err != nil {
		return nil, err
	}
	return u.stash.put(b.pace, s.Name, out[n:]...)
}

// program compiles a block's update, which donates all but the gradients and the step.
func (u *deviceUpdater) program(s *stage, b blockUpdate, donated int) (*xla.Program, error) {
	a := u.arithmetic(s, b)
	key := a.key()
	var err error
	if u.programs[key] == nil {
		all := make([]int, donated)
		for i := range all {
			all[i] = i
		}
		u.programs[key], err = xla.Compile(u.mesh, a.graph, xla.In(xla.Replicated()).Gives(xla.Replicated()).Donates(all...))
	}
	return u.programs[key], err
}

func (u *deviceUpdater) retreat(ctx context.Context) error { return u.stash.retreat(ctx) }

func (u *deviceUpdater) states(block int) (states []*tensors.Tensor) {
	for _, x := range u.stash.peek(u.stages[block].Name) {
		states = append(states, x.Shards()[0])
	}
	return states
}

func (u *deviceUpdater) close() error {
	for _, p := range u.programs {
		p.Close()
	}
	return u.stash.Close()
}
