package xla

import (
	"errors"
	"reflect"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"
	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"
)

// Segments is a graph function with exchanges ([Exchange]), split into programs: at each exchange, and before the first
// operation that uses what one received, so that the program in between can overlap with the transfer. A value that one
// program computes and a later one uses, or an exchange takes, is carried: an output of the one program and an input of
// the others. Values that depend on constants and scalars alone are recomputed where they are used.
type Segments struct {
	Exchanges []Exchanged    // in their order
	Carried   []shapes.Shape // on a device; programs take and return a scalar as a vector of one
	Programs  []Segment

	fn func(in []*graph.Node) []*graph.Node
	in []shapes.Shape
}

// Exchanged is an exchange of a Segments.
type Exchanged struct {
	Exchange
	Of     []Ref        // its operands: carried values, or what earlier exchanges received
	Shape  shapes.Shape // of what is received, on one device
	Before int          // number of the program before which the exchange can start
}

// Segment lists the inputs and outputs of one program of a Segments, in order.
type Segment struct{ In, Out []Ref }

// Ref names a tensor: an input or output of the original function, a carried value, or what an exchange received.
type Ref struct {
	Kind   RefKind
	Number int
}

// RefKind says which list the number of a [Ref] counts in.
type RefKind byte

// Kinds of tensors that programs of a Segments take and return.
const (
	RefInput RefKind = iota
	RefOutput
	refCarried
	RefReceived
)

// NewSegments splits a graph function for inputs of the given shapes, as one device of the mesh has them. Nothing is
// compiled: compile the functions that [Segments.Program] returns. The function must build the same graph at every
// call. Its panics are returned as errors.
func NewSegments(m *Mesh, fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (*Segments, error) {
	var c *Segments
	_, err := m.Shapes(func(nodes []*graph.Node) []*graph.Node {
		c = newCutting(nodes, fn(slices.Clone(nodes))).Segments
		return nodes[:1]
	}, in...)
	if err != nil {
		return nil, err
	}
	c.fn, c.in = fn, in
	return c, nil
}

// Program returns the graph function of program k, with the inputs and outputs that Programs[k] lists. It panics if the
// original function builds another graph than it did in NewSegments.
func (c *Segments) Program(k int) func(in []*graph.Node) []*graph.Node {
	return func(given []*graph.Node) []*graph.Node {
		of, g := c.Programs[k], given[0].Graph()
		in := make([]*graph.Node, len(c.in))
		for i, ref := range of.In {
			if ref.Kind == RefInput {
				in[ref.Number] = given[i]
			} else if c.shapeOf(ref).IsScalar() {
				given[i] = graph.Reshape(given[i])
			}
		}
		for i, shape := range c.in {
			if in[i] == nil { // nothing in this program depends on it
				in[i] = graph.Zeros(g, shape)
			}
		}
		now := newCutting(in, c.fn(slices.Clone(in)))
		if !reflect.DeepEqual(now.Exchanges, c.Exchanges) || !reflect.DeepEqual(now.Programs, c.Programs) ||
			!slices.EqualFunc(now.Carried, c.Carried, shapes.Shape.Equal) {
			panic(errors.New("a function that is cut builds another graph each time: have it depend on nothing but " +
				"its arguments and their shapes"))
		}
		out := make([]*graph.Node, len(of.Out))
		for i, ref := range of.Out { // placeholders of the right shapes, whose backend values are replaced below
			out[i] = graph.Identity(graph.Zeros(g, shapeOfHLO(now.values[ref])))
		}
		beside := valueOf(given[0])
		for i, v := range now.leave(of, given) {
			graph.InternalBackendOutputs(out[i])[0] = newValue(beside, v)
			if of.Out[i].Kind == refCarried && out[i].IsScalar() {
				out[i] = graph.Reshape(out[i], 1)
			}
		}
		return out
	}
}

// Takes reports whether program k or a later one uses a tensor, or an exchange that starts before one of these.
func (c *Segments) Takes(k int, r Ref) bool {
	takes := func(p Segment) bool { return slices.Contains(p.In, r) }
	return slices.ContainsFunc(c.Programs[min(k, len(c.Programs)):], takes) ||
		slices.ContainsFunc(c.Exchanges, func(e Exchanged) bool { return e.Before >= k && slices.Contains(e.Of, r) })
}

// shapeOf returns the shape of a carried or received tensor.
func (c *Segments) shapeOf(r Ref) shapes.Shape {
	if r.Kind == RefReceived {
		return c.Exchanges[r.Number].Shape
	}
	return c.Carried[r.Number]
}

// cutting analyses a function in the StableHLO that was built for it. GoMLX's nodes would not do: lib/autodiff replaces
// their backend values, so that a node's inputs are not what it is computed from. Values are compared by name, since
// closures refer to outer values by name.
type cutting struct {
	*Segments
	main     *stablehlo.Function
	values   map[Ref]*stablehlo.Value
	inputs   map[string]int // number of an input, by its name
	made     map[string]int // position of the statement that computes a value
	live     []bool         // by position: an output depends on the statement
	free     []bool         // it depends on constants and scalars alone
	program  []int          // number of its program
	exchange map[int]int    // number of an exchange, by position
}

func newCutting(in, out []*graph.Node) *cutting {
	c := &cutting{Segments: &Segments{}, main: functionOf(hloValue(valueOf(in[0]))), values: map[Ref]*stablehlo.Value{},
		inputs: map[string]int{}, made: map[string]int{}, exchange: map[int]int{}}
	scalar := make([]bool, len(in))
	for i, x := range in {
		v := hloValue(valueOf(x))
		c.inputs[v.String()], c.values[Ref{RefInput, i}], scalar[i] = i, v, x.IsScalar()
	}
	results := make([]*stablehlo.Value, len(out))
	for i, y := range out {
		results[i] = hloValue(valueOf(y))
		c.values[Ref{RefOutput, i}] = results[i]
	}
	c.live = c.neededBy(results, nil)
	c.deal(scalar)
	for k := range c.Programs {
		for i := range in {
			if scalar[i] {
				c.Programs[k].In = append(c.Programs[k].In, Ref{RefInput, i})
			}
		}
	}
	for i, s := range c.main.Statements {
		if n, ok := c.exchange[i]; ok {
			for _, v := range s.Inputs {
				c.Exchanges[n].Of = append(c.Exchanges[n].Of, c.send(n, v))
			}
		} else if c.live[i] && !c.free[i] {
			for _, v := range c.uses(s) {
				c.take(c.program[i], v)
			}
		}
	}
	for i, v := range results {
		k := len(c.Programs) - 1
		if at := c.at(v); at >= 0 && !c.free[at] && !c.isExchange(at) {
			k = c.program[at]
		} else {
			c.take(k, v)
		}
		c.Programs[k].Out = append(c.Programs[k].Out, Ref{RefOutput, i})
	}
	return c
}

// deal assigns statements to programs.
func (c *cutting) deal(scalar []bool) {
	all := c.main.Statements
	c.free, c.program = make([]bool, len(all)), make([]int, len(all))
	// the program, whether it has statements, and which exchanges are awaited
	now, begun, there := 0, false, map[int]bool{}
	next := func() {
		if begun {
			now, begun = now+1, false
		}
	}
	for i, s := range all {
		if !c.live[i] {
			continue
		}
		if exchange, ok := exchangeIn(s); ok {
			begun = begun || now == 0 // program 0 has to return what is sent
			next()
			for _, v := range s.Inputs {
				if n, ok := c.exchange[c.at(v)]; ok {
					there[n] = true
				}
			}
			c.exchange[i] = len(c.Exchanges)
			c.values[Ref{RefReceived, len(c.Exchanges)}] = s.Outputs[0]
			c.Exchanges = append(c.Exchanges,
				Exchanged{Exchange: exchange, Shape: shapeOfHLO(s.Outputs[0]), Before: now})
			continue
		}
		c.free[i] = true
		for _, v := range c.uses(s) {
			if n, ok := c.inputs[v.String()]; ok {
				c.free[i] = c.free[i] && scalar[n]
			} else if at := c.at(v); at >= 0 {
				c.free[i] = c.free[i] && c.free[at]
				if n, ok := c.exchange[at]; ok && !there[n] {
					there[n] = true
					next()
				}
			}
		}
		c.program[i], begun = now, begun || !c.free[i]
	}
	c.Programs = make([]Segment, now+1)
}

// at returns the position of the statement that computes a value, or −1 for inputs and local values of closures.
func (c *cutting) at(v *stablehlo.Value) int {
	if at, ok := c.made[v.String()]; ok {
		return at
	}
	return -1
}

func (c *cutting) isExchange(at int) bool { _, ok := c.exchange[at]; return ok }

// take adds a value to a program's inputs, unless the program computes it.
func (c *cutting) take(k int, v *stablehlo.Value) {
	var ref Ref
	at := c.at(v)
	if i, ok := c.inputs[v.String()]; ok {
		ref = Ref{RefInput, i}
	} else if n, ok := c.exchange[at]; ok {
		ref = Ref{RefReceived, n}
	} else if at < 0 || c.free[at] || c.program[at] == k {
		return
	} else {
		ref = c.carry(c.program[at], v)
	}
	if in := &c.Programs[k].In; !slices.Contains(*in, ref) {
		*in = append(*in, ref)
	}
}

// carry adds a value to a program's outputs, for other programs.
func (c *cutting) carry(k int, v *stablehlo.Value) Ref {
	for n := range c.Carried {
		if ref := (Ref{refCarried, n}); c.values[ref].String() == v.String() {
			return ref
		}
	}
	ref := Ref{refCarried, len(c.Carried)}
	c.Carried, c.values[ref] = append(c.Carried, shapeOfHLO(v)), v
	c.Programs[k].Out = append(c.Programs[k].Out, ref)
	return ref
}

// send returns an operand of exchange n.
func (c *cutting) send(n int, v *stablehlo.Value) Ref {
	at := c.at(v)
	if m, ok := c.exchange[at]; ok {
		return Ref{RefReceived, m}
	}
	k := c.Exchanges[n].Before - 1
	if at >= 0 && !c.free[at] {
		k = c.program[at]
	}
	c.take(k, v)
	return c.carry(k, v)
}

// leave removes all statements that a program does not need from the function under construction, and returns the
// program's outputs.
func (c *cutting) leave(of Segment, given []*graph.Node) (out []*stablehlo.Value) {
	instead := map[string]*stablehlo.Value{}
	for i, ref := range of.In {
		instead[c.values[ref].String()] = hloValue(valueOf(given[i]))
	}
	for _, ref := range of.Out {
		v := c.values[ref]
		if by := instead[v.String()]; by != nil {
			v = by
		}
		out = append(out, v)
	}
	var remaining []*stablehlo.Statement
	needed := c.neededBy(out, instead)
	for i, s := range c.main.Statements[:len(needed)] {
		if needed[i] {
			put(s, instead)
			remaining = append(remaining, s)
		}
	}
	c.main.Statements = remaining
	return out
}

// neededBy reports, by position, which statements values depend on, with some values replaced.
func (c *cutting) neededBy(values []*stablehlo.Value, instead map[string]*stablehlo.Value) []bool {
	needed := make([]bool, len(c.main.Statements))
	for i, s := range c.main.Statements {
		for _, v := range s.Outputs {
			c.made[v.String()] = i
		}
	}
	open := slices.Clone(values)
	for len(open) > 0 {
		v := open[len(open)-1]
		open = open[:len(open)-1]
		if by := instead[v.String()]; by != nil {
			v = by
		}
		if at, ok := c.made[v.String()]; ok && !needed[at] {
			needed[at] = true
			open = append(open, c.uses(c.main.Statements[at])...)
		}
	}
	return needed
}

// uses returns the values that a statement and its closures use.
func (c *cutting) uses(s *stablehlo.Statement) []*stablehlo.Value {
	all := slices.Clone(s.Inputs)
	for _, f := range s.FunctionParameters {
		for _, inner := range f.Statements {
			all = append(all, c.uses(inner)...)
		}
	}
	return all
}

// put replaces values in a statement and its closures.
func put(s *stablehlo.Statement, instead map[string]*stablehlo.Value) {
	for i, v := range s.Inputs {
		if by := instead[v.String()]; by != nil {
			s.Inputs[i] = by
		}
	}
	for _, f := range s.FunctionParameters {
		for _, inner := range f.Statements {
			put(inner, instead)
		}
	}
}

// valueOf returns a node's value in the backend.
func valueOf(n *graph.Node) compute.Value { return graph.InternalBackendOutputs(n)[0] }

// shapeOfHLO returns a value's shape in GoMLX's form.
func shapeOfHLO(v *stablehlo.Value) shapes.Shape { return goxla.ShapeFromXLA(v.Shape()) }
