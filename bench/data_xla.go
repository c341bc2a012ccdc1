package main

import (
	"context"
	"errors"
	"sync"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

func startSPMD(backend *xla.Backend, r train.Recipe) (trainRun, error) {
	mesh, err := backend.Mesh(xla.Axis(train.Axis, backend.NumDevices()))
	if err != nil {
		return nil, err
	}
	return ddp.NewSPMD(mesh, r)
}

// ranks train together, each on a device of its own.
type ranks struct {
	engine interface{ Close() }
	groups []group.Group
	ranks  []trainRank
}

// trainRank is a rank of lib/zero. step returns the loss of its own rows or of
// the whole batch: the ranks' mean is the same.
type trainRank struct {
	step  func(ctx context.Context, inputs, targets *tensors.Tensor) (loss float64, err error)
	close func() error
}

func startRanks(backend *xla.Backend, r train.Recipe) (trainRun, error) {
	run, err := ddp.New(context.Background(), backend, r, backend.NumDevices(), ddp.Options{})
	return trainerRun{run}, err
}

// joinRanks makes the ranks of an engine, one a device.
func joinRanks(backend *xla.Backend, engine interface{ Close() },
	join func(ctx context.Context, g group.Group, device int) (trainRank, error)) (trainRun, error) {
	groups, err := group.New(backend.NumDevices())
	if err != nil {
		return nil, err
	}
	all := &ranks{engine, groups, make([]trainRank, len(groups))}
	if err := all.do(func(ctx context.Context, i int) (err error) {
		all.ranks[i], err = join(ctx, groups[i], i)
		return err
	}); err != nil {
		return nil, errors.Join(err, all.Close())
	}
	return all, nil
}

// do has every rank do its part. The first that fails ends the others' waiting for it.
func (r *ranks) do(part func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	errs := make([]error, len(r.groups))
	var all sync.WaitGroup
	for i := range r.groups {
		all.Go(func() {
			if errs[i] = part(ctx, i); errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Step implements trainRun.
func (r *ranks) Step(inputs, targets *tensors.Tensor) (m train.Metrics, err error) {
	losses := make([]float64, len(r.ranks))
	err = r.do(func(ctx context.Context, i int) (err error) {
		losses[i], err = r.ranks[i].step(ctx, inputs, targets)
		return err
	})
	for _, loss := range losses {
		m.Loss += loss / float64(len(losses))
	}
	return m, err
}

// Close implements trainRun.
func (r *ranks) Close() error {
	var errs []error
	for _, rank := range r.ranks {
		if rank.close != nil {
			errs = append(errs, rank.close())
		}
	}
	r.engine.Close()
	return errors.Join(errs...)
}
