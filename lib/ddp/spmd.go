package ddp

import (
	"errors"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// NewSPMD starts a run in which one compiled program, gradients, all-reduce and update in one graph, runs on all
// devices of a mesh whose first axis is [train.Axis], along which [train.Run.Step] gives each its part of the rows.
// Each has the whole state, or, of a [train.Shared] model, what the model says: the mesh then has its axes, too, and
// gradients are averaged along those of its tokens as well. The recipe's Replicas are set here. [train.Run.Collectives]
// says what the all-reduce was compiled to.
func NewSPMD(mesh *xla.Mesh, recipe train.Recipe) (*train.Run, error) {
	if mesh == nil { // which the model is asked about
		return nil, errors.New("ddp: the mesh is nil: make one with Backend.Mesh")
	}
	axes := []string{train.Axis}
	if model, ok := recipe.Model.(train.Shared); ok {
		shares, err := model.Shares(mesh.AxisSize)
		if err != nil {
			return nil, err
		}
		axes = append(axes, shares.Tokens...)
	}
	recipe.Replicas = replicas{axes}
	return train.New(mesh, recipe)
}

// NewAuto starts a run in which the compiler itself makes the step data-parallel (AutoSharding): the program is that of
// one device, the state is on all of them, and the rows of the batch are split.
func NewAuto(mesh *xla.Mesh, recipe train.Recipe) (*train.Run, error) {
	return train.NewAuto(mesh, recipe, nil)
}

// replicas are the devices along axes of the mesh that have different rows or tokens.
type replicas struct{ axes []string }

// Mean implements [train.Replicas] by one all-reduce. Devices have equally many rows and tokens, so the mean over the
// batch is the mean of the devices' means, for the loss as for its gradients.
func (r replicas) Mean(nodes []*graph.Node) []*graph.Node {
	if collective.AxisSize(nodes[0].Graph(), r.axes...) == 1 {
		return nodes
	}
	return collective.AllReduceEach(nodes, collective.Mean, r.axes...)
}

// Rank implements [train.Replicas].
func (replicas) Rank(g *graph.Graph) *graph.Node { return collective.Rank(g, train.Axis) }
