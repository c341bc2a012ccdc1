package expert

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// routing is what a router decides for the tokens (B,T), in float32, or float64 for tokens in that.
type routing struct {
	chosen  *graph.Node // (B,T,k) int32: the experts, the best one first, and E in place of one that drops the token
	weights *graph.Node // (B,T,k)
	term    *graph.Node // (B,T), as Apply returns it
}

// route chooses the experts of x (B,T,C).
func (l Layer) route(p params.Nodes, at string, x *graph.Node) routing {
	wide := precision.Widen(x)
	as := func(name string) *graph.Node { return graph.ConvertDType(p[at+name], wide.DType()) }
	logits := precision.Matmul{}.Dot(wide, []int{2}, nil, as(routerName), []int{0}, nil) // (B,T,E)

	// The logarithm of the sum of exponentials, and the softmax.
	largest := graph.StopGradient(graph.ReduceAndKeep(logits, graph.ReduceMax, -1))
	exponentials := graph.Exp(graph.Sub(logits, largest))
	sum := graph.ReduceAndKeep(exponentials, graph.ReduceSum, -1)
	scores := graph.Div(exponentials, sum)
	shares := scores // of the balance loss
	choice := graph.StopGradient(scores)
	terms := []*graph.Node{}
	if l.Router == Sigmoid {
		scores = graph.Sigmoid(logits)
		shares = graph.Div(scores, graph.ReduceAndKeep(scores, graph.ReduceSum, -1))
		bias, load := graph.StopGradient(as(biasName)), graph.StopGradient(as(LoadName))
		bias = graph.Add(bias, graph.MulScalar(graph.Sign(graph.OneMinus(load)), l.BiasRate))
		bias = graph.Reshape(bias, 1, 1, l.Experts)
		choice = graph.Add(graph.StopGradient(scores), bias)
		terms = append(terms, becomes(as(biasName), bias, logits))
	}

	hits := l.choose(choice)
	weights := make([]*graph.Node, len(hits))
	for j, hit := range hits {
		weights[j] = pick(scores, hit)
	}
	r := routing{weights: graph.Concatenate(weights, -1)}
	if l.Normalize { // DeepSeek-V3 adds the same number, in case that all scores are zero
		total := graph.ReduceAndKeep(r.weights, graph.ReduceSum, -1)
		r.weights = graph.Div(r.weights, graph.AddScalar(total, 1e-20))
	}
	if l.scale() != 1 {
		r.weights = graph.MulScalar(r.weights, l.scale())
	}

	each := float64(l.Experts) / float64(l.PerToken) // so that the mean load is 1
	load := graph.MulScalar(ones(hits, wide.DType()), each)
	terms = append(terms, becomes(as(LoadName), load, logits))
	kept := hits
	if l.Capacity > 0 {
		kept = l.keep(hits)
		terms = append(terms, becomes(as(KeptName), graph.MulScalar(ones(kept, wide.DType()), each), logits))
	}
	r.chosen = numbers(kept)
	if l.Balance > 0 {
		_, shared := l.length(x)
		chose := graph.StopGradient(graph.ReduceAndKeep(load, graph.ReduceSum, 1))
		if shared > 1 {
			chose = graph.ReduceSum(l.everywhere(chose), 0)
		}
		chose = graph.DivScalar(chose, float64(x.Shape().Dim(1)*shared)) // f, (B,1,E)
		terms = append(terms, graph.MulScalar(graph.ReduceSum(graph.Mul(chose, shares), -1), l.Balance))
	}
	if l.ZLoss > 0 {
		z := graph.Squeeze(graph.Add(graph.Log(sum), largest), -1)
		terms = append(terms, graph.MulScalar(graph.Square(z), l.ZLoss))
	}
	r.term = terms[0]
	for _, t := range terms[1:] {
		r.term = graph.Add(r.term, t)
	}
	return r
}

// becomes is a term (B,T) of each token that is zero. Its gradient by a buffer (E), in the mean over all tokens, is the
// buffer less the mean of value (B,T,E), or (1,1,E), over them; like has the shape (B,T,E).
func becomes(buffer, value, like *graph.Node) *graph.Node {
	buffer = graph.Reshape(buffer, 1, 1, -1)
	old := graph.StopGradient(buffer)
	change := graph.BroadcastToShape(graph.Sub(old, graph.StopGradient(value)), like.Shape())
	return graph.ReduceSum(graph.Mul(change, graph.Sub(buffer, old)), -1)
}

// length is the number of tokens of a sequence, and on how many devices they are.
func (l Layer) length(x *graph.Node) (tokens, devices int) {
	devices = size(x.Graph(), l.Sequence)
	return x.Shape().Dim(1) * devices, devices
}

func size(g *graph.Graph, axes []string) int {
	if len(axes) == 0 {
		return 1
	}
	return collective.AxisSize(g, axes...)
}

// choose returns for each of a token's k choices which expert it is, (B,T,E) with one true number in each row.
func (c Config) choose(choice *graph.Node) []*graph.Node {
	free := everything(choice)
	if groups, most := c.groups(); most < groups {
		free = c.inGroups(choice, groups, most)
	}
	return topK(choice, free, c.PerToken)
}

// inGroups returns which experts (B,T,E) are in one of a token's groups.
func (c Config) inGroups(choice *graph.Node, groups, most int) *graph.Node {
	d := choice.Shape().Dimensions
	byGroup := graph.Reshape(choice, d[0], d[1], groups, c.Experts/groups)
	two := topK(byGroup, everything(byGroup), min(2, c.Experts/groups))
	score := pick(byGroup, two[0])
	for _, hit := range two[1:] {
		score = graph.Add(score, pick(byGroup, hit))
	}
	score = graph.Squeeze(score, -1) // (B,T,groups)
	chosen := anyOf(topK(score, everything(score), most))
	chosen = graph.BroadcastToDims(graph.InsertAxes(chosen, -1), byGroup.Shape().Dimensions...)
	return graph.Reshape(chosen, d...)
}

// experts returns the number of each expert, in x's shape.
func experts(x *graph.Node) *graph.Node {
	of := x.Shape().Clone()
	of.DType = dtypes.Int32
	return graph.Iota(x.Graph(), of, -1)
}

// everything is true, in x's shape.
func everything(x *graph.Node) *graph.Node { return graph.Equal(experts(x), experts(x)) }

// topK returns for each row of x where its k largest free numbers are, the largest first.
func topK(x, free *graph.Node, k int) (hits []*graph.Node) {
	for range k {
		hit := best(x, free)
		hits, free = append(hits, hit), graph.LogicalAnd(free, graph.LogicalNot(hit))
	}
	return hits
}

// best returns where the largest of the free numbers in each row of x is; of equal ones, and NaN counts as the least
// number, the first. It is nowhere in a row without free ones.
func best(x, free *graph.Node) *graph.Node {
	g := x.Graph()
	lowest := graph.BroadcastToShape(graph.Infinity(g, x.DType(), -1), x.Shape())
	x = graph.Where(graph.LogicalAnd(free, graph.Equal(x, x)), x, lowest)
	largest := graph.ReduceAndKeep(x, graph.ReduceMax, -1)
	numbers := experts(x)
	end := graph.AddScalar(graph.ZerosLike(numbers), x.Shape().Dim(-1))
	is := graph.LogicalAnd(free, graph.GreaterOrEqual(x, largest))
	first := graph.ReduceAndKeep(graph.Where(is, numbers, end), graph.ReduceMin, -1)
	return graph.Equal(numbers, first)
}

// pick returns the number of each row of x (…,E) that is hit, (…,1). Its gradient needs no scatter.
func pick(x, hit *graph.Node) *graph.Node {
	return graph.ReduceAndKeep(graph.Where(hit, x, graph.ZerosLike(x)), graph.ReduceSum, -1)
}

// ones returns the number of hits of each expert and token (B,T,E): 0 or 1.
func ones(hits []*graph.Node, of dtypes.DType) *graph.Node {
	return graph.ConvertDType(anyOf(hits), of)
}

// anyOf returns where there is a hit.
func anyOf(hits []*graph.Node) *graph.Node {
	all := hits[0]
	for _, hit := range hits[1:] {
		all = graph.LogicalOr(all, hit)
	}
	return all
}

// numbers returns for each hit the number of its expert, (…,k), and E where there is none.
func numbers(hits []*graph.Node) *graph.Node {
	all := make([]*graph.Node, len(hits))
	for j, hit := range hits {
		number := experts(hit)
		none := graph.AddScalar(graph.ZerosLike(number), hit.Shape().Dim(-1))
		all[j] = graph.ReduceAndKeep(graph.Where(hit, number, none), graph.ReduceMin, -1)
	}
	return graph.Concatenate(all, -1)
}

// keep returns the hits that the capacity leaves. Devices with other tokens of the same sequences have these in the
// order of their ranks.
func (l Layer) keep(hits []*graph.Node) []*graph.Node {
	tokens, devices := l.length(hits[0])
	most := l.capacity(tokens)
	counts := make([]*graph.Node, len(hits)) // (B,1,E) of each choice
	before := make([]*graph.Node, len(hits)) // (B,T,E): in front of a token on its device
	for j, hit := range hits {
		one := graph.ConvertDType(hit, dtypes.Int32)
		before[j] = graph.Sub(graph.CumSum(one, 1), one)
		counts[j] = graph.ReduceAndKeep(one, graph.ReduceSum, 1)
	}
	all := counts
	if devices > 1 {
		everyone := l.everywhere(graph.Concatenate(counts, 1)) // (n,B,k,E)
		rank := graph.Iota(everyone.Graph(), everyone.Shape(), 0)
		lower := graph.LessThan(rank, collective.Rank(everyone.Graph(), l.Sequence...))
		lower = graph.ReduceSum(graph.Where(lower, everyone, graph.ZerosLike(everyone)), 0)
		total := graph.ReduceSum(everyone, 0)
		all = make([]*graph.Node, len(hits))
		for j := range hits {
			all[j] = graph.Slice(total, graph.AxisRange(), graph.AxisElem(j))
			before[j] = graph.Add(before[j], graph.Slice(lower, graph.AxisRange(), graph.AxisElem(j)))
		}
	}
	kept := make([]*graph.Node, len(hits))
	first := graph.ZerosLike(counts[0]) // where a choice begins
	for j, hit := range hits {
		place := graph.Add(before[j], first)
		kept[j] = graph.LogicalAnd(hit, graph.LessThan(place, graph.Const(place.Graph(), int32(most))))
		first = graph.Add(first, all[j])
	}
	return kept
}
