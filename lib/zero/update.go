package zero

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
)

// shardUpdate is what a rank's update starts from.
type shardUpdate struct {
	kept   []*graph.Node // shards of the units, in the type that parameters are kept in
	rest   []*graph.Node // of the state: optimizer's, loss scaling's, counters
	grads  []*graph.Node // shards of the units' gradients, summed over ranks and micro-batches
	loss   *graph.Node   // for the metrics
	factor *graph.Node   // one over the number of summands
	place  *graph.Node   // of the rank among the shards, an int32 scalar
	sum    func(*graph.Node) *graph.Node
}

// update returns the new shards and the new rest, and the vector of train.MetricsOf.
func (l *layout) update(r train.Recipe, u shardUpdate) (kept, rest []*graph.Node, metrics *graph.Node) {
	parts := make([]optim.Flat, len(l.tree))
	for i := range parts {
		// A parameter may have more than 2³¹ elements.
		offset := graph.MulScalar(graph.ConvertDType(u.place, dtypes.Int64), l.length(i))
		parts[i] = optim.Flat{Length: l.length(i), Offset: offset, Sum: u.sum}
	}
	grads := l.cut(u.grads)
	for i, x := range grads {
		grads[i] = rank.Scaled(x, u.factor)
	}
	out := r.UpdateShards(parts, append(l.cut(u.kept), u.rest...), u.loss, grads)
	n := len(l.tree)
	return l.join(out[:n]), out[n : len(out)-1], out[len(out)-1]
}
