package xla

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// What a program needs to know of its graph function, and keep from GoMLX.

// ThrowingErrors makes a graph function throw its panics as errors, for a graph.Exec.
// After one that is no error GoMLX believes for ever that the function is being compiled
// (docs/upstream.md, "panics that are no errors"). A [Program] does it by itself. So it throws an error for results that
// GoMLX would panic over: none at all, and nodes that are nil.
func ThrowingErrors[F graph.ExecGraphFn](fn F) F {
	f := reflect.ValueOf(fn)
	if f.Kind() != reflect.Func || f.IsNil() {
		return fn // for GoMLX to refuse
	}
	return reflect.MakeFunc(f.Type(), func(args []reflect.Value) []reflect.Value {
		defer func() {
			if by := recover(); by != nil {
				panic(thrown{asError(by)})
			}
		}()
		results := f.Call(args)
		if !someNodes(results) {
			panic(errors.New("the graph function returns no nodes, or nil for one: have it return what the program computes"))
		}
		return results
	}).Interface().(F)
}

// someNodes says whether results, of the types that a graph function may have, are nodes, and at least one.
func someNodes(results []reflect.Value) bool {
	for _, r := range results {
		if nodes, ok := r.Interface().([]*graph.Node); ok && (len(nodes) == 0 || slices.Contains(nodes, nil)) || r.IsNil() {
			return false
		}
	}
	return true
}

// thrown is an error that a graph function has thrown.
type thrown struct{ error }

func (t thrown) Unwrap() error { return t.error }

// plain is what a graph function has thrown, without what GoMLX says around it; any other error is left as it is.
func plain(err error) error {
	var by thrown
	if errors.As(err, &by) {
		return by.error
	}
	return err
}

// asError is what somebody panics with.
func asError(by any) error {
	if err, ok := by.(error); ok {
		return err
	}
	return fmt.Errorf("%v", by)
}

// inputsOf counts a graph function's inputs; it is -1 where they come as a slice.
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

// functionName is what Go calls a function.
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
