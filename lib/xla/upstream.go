package xla

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"
	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"
)

// Only this file accesses unexported fields of go-xla and GoMLX. It checks them when the package is loaded, so that
// another version fails then with a clear message and not later with a wrong result. Two fields are in types without
// exported names; they are checked whenever they are read, first when a backend is opened.

var (
	bufferPJRT     = field[goxla.Buffer, *pjrt.Buffer]("pjrtBuffer")
	executableExec = field[goxla.Executable, *pjrt.LoadedExecutable]("exec")
	functionFn     = field[goxla.Function, *stablehlo.Function]("fn")
	nodeValue      = field[goxla.Node, *stablehlo.Value]("value")
	nodeShape      = field[goxla.Node, shapes.Shape]("shape")
	nodeBuilder    = field[goxla.Node, *goxla.Builder]("builder")
	valueFn        = field[stablehlo.Value, *stablehlo.Function]("fn")
	valueStatement = field[stablehlo.Value, *stablehlo.Statement]("stmt")

	builderCaches = []reflect.StructField{
		kindOf[goxla.Builder]("cacheReductions", reflect.Map),
		kindOf[goxla.Builder]("cacheArgMinMax", reflect.Map),
		kindOf[goxla.Builder]("cacheSelections", reflect.Map),
	}
	graphFunction = field[graph.Function, compute.Function]("backendFunc")

	graphScalars = kindOf[graph.Graph]("scalars", reflect.Map)
	nodeInputs   = kindOf[graph.Node]("inputs", reflect.Interface)
)

// Operations that go-xla can write but has no function for, by number.
const opReduceScatter = 102

func init() {
	s := stablehlo.Statement{OpType: opReduceScatter}
	if got, want := s.OpType.ToStableHLO(), "stablehlo.reduce_scatter"; got != want {
		panic(fmt.Sprintf("lib/xla was written for go-xla v0.4.1, where operation %d is %q; here it is "+
			"%q: build with v0.4.1", opReduceScatter, want, got))
	}
}

// pointer is the offset of a field of type Field in a struct of type Owner.
type pointer[Owner, Field any] struct{ offset uintptr }

func (p pointer[Owner, Field]) of(owner *Owner) *Field {
	return (*Field)(unsafe.Add(unsafe.Pointer(owner), p.offset))
}

func field[Owner, Field any](name string) pointer[Owner, Field] {
	want := reflect.TypeFor[Field]()
	f := fieldOf(reflect.TypeFor[Owner](), name, func(t reflect.Type) bool { return t == want })
	return pointer[Owner, Field]{f.Offset}
}

// kindOf finds a field whose type has no exported name.
func kindOf[Owner any](name string, kind reflect.Kind) reflect.StructField {
	return fieldOf(reflect.TypeFor[Owner](), name, func(t reflect.Type) bool { return t.Kind() == kind })
}

func fieldOf(owner reflect.Type, name string, right func(reflect.Type) bool) reflect.StructField {
	f, found := owner.FieldByName(name)
	if !found || !right(f.Type) {
		panic(fmt.Sprintf("lib/xla was written for gomlx v0.28.2 and go-xla v0.4.1, where %v has a field %q of "+
			"another type than here (%v): build with those versions", owner, name, f.Type))
	}
	return f
}

// clearMap empties a map in a field of a struct.
func clearMap(owner unsafe.Pointer, f reflect.StructField) {
	reflect.NewAt(f.Type, unsafe.Add(owner, f.Offset)).Elem().Clear()
}

// loadedExecutable returns PJRT's executable inside go-xla's.
func loadedExecutable(e compute.Executable) *pjrt.LoadedExecutable {
	return *executableExec.of(e.(*goxla.Executable))
}

// pjrtBuffer returns PJRT's buffer inside go-xla's.
func pjrtBuffer(b compute.Buffer) *pjrt.Buffer { return *bufferPJRT.of(b.(*goxla.Buffer)) }

// hloFunction returns the StableHLO function inside go-xla's.
func hloFunction(f compute.Function) *stablehlo.Function { return *functionFn.of(f.(*goxla.Function)) }

// functionIn returns the function of ours inside one of GoMLX's.
func functionIn(f *graph.Function) *function { return (*graphFunction.of(f)).(*function) }

// hloValue returns the StableHLO value inside one of GoMLX's.
func hloValue(v compute.Value) *stablehlo.Value { return *nodeValue.of(v.(*goxla.Node)) }

// functionOf returns the function that a StableHLO value belongs to.
func functionOf(v *stablehlo.Value) *stablehlo.Function { return *valueFn.of(v) }

// statementOf returns the statement that made a StableHLO value.
func statementOf(v *stablehlo.Value) *stablehlo.Statement { return *valueStatement.of(v) }

// newValue makes one of GoMLX's values of a StableHLO value, beside another of the
// same builder.
func newValue(beside compute.Value, v *stablehlo.Value) compute.Value {
	n := new(goxla.Node)
	*nodeValue.of(n) = v
	*nodeShape.of(n) = goxla.ShapeFromXLA(v.Shape())
	*nodeBuilder.of(n) = *nodeBuilder.of(beside.(*goxla.Node))
	return n
}

// clearFunctionCaches empties a builder's caches of small functions for reductions and the like.
func clearFunctionCaches(b compute.Builder) {
	for _, cache := range builderCaches {
		clearMap(unsafe.Pointer(b.(*goxla.Builder)), cache)
	}
}

// clearScalars empties a graph's cache of scalar constants.
func clearScalars(g *graph.Graph) { clearMap(unsafe.Pointer(g), graphScalars) }

// reductionTypeOf returns the reduction type of an AllReduce node of GoMLX.
func reductionTypeOf(n *graph.Node) compute.ReduceOpType {
	return compute.ReduceOpType(inputOf[compute.ReduceOpType](n, "reductionType").Int())
}

// calledName returns the name of the function that a Call node of GoMLX calls.
func calledName(n *graph.Node) string {
	return inputOf[*graph.Function](n, "f").Elem().FieldByName("name").String()
}

// inputOf returns a field of a node's inputs.
func inputOf[Field any](n *graph.Node, name string) reflect.Value {
	inputs := reflect.ValueOf(n).Elem().FieldByIndex(nodeInputs.Index).Elem()
	of := inputs.Elem().FieldByName(name)
	if !of.IsValid() || of.Type() != reflect.TypeFor[Field]() {
		panic(fmt.Sprintf("lib/xla was written for gomlx v0.28.2, where %v has a field %q: build with that version",
			inputs.Type(), name))
	}
	return of
}
