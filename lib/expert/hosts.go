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
	all := graph.Iota(g, shapes.Make(dtypes.Int32, n, k, l.Experts), 2)
	wide := func(x *graph.Node) *graph.Node {
		return graph.BroadcastToDims(graph.InsertAxes(x, -1), n, k, l.Experts)
	}
	mine := graph.Equal(all, wide(t.chosen))
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
	g, n, experts := x.Graph(), w.Shape().Dim(0), w.Shape().Dim(1)
	index := graph.Iota(g, shapes.Make(dtypes.Int32, n, experts), 1)
	left := graph.StopGradient(w)
	var chosen, weights []*graph.Node
	for range k {
		best := graph.ArgMax(left, -1, dtypes.Int32) // (n)
		one := graph.Equal(index, graph.BroadcastToDims(graph.InsertAxes(best, -1), n, experts))
		one = graph.LogicalAnd(one, graph.GreaterThan(left, graph.ZerosLike(left))) // or none is left
		none := graph.AddScalar(graph.ZerosLike(index), experts)
		chosen = append(chosen, graph.ReduceMin(graph.Where(one, index, none), 1))
		weights = append(weights, graph.ReduceSum(graph.Where(one, w, graph.ZerosLike(w)), 1))
		left = graph.Where(one, graph.ZerosLike(left), left)
	}
	return tokens{x, graph.Stack(chosen, 1), graph.Stack(weights, 1)}
}
