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

// NewAuto starts a run of a stage in which the compiler chooses the collectives (AutoSharding), on a mesh whose one
// axis is train.Axis: to stand beside [New]. The step is written for one device. What the stage shards is cut along its
// first axis where the devices divide that, and else whole; gradients, which are no inputs, are the compiler's, so that
// stage 2 is stage 1. Batches, and the outputs of blocks, are cut by rows. [train.Run.Collectives] says what the
// compiler made of it.
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
	rows := xla.Shard(0, train.Axis)
	model.Blocks = slices.Clone(model.Blocks)
	for i, b := range model.Blocks {
		model.Blocks[i].Apply = func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
			return collective.Constrain(b.Apply(p, x, key, row), rows)
		}
	}
	recipe.Model = model
	whole := len(model.Params())
	if stage == 3 {
		whole = 0
	}
	return train.NewAuto(mesh, recipe, func(i int, s params.Spec) xla.Placement {
		if dims := s.Shape.Dimensions; i < whole || len(dims) == 0 || dims[0]%mesh.NumDevices() != 0 {
			return xla.Replicated()
		}
		return rows
	})
}
