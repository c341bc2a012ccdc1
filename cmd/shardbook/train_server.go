package main

import (
	"context"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/paramserver"
)

// serve starts ranks with parameter servers.
func (r *ranks) serve(p job.Parallel) error {
	e, err := paramserver.NewPrograms(r.backend, r.recipe, paramserver.Options{Async: p.Sync == job.Async,
		Servers: p.Servers, BucketBytes: int64(p.BucketBytes), Accumulate: p.Accumulate, Trace: r.recorder})
	if err != nil {
		return err
	}
	if r.close = e.Close; p.Sync == job.Async {
		r.lag = asyncLag
	}
	groups, err := r.mpi.Groups(p.Data)
	if err != nil {
		return err
	}
	return r.join(len(groups), func(ctx context.Context, i int) (rank, error) {
		g := groups[i]
		if r.link != (group.Link{}) {
			var err error
			if g, err = group.Slow(g, r.link); err != nil {
				return nil, err
			}
		}
		one, err := e.Join(ctx, g, i)
		return serverRank{one, e, r}, err
	})
}

// serverRank is a rank that pulls parameters from servers and pushes gradients to them.
type serverRank struct {
	*paramserver.Worker
	engine *paramserver.Programs
	of     *ranks
}

func (r serverRank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (metrics, error) {
	m, err := r.Worker.Step(ctx, inputs, targets)
	return metrics{m.Metrics, m.Staleness, r.of.peak()}, err
}

// Memory leaves out optimizer states, which may be on other ranks.
func (r serverRank) Memory() (map[string]int64, error) {
	kinds := map[string]int64{"peak": r.of.peak(), "gradients": 0,
		"parameters": r.of.recipe.Model.Params().As(r.of.recipe.Policy().Params).Bytes()}
	for _, b := range r.engine.Buckets() {
		kinds["gradients"] += b.Bytes()
	}
	return kinds, nil
}
