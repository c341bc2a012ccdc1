package recompute_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/recompute"
)

func TestPolicies(t *testing.T) {
	const all, allButDown = "norm1,qkv,scores,mix,mid,norm2,up,act,down", "norm1,qkv,scores,mix,mid,norm2,up,act"
	for _, test := range []struct {
		policy recompute.Policy
		blocks int
		want   recompute.Policy
	}{
		{recompute.None, 3, "plan:-*3"},
		{"none", 1, "plan:-"},
		{recompute.Block, 2, "plan:" + allButDown + "*2"},
		{recompute.SubLayers, 2, "plan:norm1,qkv,scores,mix,norm2,up,act*2"},
		{"halves", 1, "plan:norm1,qkv,scores,mix,norm2,up,act"}, // the name of SubLayers before v0.3
		{recompute.Selective, 4, "plan:scores*4"},
		{recompute.Every(1), 2, "plan:" + allButDown + "*2"},
		{recompute.Every(2), 5, "plan:" + all + ";" + allButDown + ";" + all + ";" + allButDown + "*2"},
		{recompute.Every(9), 2, "plan:" + all + ";" + allButDown},
		{recompute.Sqrt, 9, recompute.Policy("plan:" + strings.Repeat(all+"*2;"+allButDown+";", 2) + all + "*2;" +
			allButDown)},
		{recompute.Sqrt, 1, "plan:" + allButDown},
		{recompute.Recomputing(recompute.Act, recompute.Norm1, recompute.Act), 2, "plan:norm1,act*2"},
		{recompute.Recomputing(), 2, "plan:-*2"},
		{"plan:-;act,norm1*2;-;-", 5, "plan:-;norm1,act*2;-*2"},
	} {
		plan, err := test.policy.Plan(test.blocks)
		if err != nil || len(plan) != test.blocks || plan.Policy() != test.want {
			t.Errorf("%q for %d blocks: plan %q, error %v, want %q", test.policy, test.blocks, plan.Policy(), err,
				test.want)
		}
		if err := test.policy.Validate(); err != nil {
			t.Errorf("%q: %v", test.policy, err)
		}
	}
}

func TestPolicyErrors(t *testing.T) {
	for _, test := range []struct {
		policy recompute.Policy
		blocks int
		want   string
	}{
		{"blok", 2, `no policy "blok": choose none, block`},
		{"block:2", 2, `"block:2" takes no argument: write "block"`},
		{":", 2, `":" takes no argument`},
		{"every", 2, `"every": give a number of blocks`},
		{"every:0", 2, `"every:0": give`},
		{"every:99999999999999999999", 2, `"every:99999999999999999999": give`},
		{"ops:", 2, `no operation ""`},
		{"ops:act,gelu", 2, `no operation "gelu": choose from norm1, qkv,`},
		{"plan:act;-*0", 2, `"-*0" in a plan: write a number`},
		{"plan:act;-*2", 2, `a plan for 3 blocks, but the model has 2`},
		{"plan:-*9223372036854775807", 2, "more than 65536 blocks"},
		{"plan:-*40000;-*40000", 2, "more than 65536 blocks"},
		{"block", 0, "a plan for 0 blocks: choose 1 to 65536"},
		{"block", 1 << 40, "a plan for 1099511627776 blocks"},
	} {
		if _, err := test.policy.Plan(test.blocks); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q for %d blocks: error %v, want %q", test.policy, test.blocks, err, test.want)
		}
	}
	for _, bad := range []recompute.Policy{"blok", "every:x", "ops:gelu", "plan:gelu", "plan:-*9999999"} {
		if bad.Validate() == nil {
			t.Errorf("%q is said to be valid", bad)
		}
	}
}

// randomPlan has about equally many blocks with few, some and all operations recomputed.
func randomPlan(random *rand.Rand, blocks int) recompute.Plan {
	plan := make(recompute.Plan, blocks)
	for i := range plan {
		of := random.Float64() * 1.2
		for _, op := range recompute.AllOps() {
			if random.Float64() < of {
				plan[i] |= recompute.SetOf(op)
			}
		}
	}
	return plan
}

// Any text is a plan with the right number of blocks, or an error.
func FuzzPolicy(f *testing.F) {
	for _, seed := range []string{"", "none", "block", "every:3", "sqrt", "ops:act,up", "plan:act;-*3", "plan:-*99999",
		"plan:*", "every:-1", "::"} {
		f.Add(seed, uint8(4))
	}
	f.Fuzz(func(t *testing.T, text string, blocks uint8) {
		plan, err := recompute.Policy(text).Plan(int(blocks))
		if err != nil {
			return
		}
		if len(plan) != int(blocks) {
			t.Fatalf("%q for %d blocks: a plan for %d", text, blocks, len(plan))
		}
		if again, err := plan.Policy().Plan(int(blocks)); err != nil || !slices.Equal(again, plan) {
			t.Errorf("%q is %v, which becomes %q, and that %v, error %v", text, plan, plan.Policy(), again, err)
		}
		if err := recompute.Policy(text).Validate(); err != nil {
			t.Errorf("%q has a plan for %d blocks, but %v", text, blocks, err)
		}
	})
}

func TestOps(t *testing.T) {
	all := recompute.AllOps()
	for i, op := range all {
		if again, err := recompute.ParseOp(op.String()); err != nil || again != op || int(op) != i {
			t.Errorf("operation %d is named %q, which is %d, error %v", i, op, again, err)
		}
	}
	if got := recompute.Op(200).String(); got != "op 200" {
		t.Errorf("no operation is named %q", got)
	}
	set := recompute.SetOf(recompute.Down, recompute.QKV)
	if !set.Has(recompute.QKV) || set.Has(recompute.Up) || set.Has(200) || set.Len() != 2 ||
		set.String() != "qkv,down" {
		t.Errorf("the set of down and qkv is %s, of %d", set, set.Len())
	}
	if full := recompute.SetOf(all...); full.Len() != len(all) {
		t.Errorf("the set of all operations has %d", full.Len())
	}
}

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
