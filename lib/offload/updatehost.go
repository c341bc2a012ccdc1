package offload

import (
	"context"
	"slices"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/xla"
)

// hostUpdater has the host compute updates, in plain Go, while the device goes on with the blocks below: gradients go
// down, parameters come up (Ren et al. 2021, §4.1). Master copies and states never leave the host.
type hostUpdater struct {
	*Run
	backend compute.Backend
	execs   map[string]*graph.Exec
	kept    [][]*tensors.Tensor // by block
}

func newHostUpdater(r *Run) (*hostUpdater, error) {
	backend, err := PlainGo()
	return &hostUpdater{r, backend, map[string]*graph.Exec{}, make([][]*tensors.Tensor, len(r.stages))}, err
}

// PlainGo is GoMLX's backend in plain Go, one operation after another: loops side by side may wait for each other for ever
// (docs/upstream.md, "loops side by side in plain Go"), and a rule may have some.
func PlainGo() (compute.Backend, error) { return gobackend.New("ops_sequential") }

func (u *hostUpdater) start(_ context.Context, block int, states []*tensors.Tensor) error {
	u.keep(block, states)
	return nil
}

func (u *hostUpdater) keep(block int, states []*tensors.Tensor) {
	for _, x := range states {
		u.held.add(x, holding{Optimizer, Host, x.Shape().ByteSize()})
	}
	u.kept[block] = states
}

func (u *hostUpdater) ahead(context.Context, int) error { return nil }

func (u *hostUpdater) update(_ context.Context, b blockUpdate) (*transfer, error) {
	s := u.stages[b.block]
	grads := slices.Concat(b.grads...)
	landed := u.toHost(b.pace, "gradients "+s.Name, grads)
	var fresh []*tensors.Tensor // the new parameters
	computed := u.begin(b.pace, &u.link.host, landed, "update "+s.Name, func(context.Context) error {
		args := slices.Clone(u.kept[b.block])
		for _, g := range grads {
			args = append(args, g.Shards()[0])
		}
		out, err := u.compute(s, b, append(args, tensors.FromScalar(b.step)))
		if err != nil {
			return err
		}
		for _, old := range u.kept[b.block] {
			if err := u.held.freeOne(old); err != nil {
				return err
			}
		}
		fresh = out[:len(s.home)]
		if u.policy.Mixed() { // they are copies, for the device alone
			out = out[len(s.home):]
			for _, x := range fresh {
				u.held.add(x, holding{Parameters, Host, x.Shape().ByteSize()})
			}
		}
		u.keep(b.block, out)
		return u.held.free(grads...)
	})
	return u.begin(b.pace, &u.up, computed, "parameters "+s.Name, func(ctx context.Context) error {
		start := time.Now()
		for i, at := range s.home {
			if err := u.held.free(u.weights[at]); err != nil {
				return err
			}
			placed, err := u.place(Parameters, fresh[i])
			if err != nil {
				return err
			}
			u.weights[at] = placed[0]
			if u.policy.Mixed() {
				if err := u.held.freeOne(fresh[i]); err != nil {
					return err
				}
			}
		}
		u.pace(ctx, start, u.own(s).As(u.policy.Compute).Bytes())
		return nil
	}), nil
}

// compute runs the block's update.
func (u *hostUpdater) compute(s *stage, b blockUpdate, args []*tensors.Tensor) ([]*tensors.Tensor, error) {
	a := u.arithmetic(s, b)
	key := a.key()
	var err error
	if u.execs[key] == nil {
		if u.execs[key], err = graph.NewExec(u.backend, xla.ThrowingErrors(a.graph)); err != nil {
			return nil, err
		}
	}
	return u.execs[key].Call(args)
}

func (u *hostUpdater) retreat(context.Context) error { return nil }

func (u *hostUpdater) states(block int) []*tensors.Tensor { return u.kept[block] }

func (u *hostUpdater) close() error {
	for _, e := range u.execs {
		e.Finalize()
	}
	err := u.held.freeKinds(Optimizer)
	u.backend.Finalize()
	return err
}
