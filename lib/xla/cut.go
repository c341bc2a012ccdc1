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

// Cut is a graph function with shifts ([Shift]), cut into programs: at each shift, and where first something is needed
// that a shift has received, so that it can travel beside the program before. What a program makes and a later one, or
// another rank, takes is carried: an output of the one and an input of the others. What depends on nothing but constants
// and scalars is made again where it is used.
type Cut struct {
	Shifts   []Shifted      // in their order
	Carried  []shapes.Shape // on a device; scalars as vectors of one
	Programs []CutProgram

	fn func(in []*graph.Node) []*graph.Node
	in []shapes.Shape
}

// Shifted is a shift of a [Cut], and what is shifted: something carried, or received by a shift before.
type Shifted struct {
	Shift
	Of     Ref
	Shape  shapes.Shape
	Before int // the program before which it can begin
}

// CutProgram is what a program of a [Cut] takes and returns.
type CutProgram struct{ In, Out []Ref }

// Ref is an input or output of the function that is cut, something carried, or what a shift has received, by its number.
type Ref struct {
	Kind   RefKind
	Number int
}

// RefKind says what a [Ref] is of.
type RefKind byte

// The kinds of what programs of a [Cut] take and return.
const (
	RefInput RefKind = iota
	RefOutput
	RefCarried
	RefReceived
)

// NewCut cuts a graph function, for inputs of shapes as a device of the mesh has them. The function must build the same
// graph whenever it is called. What it panics with is an error.
func NewCut(m *Mesh, fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (*Cut, error) {
	var c *Cut
	_, err := m.Shapes(func(nodes []*graph.Node) []*graph.Node {
		c = newCutting(nodes, fn(slices.Clone(nodes))).Cut
		return nodes[:1]
	}, in...)
	if err != nil {
		return nil, err
	}
	c.fn, c.in = fn, in
	return c, nil
}

// Program returns the graph function of program number k, whose inputs and outputs are those that Programs says.
func (c *Cut) Program(k int) func(in []*graph.Node) []*graph.Node {
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
			if in[i] == nil { // what this program makes does not depend on it
				in[i] = graph.Zeros(g, shape)
			}
		}
		now := newCutting(in, c.fn(slices.Clone(in)))
		if !reflect.DeepEqual(now.Shifts, c.Shifts) || !reflect.DeepEqual(now.Programs, c.Programs) ||
			!slices.EqualFunc(now.Carried, c.Carried, shapes.Shape.Equal) {
			panic(errors.New("a function that is cut builds another graph each time: have it depend on nothing but its " +
				"arguments and their shapes"))
		}
		out := make([]*graph.Node, len(of.Out))
		for i, ref := range of.Out { // nodes of the right shapes, whose values are changed
			out[i] = graph.Identity(graph.Zeros(g, shapeOfHLO(now.values[ref])))
		}
		beside := valueOf(given[0])
		for i, v := range now.leave(of, given) {
			graph.InternalBackendOutputs(out[i])[0] = newValue(beside, v)
			if of.Out[i].Kind == RefCarried && out[i].IsScalar() {
				out[i] = graph.Reshape(out[i], 1)
			}
		}
		return out
	}
}

// Takes says whether something is taken by a program from number k on, or by a shift before one.
func (c *Cut) Takes(k int, r Ref) bool {
	return slices.ContainsFunc(c.Programs[min(k, len(c.Programs)):], func(p CutProgram) bool { return slices.Contains(p.In, r) }) ||
		slices.ContainsFunc(c.Shifts, func(s Shifted) bool { return s.Before >= k && s.Of == r })
}

// shapeOf is the shape of what is carried or received.
func (c *Cut) shapeOf(r Ref) shapes.Shape {
	if r.Kind == RefReceived {
		return c.Shifts[r.Number].Shape
	}
	return c.Carried[r.Number]
}

// cutting is a cut of a function as it was built in StableHLO, where what depends on what can be seen. (GoMLX's nodes
// do not say: lib/autodiff changes their values.) Values are known by their names, which closures use, too.
type cutting struct {
	*Cut
	main    *stablehlo.Function
	values  map[Ref]*stablehlo.Value
	inputs  map[string]int // numbers
	made    map[string]int // positions of the statements
	live    []bool         // by position: whether an output depends on a statement
	free    []bool         // whether it depends on constants and scalars alone
	program []int          // its own
	shift   map[int]int    // by position: numbers of shifts
}

func newCutting(in, out []*graph.Node) *cutting {
	c := &cutting{Cut: &Cut{}, main: functionOf(hloValue(valueOf(in[0]))), values: map[Ref]*stablehlo.Value{},
		inputs: map[string]int{}, made: map[string]int{}, shift: map[int]int{}}
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
		if n, ok := c.shift[i]; ok {
			c.Shifts[n].Of = c.send(n, s.Inputs[0])
		} else if c.live[i] && !c.free[i] {
			for _, v := range c.uses(s) {
				c.take(c.program[i], v)
			}
		}
	}
	for i, v := range results {
		k := len(c.Programs) - 1
		if at := c.at(v); at >= 0 && !c.free[at] && !c.isShift(at) {
			k = c.program[at]
		} else {
			c.take(k, v)
		}
		c.Programs[k].Out = append(c.Programs[k].Out, Ref{RefOutput, i})
	}
	return c
}

// deal deals the statements to programs.
func (c *cutting) deal(scalar []bool) {
	all := c.main.Statements
	c.free, c.program = make([]bool, len(all)), make([]int, len(all))
	now, begun, there := 0, false, map[int]bool{} // a program, whether there is something in it, and what was received
	next := func() {
		if begun {
			now, begun = now+1, false
		}
	}
	for i, s := range all {
		if !c.live[i] {
			continue
		}
		if shift, ok := shiftIn(s); ok {
			begun = begun || now == 0 // which returns what is shifted
			next()
			c.shift[i] = len(c.Shifts)
			c.values[Ref{RefReceived, len(c.Shifts)}] = s.Outputs[0]
			c.Shifts = append(c.Shifts, Shifted{Shift: shift, Shape: shapeOfHLO(s.Outputs[0]), Before: now})
			continue
		}
		c.free[i] = true
		for _, v := range c.uses(s) {
			if n, ok := c.inputs[v.String()]; ok {
				c.free[i] = c.free[i] && scalar[n]
			} else if at := c.at(v); at >= 0 {
				c.free[i] = c.free[i] && c.free[at]
				if n, ok := c.shift[at]; ok && !there[n] {
					there[n] = true
					next()
				}
			}
		}
		c.program[i], begun = now, begun || !c.free[i]
	}
	c.Programs = make([]CutProgram, now+1)
}

// at is the position of the statement that makes a value, or −1 for an input and what is a closure's own.
func (c *cutting) at(v *stablehlo.Value) int {
	if at, ok := c.made[v.String()]; ok {
		return at
	}
	return -1
}

func (c *cutting) isShift(at int) bool { _, ok := c.shift[at]; return ok }

// take has a program take a value, unless it makes that itself.
func (c *cutting) take(k int, v *stablehlo.Value) {
	var ref Ref
	at := c.at(v)
	if i, ok := c.inputs[v.String()]; ok {
		ref = Ref{RefInput, i}
	} else if n, ok := c.shift[at]; ok {
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

// carry has a program return a value that others take.
func (c *cutting) carry(k int, v *stablehlo.Value) Ref {
	for n := range c.Carried {
		if ref := (Ref{RefCarried, n}); c.values[ref].String() == v.String() {
			return ref
		}
	}
	ref := Ref{RefCarried, len(c.Carried)}
	c.Carried, c.values[ref] = append(c.Carried, shapeOfHLO(v)), v
	c.Programs[k].Out = append(c.Programs[k].Out, ref)
	return ref
}

// send is what shift number n gives to another rank.
func (c *cutting) send(n int, v *stablehlo.Value) Ref {
	at := c.at(v)
	if m, ok := c.shift[at]; ok {
		return Ref{RefReceived, m}
	}
	k := c.Shifts[n].Before - 1
	if at >= 0 && !c.free[at] {
		k = c.program[at]
	}
	c.take(k, v)
	return c.carry(k, v)
}

// leave takes all out of the function that is being built but what a program needs, and returns the values of what that
// returns.
func (c *cutting) leave(of CutProgram, given []*graph.Node) (out []*stablehlo.Value) {
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
	var left []*stablehlo.Statement
	needed := c.neededBy(out, instead)
	for i, s := range c.main.Statements[:len(needed)] {
		if needed[i] {
			put(s, instead)
			left = append(left, s)
		}
	}
	c.main.Statements = left
	return out
}

// neededBy says, by position, on which statements values depend, of which some are replaced by others.
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

// uses are the values that a statement uses, with those that its closures use.
func (c *cutting) uses(s *stablehlo.Statement) []*stablehlo.Value {
	all := slices.Clone(s.Inputs)
	for _, f := range s.FunctionParameters {
		for _, inner := range f.Statements {
			all = append(all, c.uses(inner)...)
		}
	}
	return all
}

// put has a statement, and its closures, use other values.
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

// valueOf returns the backend's value of a node.
func valueOf(n *graph.Node) compute.Value { return graph.InternalBackendOutputs(n)[0] }

// shapeOfHLO is a value's shape, as GoMLX has it.
func shapeOfHLO(v *stablehlo.Value) shapes.Shape { return goxla.ShapeFromXLA(v.Shape()) }
