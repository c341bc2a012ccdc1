package recompute_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/recompute"
)

// building builds a graph that is not run.
func building(t *testing.T, build func(g *graph.Graph)) {
	t.Helper()
	g := graph.NewGraph(devicetest.One(), t.Name())
	defer g.Finalize()
	build(g)
}

func parameter(g *graph.Graph, name string, dims ...int) *graph.Node {
	return graph.Parameter(g, name, shapes.Make(dtypes.Float32, dims...))
}

// live returns the nodes that some nodes depend on.
func live(of ...*graph.Node) map[*graph.Node]bool {
	seen := make(map[*graph.Node]bool)
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if !seen[n] {
			seen[n] = true
			for _, input := range n.Inputs() {
				visit(input)
			}
		}
	}
	for _, n := range of {
		visit(n)
	}
	return seen
}

// keptFor counts, by type, the nodes of the forward pass that the backward pass uses.
func keptFor(loss *graph.Node, gradients nodes) map[graph.NodeType]int {
	kept, seen := make(map[graph.NodeType]int), make(map[*graph.Node]bool)
	for n := range live(gradients...) {
		for _, input := range n.Inputs() {
			if n.Id() > loss.Id() && input.Id() <= loss.Id() && !seen[input] {
				seen[input] = true
				kept[input.Type()]++
			}
		}
	}
	return kept
}

// blocks has the dependencies of a Transformer's blocks. An operation's output is the sine of the sum of its inputs
// times a parameter of its own, whose gradient needs that sum.
func blocks(g *graph.Graph, plan recompute.Plan, first, last int) (loss *graph.Node, weights nodes) {
	x := plan.Enter(first, graph.Exp(parameter(g, "x", 2)))
	for i := first; i < last; i++ {
		op := func(op recompute.Op, of ...*graph.Node) *graph.Node {
			sum := of[0]
			for _, n := range of[1:] {
				sum = graph.Add(sum, n)
			}
			w := parameter(g, fmt.Sprint(i, op, len(weights)), 2)
			weights = append(weights, w)
			return plan.After(i, op, graph.Sin(graph.Mul(sum, w)))
		}
		y := op(recompute.Norm1, x)
		q, k, v := op(recompute.QKV, y), op(recompute.QKV, y), op(recompute.QKV, y)
		y = op(recompute.Mix, op(recompute.Scores, q, k), v)
		x = op(recompute.Mid, x, y)
		y = op(recompute.Norm2, x)
		y = op(recompute.Act, op(recompute.Up, y), op(recompute.Up, y))
		x = op(recompute.Down, x, y)
	}
	return graph.ReduceAllSum(graph.Exp(graph.Mul(x, x))), weights
}

// made lists the operations whose results blocks builds, one for each parameter.
var made = []recompute.Op{recompute.Norm1, recompute.QKV, recompute.QKV, recompute.QKV, recompute.Scores, recompute.Mix,
	recompute.Mid, recompute.Norm2, recompute.Up, recompute.Up, recompute.Act, recompute.Down}

// Each operation that a plan recomputes is computed twice, and nothing of the first time is saved for the backward
// pass. Every other operation is computed once.
func TestPlanRecomputesWhatItSays(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 18))
	for range 100 {
		checkPlan(t, randomPlan(random, 4), 0, 4)
	}
	for _, op := range recompute.AllOps() { // each alone, and all but each
		alone, _ := recompute.Recomputing(op).Plan(3)
		others := make(recompute.Plan, 3)
		for i := range others {
			others[i] = recompute.SetOf(recompute.AllOps()...) &^ alone[i]
		}
		checkPlan(t, alone, 0, 3)
		checkPlan(t, others, 0, 3)
	}
	for range 20 { // a part of a model
		plan := randomPlan(random, 4)
		plan[2] &^= recompute.SetOf(recompute.Down)
		checkPlan(t, plan, 1, 3)
	}
}

func checkPlan(t *testing.T, plan recompute.Plan, first, last int) {
	t.Helper()
	building(t, func(g *graph.Graph) {
		loss, weights := blocks(g, plan, first, last)
		times, keeps := make(map[*graph.Node]int), make(map[*graph.Node]bool)
		for n := range live(append(graph.Gradient(loss, weights...), loss)...) {
			if n.Type() == graph.NodeTypeSin {
				times[n.Inputs()[0].Inputs()[1]]++ // the parameter in its argument
			}
			for _, input := range n.Inputs() {
				if input.Type() == graph.NodeTypeSin && n.Id() > loss.Id() && input.Id() <= loss.Id() {
					keeps[input.Inputs()[0].Inputs()[1]] = true
				}
			}
		}
		for at, w := range weights {
			i, op := first+at/len(made), made[at%len(made)]
			want := 1
			if plan[i].Has(op) && !(op == recompute.Down && i == len(plan)-1) {
				want = 2
			}
			if times[w] != want || want == 2 && keeps[w] {
				t.Errorf("%q, blocks %d to %d: %v of block %d is made %d times, saved for the backward pass: %v; want "+
					"%d times", plan.Policy(), first, last, op, i, times[w], keeps[w], want)
			}
		}
	})
}
