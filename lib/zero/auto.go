package zero

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// NewAuto trains with a stage whose collectives the compiler chooses (AutoSharding), for comparison with [New]. The
// mesh has the one axis train.Axis. The step is written for one device; parameters and states that the stage shards are
// sharded along their first axis where the number of devices divides it, and replicated elsewhere. Batches and outputs
// of blocks are sharded by examples. The compiler places gradients, so stage 2 equals stage 1. [train.Run.Collectives]
// shows what the compiler made of it.
func NewAuto(mesh *xla.Mesh, recipe train.Recipe, stage int) (*train.Run, error) {
	if err := (Options{Stage: stage}).Validate(); err != nil {
		return nil, err
	}
	one, err := engine.Alone(recipe, 1)
	if err != nil {
		return nil, err
	}
	recipe = one.Recipe
	model := recipe.Model.(chain.Model)
	if mesh == nil || !slices.Equal(mesh.AxesNames(), []string{train.Axis}) {
		return nil, fmt.Errorf("zero: the mesh is %v: make one with the one axis %q", mesh, train.Axis)
	}
	byExample := xla.Shard(0, train.Axis)
	model.Blocks = slices.Clone(model.Blocks)
	for i, b := range model.Blocks {
		model.Blocks[i].Apply = func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
			return collective.Constrain(b.Apply(p, x, key, row), byExample)
		}
	}
	recipe.Model = model
	replicated := len(model.Params())
	if stage == 3 {
		replicated = 0
	}
	return train.NewAuto(mesh, recipe, func(i int, s params.Spec) xla.Placement {
		if dims := s.Shape.Dimensions; i < replicated || len(dims) == 0 || dims[0]%mesh.NumDevices() != 0 {
			return xla.Replicated()
		}
		return byExample
	})
}
