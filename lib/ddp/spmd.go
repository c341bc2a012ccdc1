// Package ddp trains a model data-parallel: every device holds all parameters and computes the gradients of its part of
// the batch, and an all-reduce averages them before each device makes the same update (Li et al. 2020, "PyTorch
// Distributed: Experiences on Accelerating Data Parallel Training", section 3).
package ddp

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// NewSPMD starts a run in which one compiled program, gradients, all-reduce and update in one graph, runs on all devices
// of a mesh whose one axis is [train.Axis]. Each has the whole state, and [train.Run.Step] gives it its part of the rows.
// The recipe's Replicas are set here.
func NewSPMD(mesh *xla.Mesh, recipe train.Recipe) (*train.Run, error) {
	recipe.Replicas = replicas{}
	return train.New(mesh, recipe)
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
