package xla

import (
	"errors"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/stablehlo"
)

// builder is go-xla's builder. It also tracks which function is being built, which GoMLX does not tell go-xla for
// nested functions.
type builder struct {
	compute.Builder
	backend *Backend
	main    *function
	open    []*function // under construction, the innermost last
	donated []int       // parameters of the main function
	auto    bool        // the compiler shards the program
	devices []compute.DeviceNum
	first   int64 // number of the first of consecutive devices, or -1 for others
	calls   int64 // of kernels for collectives

	products map[*stablehlo.Value]product // matmuls by kernels, by their results
}

// Builder starts a graph; GoMLX calls it. XLA gets the name without the number that is specific to this process, so
// that the program is the same in every process.
func (b *Backend) Builder(name string) compute.Builder {
	return &builder{Builder: b.Backend.Builder(withoutNumber(name)), backend: b, donated: donatedBy(name),
		products: map[*stablehlo.Value]product{}}
}

// DistributedAutoSharding has the compiler shard the program.
func (b *builder) DistributedAutoSharding(meshes ...compute.Mesh) error {
	b.auto = true
	return b.Builder.DistributedAutoSharding(meshes...)
}

// DeviceAssignment sets the devices that the program runs on.
func (b *builder) DeviceAssignment(devices ...compute.DeviceNum) error {
	b.devices = devices
	physical := make([]compute.DeviceNum, len(devices))
	for i, d := range devices {
		physical[i] = b.backend.physical(d)
	}
	b.first = int64(physical[0])
	for i, d := range physical {
		if int64(d) != b.first+int64(i) {
			b.first = -1
			break
		}
	}
	return b.Builder.DeviceAssignment(physical...)
}

// Main returns the function whose inputs and outputs are the program's.
func (b *builder) Main() compute.Function {
	if b.main == nil {
		b.main = b.begin(b.Builder.Main(), nil)
	}
	return b.main
}

// NewFunction begins a function that others can call.
func (b *builder) NewFunction(name string) (compute.Function, error) {
	inner, err := b.Builder.NewFunction(name)
	if err != nil {
		return nil, err
	}
	f := b.begin(inner, nil)
	if k, ok := kernels.named(name); ok {
		f.instead = k.write
	}
	if e, ok := exchanges.named(name); ok {
		f.instead = e.write
	}
	if d, ok := dotsFP8.named(name); ok {
		f.instead = d.write
	}
	return f, nil
}

// Compile ends the graph.
func (b *builder) Compile() (compute.Executable, error) {
	inner, err := b.Builder.Compile()
	if err != nil {
		return nil, explain(err)
	}
	e := &executable{Executable: inner, backend: b.backend, devices: b.devices}
	if b.calls == 0 {
		return e, nil
	}
	if err := e.met(); err != nil {
		e.Finalize()
		return nil, err
	}
	return e, nil
}

// begin starts a function. Whenever the function under construction changes, it empties go-xla's caches of small
// functions: go-xla would use one made inside one function in another, which XLA rejects (docs/upstream.md, "reductions
// in two functions").
func (b *builder) begin(inner compute.Function, parent *function) *function {
	clearFunctionCaches(b.Builder)
	f := &function{Function: inner, builder: b, parent: parent}
	b.open = append(b.open, f)
	return f
}

// end ends a function.
func (b *builder) end(f *function) {
	clearFunctionCaches(b.Builder)
	b.open = slices.DeleteFunc(b.open, func(o *function) bool { return o == f })
}

// function adds to go-xla's function: collectives (collective.go), values of an outer function (capture.go), and
// closures in closures.
type function struct {
	compute.Function
	builder *builder
	parent  *function                                                    // of a closure
	instead func(inputs []value, f *stablehlo.Function) ([]value, error) // what its calls stand for, or nil
	met     bool                                                         // has collectives by kernels
	used    bool                                                         // a closure
}

// Builder returns the function's builder.
func (f *function) Builder() compute.Builder { return f.builder }

// Parent returns the function around a closure, else nil.
func (f *function) Parent() compute.Function {
	if f.parent == nil {
		return nil
	}
	return f.parent
}

// Closure begins a function inside the one under construction. GoMLX asks the main function for every closure, also for
// one in another closure (docs/upstream.md, "closures in closures").
func (f *function) Closure() (compute.Function, error) {
	parent := f.builder.open[len(f.builder.open)-1]
	inner, err := parent.Function.Closure()
	if err != nil {
		return nil, err
	}
	return f.builder.begin(inner, parent), nil
}

// Return ends the function.
func (f *function) Return(outputs []compute.Value, shardings []*compute.ShardingSpec) error {
	f.builder.end(f)
	return f.Function.Return(f.here(outputs...), shardings)
}

// Parameter adds an input, and marks it if it is donated.
func (f *function) Parameter(name string, shape shapes.Shape, sharding *compute.ShardingSpec) (compute.Value, error) {
	p, err := f.Function.Parameter(name, shape, sharding)
	if err != nil || f != f.builder.main {
		return p, err
	}
	if slices.Contains(f.builder.donated, len(hloFunction(f.Function).Inputs)-1) {
		donate(hloValue(p))
	}
	return p, nil
}

// unwrap returns go-xla's function inside of ours.
func unwrap(f compute.Function) compute.Function { return f.(*function).Function }

// Call calls a function made by NewFunction, or writes what it stands for.
func (f *function) Call(target compute.Function, inputs ...compute.Value) ([]compute.Value, error) {
	inputs = f.here(inputs...)
	if of := target.(*function); of.instead != nil {
		return of.instead(inputs, hloFunction(of.Function))
	}
	return f.Function.Call(unwrap(target), inputs...)
}

// once returns an error for closures with collectives by kernels that are used twice: their copies could be confused.
func once(closures ...compute.Function) error {
	for _, c := range closures {
		f := c.(*function)
		if f.met && f.used {
			return errors.New("a closure with collectives is used twice: build it for each use")
		}
		f.used = true
	}
	return nil
}

// While runs body while cond is true.
func (f *function) While(cond, body compute.Function, state ...compute.Value) ([]compute.Value, error) {
	if err := once(cond, body); err != nil {
		return nil, err
	}
	return f.Function.While(unwrap(cond), unwrap(body), f.here(state...)...)
}

// If runs one of two closures.
func (f *function) If(pred compute.Value, then, otherwise compute.Function) ([]compute.Value, error) {
	if err := once(then, otherwise); err != nil {
		return nil, err
	}
	return f.Function.If(f.here(pred)[0], unwrap(then), unwrap(otherwise))
}

// Sort sorts by a closure that compares.
func (f *function) Sort(less compute.Function, axis int, stable bool,
	inputs ...compute.Value) ([]compute.Value, error) {
	return f.Function.Sort(unwrap(less), axis, stable, f.here(inputs...)...)
}
