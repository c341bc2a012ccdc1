package expert

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
)

// byHost is flat in two hops: along the first axis to the hosts of the tokens' experts, and along the others from
// there.
func (l Layer) byHost(t tokens, arrive int, of func(rows, counts *graph.Node) *graph.Node) *graph.Node {
	g, between, within := t.x.Graph(), l.Axes[:1], l
	within.Axes = l.Axes[1:]
	hosts, n, k := size(g, between), t.x.Shape().Dim(0), t.chosen.Shape().Dim(1)
	each := l.Experts / hosts // experts of a host
	// (n,hosts,each): the weight of each expert
	wide := func(x *graph.Node) *graph.Node {
		return graph.BroadcastToDims(graph.InsertAxes(x, -1), n, k, l.Experts)
	}
	chosen := wide(t.chosen)
	mine := graph.Equal(experts(chosen), chosen)
	weights := graph.ReduceSum(graph.Where(mine, wide(t.weights), graph.ZerosLike(wide(t.weights))), 1)
	weights = graph.Reshape(weights, n*hosts, each)
	has := graph.ReduceSum(graph.Reshape(graph.ConvertDType(mine, dtypes.Int32), n, k, hosts, each), 1, 3) // (n,hosts)
	host := graph.Iota(g, shapes.Make(dtypes.Int32, n, hosts), 1)
	o := sorted(graph.Where(graph.GreaterThan(has, graph.ZerosLike(has)), host,
		graph.AddScalar(graph.ZerosLike(host), hosts)), hosts)
	// Each token has at most one row on a host.
	x, received := collective.AllToAllV(o.spread(t.x), o.counts, hosts*n, between...)
	back := graph.Reshape(o.place, -1)
	w := collective.AllToAllVKnown(permute(weights, o.choice, back), o.counts, received, hosts*n, between...)
	there := within.flat(chosenFrom(x, w, min(k, each)), each, arrive, of)
	home := collective.AllToAllVKnown(there, received, o.counts, hosts*n, between...)
	return o.collect(home, graph.Ones(g, shapes.Make(t.weights.DType(), n, hosts)))
}

// chosenFrom returns the tokens x with their k largest weights of experts w (n,E). Experts without a weight are not
// chosen.
func chosenFrom(x, w *graph.Node, k int) tokens {
	hits := topK(graph.StopGradient(w), graph.GreaterThan(w, graph.ZerosLike(w)), k)
	weights := make([]*graph.Node, k)
	for j, hit := range hits {
		weights[j] = pick(w, hit)
	}
	return tokens{x, numbers(hits), graph.Concatenate(weights, -1)}
}
