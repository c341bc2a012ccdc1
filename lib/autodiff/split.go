package autodiff

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Split cuts a graph function and its gradient into two programs. The forward program returns the outputs and the saved
// activations: the values that the gradient needs and that are costly to recompute. The backward program takes these
// and recomputes the rest. It is jax.vjp across programs, with the policy dots_saveable of jax.checkpoint
// (https://docs.jax.dev/en/latest/gradient-checkpointing.html).
//
// It saves the results of matmuls, convolutions, Fourier transforms, sorts, calls (and so kernels, but for those with
// [Cheap] in their names), loops, branches and collectives. It also saves the operands of Node.Checkpoint,
// Node.StopCheckpoint and barriers that depend on such results, so it respects the function's own choice of what to
// recompute or compress. All else is recomputed: elementwise operations, reductions, random bits, changes of shape.
// What saved values do not determine, such as what a loop in the function uses from outside, is recomputed from the
// inputs.
//
// The gradients have the same bits as in one program if operations run as they are written. A compiler fuses two
// programs differently from one, which changes rounding.
type Split struct {
	// Fn is the function. It must reach all nodes through its arguments, and build the same graph in each call with
	// arguments of the same shapes.
	Fn func(in []*graph.Node) []*graph.Node
	// Of are the indices of the inputs whose gradients are wanted. They must be floats.
	Of []int
}

// Forward returns the function's outputs, and the saved activations for Backward. It builds a graph, and panics if the
// function or its gradient does.
func (s Split) Forward(in []*graph.Node) (out, saved []*graph.Node) {
	want := s.rehearse(in)
	p := s.build(in)
	return p.out, p.choose(want)
}

// Backward returns the gradients of the inputs in Of, in this order. It takes the inputs of Forward, the activations
// that Forward saved, and the output gradients, each of its output's shape, or nil for none; for a loss the output
// gradient is 1.
//
// It builds a graph, and panics if the function or its gradient does, or if saved or v do not fit.
func (s Split) Backward(in, saved, v []*graph.Node) []*graph.Node {
	want := s.rehearse(in)
	p := s.build(in)
	p.replace(p.choose(want), saved)
	return p.gradients(s.Of, v)
}

// Saved returns the shapes of the activations that Forward saves for inputs of the given shapes. There is no mesh, so
// the function must have no collectives. It returns an error where Forward would panic.
func (s Split) Saved(backend compute.Backend, in ...shapes.Shape) (saved []shapes.Shape, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("autodiff: building the graph: %v", thrown)
		}
	}()
	g := graph.NewGraph(backend, "")
	defer g.Finalize()
	nodes := make([]*graph.Node, len(in))
	for i, shape := range in {
		nodes[i] = parameter(g, shape)
	}
	_, values := s.Forward(nodes)
	for _, n := range values {
		saved = append(saved, n.Shape())
	}
	return saved, nil
}

// rehearse builds the function and its gradient in a scratch graph, and returns which values to save.
func (s Split) rehearse(in []*graph.Node) choice {
	p, v, end := s.again(in)
	defer end()
	return p.neededBy(p.gradients(s.Of, v))
}

// again builds the function in a scratch graph, with parameters as output gradients.
func (s Split) again(in []*graph.Node) (p pass, v []*graph.Node, end func()) {
	s.check(in)
	like := in[0].Graph()
	g := graph.NewGraph(like.Backend(), "")
	var err error
	switch like.DistributedStrategy() {
	case distributed.SPMD:
		err = g.SetSPMD(like.DeviceMeshes()[0])
	case distributed.AutoSharding:
		err = g.SetAutoSharding(like.DeviceMeshes()...)
	}
	if err != nil {
		g.Finalize()
		panic(fmt.Errorf("autodiff: %w", err))
	}
	if prepare, ok := like.State(prepared{}).(func(*graph.Graph)); ok {
		Prepare(g, prepare)
	}
	fresh := make([]*graph.Node, len(in))
	for i, x := range in {
		fresh[i] = parameter(g, x.Shape())
	}
	p = s.build(fresh)
	v = make([]*graph.Node, len(p.out))
	for i, y := range p.out {
		if y.DType().IsFloat() {
			v[i] = parameter(g, y.Shape())
		}
	}
	return p, v, g.Finalize
}

func parameter(g *graph.Graph, shape shapes.Shape) *graph.Node {
	return graph.Parameter(g, g.UniqueName("split"), shape)
}

func (s Split) check(in []*graph.Node) {
	if len(in) == 0 {
		panic(errors.New("autodiff: Split of no inputs: give at least one"))
	}
	for i, x := range in {
		if x == nil {
			panic(fmt.Errorf("autodiff: input %d of Split is nil", i))
		}
	}
	for _, i := range s.Of {
		if i < 0 || i >= len(in) || !in[i].DType().IsFloat() {
			panic(fmt.Errorf("autodiff: Split.Of has %d: give indices, below %d, of inputs that are floats", i,
				len(in)))
		}
	}
}

// pass is a function as built in a graph.
type pass struct {
	in, out []*graph.Node
	made    []*graph.Node // in order of creation, without those inside loops, branches and other functions
	last    *graph.Node   // the last one created
	v       []*graph.Node // output gradients, if the backward pass is part of it
}

// build calls the function with arguments that depend on nothing.
func (s Split) build(in []*graph.Node) pass {
	s.check(in)
	g := in[0].Graph()
	p := pass{in: make([]*graph.Node, len(in))}
	for i, x := range in {
		p.in[i] = graph.Identity(graph.StopGradient(x))
	}
	since := len(g.Nodes())
	p.out = s.Fn(slices.Clone(p.in))
	for i, y := range p.out {
		if y == nil || y.Graph() != g {
			panic(fmt.Errorf("autodiff: output %d of Split's function is nil or of another graph", i))
		}
	}
	p.made = made(g, since)
	p.last = g.LastNode()
	return p
}

// made returns the nodes of a graph's current function from an index on, without those of [Once].
func made(g *graph.Graph, since int) []*graph.Node {
	return slices.DeleteFunc(slices.Clone(g.Nodes()[since:]), func(n *graph.Node) bool {
		return n.Function() != g.CurrentFunc() || isOnce(n)
	})
}

// gradients returns the gradients of the inputs for those of the outputs.
func (p pass) gradients(of []int, v []*graph.Node) []*graph.Node {
	if len(v) != len(p.out) {
		panic(fmt.Errorf("autodiff: %d gradients for the %d outputs of Split's function: give one for each, or nil",
			len(v), len(p.out)))
	}
	// The sum is never computed; its gradient with respect to an output is v.
	sum := graph.Const(p.in[0].Graph(), float32(0))
	for i, y := range p.out {
		if v[i] == nil {
			continue
		}
		if !v[i].Shape().Equal(y.Shape()) || !y.DType().IsFloat() {
			panic(fmt.Errorf("autodiff: a gradient of shape %s for output %d of Split's function, of shape %s: they "+
				"must be equal, and floats", v[i].Shape(), i, y.Shape()))
		}
		part := graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(v[i])))
		sum = graph.Add(sum, graph.ConvertDType(part, dtypes.Float32))
	}
	if len(of) == 0 {
		return nil
	}
	selected := make([]*graph.Node, len(of))
	for i, at := range of {
		selected[i] = p.in[at]
	}
	return graph.Gradient(sum, selected...)
}

// costly reports whether the results of an operation are saved rather than recomputed. A barrier is a request to save
// its operands.
//
// These operations must not be copied either: GoMLX copies an all-reduce or a barrier with one operand as that operand,
// and a copied loop would still use the old values from outside.
func costly(n *graph.Node) bool {
	switch n.Type() {
	case graph.NodeTypeCall:
		return !strings.Contains(n.String(), Cheap)
	case graph.NodeTypeDotGeneral, graph.NodeTypeConvGeneral, graph.NodeTypeFFT, graph.NodeTypeSort,
		graph.NodeTypeWhile, graph.NodeTypeIf, graph.NodeTypeAllReduce,
		graph.NodeTypeFusedDense, graph.NodeTypeFusedQuantizedDense, graph.NodeTypeFusedAttentionQKVProjection,
		graph.NodeTypeFusedScaledDotProductAttention:
		return true
	}
	return barrier(n)
}

// Cheap, in the name of a called function or kernel, has [Split] recompute its results, as those of the elementwise
// operations and reductions that it stands for.
const Cheap = "_cheap_"

func barrier(n *graph.Node) bool { return n.Type() == graph.NodeTypeOptimizationBarrier }

// candidate is a value that may be saved. Its key says how it is computed from the inputs, so it is the same in each
// graph that the function is built in. Values with equal keys are in the same order in all graphs.
type candidate struct {
	node *graph.Node
	key  uint64
}

// choice says which of the candidates are saved.
type choice struct {
	keys  []uint64 // of all candidates
	saved []int
}

// candidates returns the values that may be saved, in the order of their keys.
func (p pass) candidates() []candidate {
	keys := map[*graph.Node]uint64{}
	for i, x := range p.in {
		keys[x] = digest(fmt.Sprint("input ", i, x.Shape()))
	}
	for i, x := range p.v {
		if x != nil {
			keys[x] = digest(fmt.Sprint("gradient ", i, x.Shape()))
		}
	}
	operand := map[*graph.Node]bool{}
	for _, n := range p.made {
		for _, x := range p.operands(n) {
			operand[x] = true
		}
	}
	dear := map[*graph.Node]bool{} // costly, or computed from something costly
	var all []candidate
	for _, n := range p.made {
		op, _ := maker(n)
		dear[n] = costly(n) && !barrier(n) ||
			slices.ContainsFunc(n.Inputs(), func(x *graph.Node) bool { return dear[x] })
		if (costly(op) && dear[op] || operand[n] && dear[n]) && n.NumOutputs() == 1 {
			all = append(all, candidate{n, key(n, keys)})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.key, b.key) })
	return all
}

// key returns a node's key, given those of the inputs, and adds the keys of all nodes between to keys.
func key(n *graph.Node, keys map[*graph.Node]uint64) uint64 {
	if known, ok := keys[n]; ok {
		return known
	}
	text, in := numbered.ReplaceAllString(n.String(), ""), n.Inputs()
	if isOnce(n) { // its operands may differ from graph to graph
		in = nil
	}
	for _, x := range in {
		text += fmt.Sprintf(" %x", key(x, keys))
	}
	keys[n] = digest(text)
	return keys[n]
}

// numbered are the parts of a node's text that differ from graph to graph: the numbers of nodes and of called
// functions.
var numbered = regexp.MustCompile(`#\d+|Call\([^,]*`)

func digest(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

var splitIndex = regexp.MustCompile(`index=(\d+)`)

// maker returns the operation that computed a value, and which of its outputs the value is.
func maker(n *graph.Node) (op *graph.Node, output int) {
	if n.Type() != graph.NodeTypeSplitNode {
		return n, 0
	}
	found := splitIndex.FindStringSubmatch(n.String())
	if found == nil {
		panic(fmt.Errorf("autodiff: GoMLX describes an output as %q, without the index that v0.28.2 wrote: build "+
			"with that version", n))
	}
	output, _ = strconv.Atoi(found[1])
	return n.Inputs()[0], output
}

// neededBy chooses the candidates that the gradients need.
func (p pass) neededBy(gradients []*graph.Node) choice {
	all := p.candidates()
	// indices by value, and by operation, whose gradient may use all its values
	places := map[*graph.Node][]int{}
	var c choice
	for i, a := range all {
		places[a.node] = []int{i}
		if op, _ := maker(a.node); op != a.node {
			places[op] = append(places[op], i)
		}
		c.keys = append(c.keys, a.key)
	}
	// Values that the gradient's loops use from outside are inputs of nodes inside.
	g := p.in[0].Graph()
	inside := slices.DeleteFunc(slices.Clone(g.Nodes()[p.last.Id()+1:]), func(n *graph.Node) bool {
		return n.Function() == g.CurrentFunc()
	})
	walk(slices.Concat(gradients, inside), func(n *graph.Node) bool {
		at, candidate := places[n]
		c.saved = append(c.saved, at...)
		return !candidate
	})
	slices.Sort(c.saved)
	c.saved = slices.Compact(c.saved)
	return c
}

// walk visits nodes, each once: the given ones and, where onward says so, the inputs of a visited one.
func walk(from []*graph.Node, onward func(n *graph.Node) bool) {
	seen := map[*graph.Node]bool{}
	for todo := slices.Clone(from); len(todo) > 0; {
		n := todo[len(todo)-1]
		if todo = todo[:len(todo)-1]; seen[n] {
			continue
		}
		if seen[n] = true; onward(n) {
			todo = append(todo, n.Inputs()...)
		}
	}
}

// choose returns the nodes to save.
func (p pass) choose(c choice) []*graph.Node {
	all := p.candidates()
	if !slices.EqualFunc(all, c.keys, func(a candidate, key uint64) bool { return a.key == key }) {
		panic(errors.New("autodiff: Split's function builds a different graph each time: let it depend on nothing " +
			"but its arguments and their shapes"))
	}
	saved := make([]*graph.Node, len(c.saved))
	for i, at := range c.saved {
		saved[i] = all[at].node
	}
	return saved
}

// replace gives nodes other values, and recomputes from these what the function computed from the nodes. It runs before
// the gradient is built, which then uses the new values. GoMLX still sees the same nodes with their gradients; only the
// backend's values in them change. Compilers drop what nothing uses then.
func (p pass) replace(nodes, by []*graph.Node) {
	now := newValues(nodes, by, "saved", "Forward")
	for _, n := range p.made {
		// A costly value that was not saved is not needed, or is hidden from us; then its old value is correct.
		if now[n] == nil && !costly(n) {
			now[n] = recomputed(n, now)
		}
		if now[n] != nil && n.NumOutputs() == 1 {
			value := graph.InternalBackendOutputs(now[n])[0]
			graph.InternalBackendOutputs(n)[0] = value
			op, output := maker(n)
			graph.InternalBackendOutputs(op)[output] = value
		}
	}
}

// newValues maps nodes to their new values, which a function returned before.
func newValues(nodes, by []*graph.Node, what, function string) map[*graph.Node]*graph.Node {
	if len(by) != len(nodes) {
		panic(fmt.Errorf("autodiff: %d %s values, want the %d that %s returned", len(by), what, len(nodes), function))
	}
	now := map[*graph.Node]*graph.Node{}
	for i, n := range nodes {
		if by[i].Graph() != n.Graph() || !by[i].Shape().Equal(n.Shape()) {
			panic(fmt.Errorf("autodiff: %s value %d has shape %s, %s returned %s: give them in that order, as nodes "+
				"of this graph", what, i, by[i].Shape(), function, n.Shape()))
		}
		now[n] = by[i]
	}
	return now
}

// recomputed returns a copy of a node with the new values of its inputs, or nil if no input has one.
func recomputed(n *graph.Node, now map[*graph.Node]*graph.Node) *graph.Node {
	if !slices.ContainsFunc(n.Inputs(), func(x *graph.Node) bool { return now[x] != nil }) {
		return nil
	}
	return n.CloneWithInputs(current(n.Inputs(), now)...)
}

// current returns the nodes, with the new values of those that have one.
func current(nodes []*graph.Node, now map[*graph.Node]*graph.Node) []*graph.Node {
	nodes = slices.Clone(nodes)
	for i, n := range nodes {
		nodes[i] = cmp.Or(now[n], n)
	}
	return nodes
}
