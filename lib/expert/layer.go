package expert

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Layer is a layer of experts on the devices of a mesh.
type Layer struct {
	Config
	// Axes are the axes of the mesh along which devices have different experts, N devices in all, or one axis of
	// collective.Between; none if each device has all experts. A device has E/N consecutive experts, by its rank, and
	// tokens of its own.
	Axes []string
	// Sequence are the axes along which devices have other tokens of the same sequences, or one axis of
	// collective.Between. Capacity takes their tokens in the order of their ranks.
	Sequence []string
	// Activate is the function between an expert's matmuls, of the result of the first one (rows,H), or, where there is
	// a gate, of that and the gate's.
	Activate func(h []*graph.Node) *graph.Node
	// Matmul is the precision of the experts' matmuls. Those of the router are in float32.
	Matmul precision.Matmul
}

// Apply returns the experts' results y (B,T,C) for the device's tokens x (B,T,C), in x's type:
//
//	y = Σ weightₑ · (Activate(x·upₑ, x·gateₑ)·downₑ)
//
// over each token's k experts, without those that dropped it. The parameters, in x's type, are those of [Config.Params]
// with names that begin with at, of the experts only those of the device; there may be a gate or none.
//
// term (B,T), in float32, is each token's share of the auxiliary losses: add its mean over all tokens, of all devices,
// to the loss. It also has terms that are zero and whose gradients update the buffers, as train.Buffered says: the
// loads become those of the step's tokens, and the bias is moved by γ according to the loads that the step before left.
// The step itself uses the moved bias. All devices thus use and store the same.
//
// Gradients are those of the sum of all devices' losses, as everywhere in lib/collective. On several devices there are
// four all-to-alls, two in each pass, of as many rows of C elements as the tokens have choices. The rows that arrive
// depend on the tokens: arrays have as many as there may be, N·B·T·min(k, E/N), or with Capacity
// N·B·(E/N)·(an expert's capacity of a sequence), if that is less. Time for matmuls depends on the actual rows only.
func (l Layer) Apply(p params.Nodes, at string, x *graph.Node) (y, term *graph.Node) {
	if err := l.Validate(); err != nil {
		panic(err)
	}
	check(x.Rank() == 3 && x.DType().IsFloat(), "tokens %s: want floats (B,T,C)", x.Shape())
	r := l.route(p, at, x)
	o := sorted(r.chosen, l.Experts)
	d := x.Shape().Dimensions
	rows := o.spread(graph.Reshape(x, -1, d[2]))
	n := size(x.Graph(), l.Axes)
	check(l.Experts%n == 0, "%d devices for %d experts: use a number of devices that divides them", n, l.Experts)
	rows = l.elsewhere(rows, o.counts, l.arrivals(x, n), func(rows, counts *graph.Node) *graph.Node {
		return l.compute(p, at, rows, counts)
	})
	weights := graph.Reshape(r.weights, -1, l.PerToken)
	y = graph.Reshape(graph.ConvertDType(o.collect(rows, weights), x.DType()), d...)
	return y, r.term
}

// compute applies the device's experts to rows (M,C) that are sorted by them.
func (l Layer) compute(p params.Nodes, at string, rows, counts *graph.Node) *graph.Node {
	names := []string{upName}
	if p[at+gateName] != nil {
		names = append(names, gateName)
	}
	var h []*graph.Node
	for _, name := range names {
		h = append(h, Grouped(rows, p[at+name], counts, l.Matmul))
	}
	return Grouped(l.Activate(h), p[at+downName], counts, l.Matmul)
}
