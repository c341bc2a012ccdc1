package xla

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// ThrowingErrors returns a graph function, for a graph.Exec, that panics only with errors. After any other panic GoMLX
// believes forever that the function is being compiled (docs/upstream.md, "panics that are no errors"). It also panics
// with an error for results on which GoMLX would panic: none, and nil nodes. A [Program] uses it by itself.
func ThrowingErrors[F graph.ExecGraphFn](fn F) F {
	f := reflect.ValueOf(fn)
	throws := func(args []reflect.Value) []reflect.Value { return throwing(f, args) }
	return reflect.MakeFunc(f.Type(), throws).Interface().(F)
}

// throwing calls a graph function as ThrowingErrors says.
func throwing(f reflect.Value, args []reflect.Value) []reflect.Value {
	defer func() {
		if by := recover(); by != nil {
			panic(thrown{asError(by)})
		}
	}()
	if f.IsNil() {
		panic(errors.New("the graph function is nil"))
	}
	results := f.Call(args)
	if !someNodes(results) {
		panic(errors.New("the graph function returns no nodes, or a nil node: return what the program computes"))
	}
	return results
}

// newExec is graph.NewExec(b, ThrowingErrors(fn)), but not generic: a package that calls a generic function, such as a
// notebook's cell, compiles it, and GoMLX's has a function for each type of fn.
func newExec(b *Backend, fn any) (*graph.Exec, error) {
	f, t := reflect.ValueOf(fn), reflect.TypeOf(fn)
	takesGraph := t.In(0) == reflect.TypeFor[*graph.Graph]()
	takesSlice, returnsSlice := t.In(t.NumIn()-1).Kind() == reflect.Slice, t.Out(0).Kind() == reflect.Slice
	count, outputs := inputsOf(fn), t.NumOut()
	if returnsSlice {
		outputs = -1
	}
	return graph.NewExecCanonical(b, func(g *graph.Graph, inputs []*graph.Node) (nodes []*graph.Node) {
		var args []reflect.Value
		if takesGraph {
			args = append(args, reflect.ValueOf(g))
		}
		if takesSlice {
			args = append(args, reflect.ValueOf(inputs))
		} else {
			for i := range count {
				args = append(args, reflect.ValueOf(inputs[i]))
			}
		}
		results := throwing(f, args)
		if returnsSlice {
			return results[0].Interface().([]*graph.Node)
		}
		for _, r := range results {
			nodes = append(nodes, r.Interface().(*graph.Node))
		}
		return nodes
	}, count, outputs, takesGraph, takesSlice, returnsSlice)
}

// someNodes reports whether results, of the types that a graph function may have, are nodes, and at least one.
func someNodes(results []reflect.Value) bool {
	for _, r := range results {
		if nodes, ok := r.Interface().([]*graph.Node); ok && (len(nodes) == 0 || slices.Contains(nodes, nil)) ||
			r.IsNil() {
			return false
		}
	}
	return true
}

// thrown is a panic of a graph function.
type thrown struct{ error }

func (t thrown) Unwrap() error { return t.error }

// plain returns a graph function's own error, without what GoMLX wraps it in; other errors are returned unchanged.
func plain(err error) error {
	var by thrown
	if errors.As(err, &by) {
		return by.error
	}
	return err
}

// asError converts a panic's value to an error.
func asError(by any) error {
	if err, ok := by.(error); ok {
		return err
	}
	return fmt.Errorf("%v", by)
}

// inputsOf returns the number of a graph function's inputs; -1 if they are a slice.
func inputsOf(fn any) int {
	t := reflect.TypeOf(fn)
	if t == nil || t.Kind() != reflect.Func {
		return -1
	}
	count := 0
	for i := range t.NumIn() {
		switch t.In(i) {
		case reflect.TypeFor[*graph.Node]():
			count++
		case reflect.TypeFor[*graph.Graph]():
		default:
			return -1
		}
	}
	return count
}

// functionName returns Go's name of a function.
func functionName(fn any) string {
	if f := runtime.FuncForPC(reflect.ValueOf(fn).Pointer()); f != nil {
		return f.Name()
	}
	return "program"
}

// recoverGraph turns GoMLX's own panics into errors.
func recoverGraph(err *error) {
	if by := recover(); by != nil {
		*err = fmt.Errorf("building the graph: %w", asError(by))
	}
}

// Shapes returns the shapes of a graph function's results on one device of the mesh, for inputs of the given shapes on
// that device. It compiles nothing, and returns the function's panics as errors.
func (m *Mesh) Shapes(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (out []shapes.Shape, err error) {
	defer recoverGraph(&err)
	g := graph.NewGraph(m.backend, "")
	defer g.Finalize()
	if err := g.SetSPMD(m.DeviceMesh); err != nil {
		return nil, err
	}
	for _, n := range fn(inputs(g, in)) {
		out = append(out, n.Shape())
	}
	return out, nil
}

// Text returns a graph function's program for one device as StableHLO, the input of XLA. It compiles nothing, and
// returns the function's panics as errors.
func (b *Backend) Text(fn func(in []*graph.Node) []*graph.Node, in ...shapes.Shape) (text string, err error) {
	defer recoverGraph(&err)
	g := graph.NewGraph(b, "program") // GoMLX would choose another name each time
	defer g.Finalize()
	out := fn(inputs(g, in))
	main := g.CurrentFunc() // exists once something is built
	main.Return(out, nil)
	program, err := hloFunction(unwrap(functionIn(main))).Builder.Build()
	return string(program), err
}

// inputs returns parameters of a graph with these shapes.
func inputs(g *graph.Graph, in []shapes.Shape) (nodes []*graph.Node) {
	for i, s := range in {
		nodes = append(nodes, graph.Parameter(g, fmt.Sprint("in", i), s))
	}
	return nodes
}
