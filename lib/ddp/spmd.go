package ddp

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// NewSPMD starts a run in which one compiled program, gradients, all-reduce and update in one graph, runs on all devices
// of a mesh whose one axis is [train.Axis]. Each has the whole state, and [train.Run.Step] gives it its part of the rows.
// The recipe's Replicas are set here. [train.Run.Collectives] says what the all-reduce was compiled to.
func NewSPMD(mesh *xla.Mesh, recipe train.Recipe) (*train.Run, error) {
	recipe.Replicas = replicas{}
	return train.New(mesh, recipe)
}

// NewAuto starts a run in which the compiler itself makes the step data-parallel (AutoSharding): the program is that of
// one device, the state is on all of them, and the rows of the batch are split.
func NewAuto(mesh *xla.Mesh, recipe train.Recipe) (*train.Run, error) {
	return train.NewAuto(mesh, recipe, nil)
}

// replicas are the devices of the mesh.
type replicas struct{}

// Mean implements [train.Replicas] by one all-reduce. Devices have equally many rows, so the mean over the batch is the
// mean of the devices' means, for the loss as for its gradients.
func (replicas) Mean(nodes []*graph.Node) []*graph.Node {
	return collective.AllReduceEach(nodes, collective.Mean, train.Axis)
}

// Rank implements [train.Replicas].
func (replicas) Rank(g *graph.Graph) *graph.Node { return collective.Rank(g, train.Axis) }
