package ddp

import (
	"errors"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// NewSPMD trains with one compiled program (gradients, all-reduce and update in one graph) on all devices of a mesh.
// The mesh's first axis is [train.Axis], along which [train.Run.Step] shards the batch. Each device has the full state,
// or, for a [train.Shared] model, the shards that the model asks for; the mesh then also has the model's axes, and
// gradients are averaged along its axes of tokens, too. The recipe's Replicas are set here. [train.Run.Collectives]
// shows the compiled all-reduce.
func NewSPMD(mesh *xla.Mesh, recipe train.Recipe) (*train.Run, error) {
	if mesh == nil { // the model needs its axes
		return nil, errors.New("ddp: the mesh is nil: make one with Backend.Mesh")
	}
	axes := []string{train.Axis}
	if model, ok := recipe.Model.(train.Shared); ok {
		shards, err := model.Shards(mesh.AxisSize)
		if err != nil {
			return nil, err
		}
		axes = append(axes, shards.Tokens...)
	}
	recipe.Replicas = replicas{axes}
	return train.New(mesh, recipe)
}

// NewAuto trains with a program for one device that the compiler makes data-parallel (AutoSharding): the state is
// replicated and the batch is sharded.
func NewAuto(mesh *xla.Mesh, recipe train.Recipe) (*train.Run, error) {
	return train.NewAuto(mesh, recipe, nil)
}

// replicas are the axes of the mesh along which devices have different examples or tokens.
type replicas struct{ axes []string }

// Mean implements [train.Replicas] by one all-reduce. Devices have equal numbers of examples and tokens, so the mean
// over the batch is the mean of the devices' means, for the loss and its gradients.
func (r replicas) Mean(nodes []*graph.Node) []*graph.Node {
	if collective.AxisSize(nodes[0].Graph(), r.axes...) == 1 {
		return nodes
	}
	return collective.AllReduceEach(nodes, collective.Mean, r.axes...)
}

// Rank implements [train.Replicas].
func (replicas) Rank(g *graph.Graph) *graph.Node { return collective.Rank(g, train.Axis) }
