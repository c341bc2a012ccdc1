package xla

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/stablehlo"
	xlashapes "github.com/gomlx/go-xla/types/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// Kernel is a C function that programs on a CPU call by XLA's foreign-function interface
// (https://openxla.org/xla/custom_call). Write it with foreign/foreign.h.
type Kernel struct {
	name    string
	handler unsafe.Pointer
	number  int
	at      sync.Map // by the plugin's path: whether the kernel is registered
}

var kernels struct {
	sync.Mutex
	all []*Kernel
}

// NewKernel makes a kernel of a C function void *handler(foreign_frame *). The name is that in programs, and unique in
// the process. Use it for package-level variables: kernels are never freed.
func NewKernel(name string, handler unsafe.Pointer) *Kernel {
	kernels.Lock()
	defer kernels.Unlock()
	k := &Kernel{name: name, handler: handler, number: len(kernels.all)}
	kernels.all = append(kernels.all, k)
	return k
}

// Call adds a call of the kernel to the operands' graph, and returns its results, of the given shapes. There must be at
// least two: GoMLX drops a call with one result under Checkpoint. Operands and results are in row-major order.
//
// XLA assumes that the results depend only on the operands, and may call the kernel once for equal operands. The
// kernel's error becomes the program's; if only one of several devices has it and the program has collectives after the
// call, it ends the process.
//
// Call returns otherwise(operands), which must be the same function, where XLA cannot call the kernel: on other devices
// than CPUs, on other backends, with a plugin without that interface, and in CompileAuto, whose compiler could not
// split the call. Like GoMLX's function calls, it has no gradient.
func (k *Kernel) Call(operands []*graph.Node, results []shapes.Shape,
	otherwise func(operands []*graph.Node) []*graph.Node) []*graph.Node {
	if len(operands) == 0 || len(results) < 2 {
		panic(fmt.Errorf("kernel %q has %d operands and %d results: give it one operand and two results, or more",
			k.name, len(operands), len(results)))
	}
	g := operands[0].Graph()
	if b, ours := g.Backend().(*Backend); !ours || g.DistributedStrategy() == distributed.AutoSharding ||
		!k.knownTo(b) {
		return otherwise(operands)
	}
	// GoMLX has no node for this. It calls a function with the results' shapes, for which the backend writes the
	// kernel's call. Constants must not be shared with it (docs/upstream.md, "constants across closures").
	clearScalars(g)
	defer clearScalars(g)
	f := graph.NewFunction(g, g.UniqueName(fmt.Sprintf("%s%d", calling, k.number)), func(g *graph.Graph) []*graph.Node {
		for i, x := range operands {
			graph.Parameter(g, fmt.Sprintf("operand%d", i), x.Shape())
		}
		zeros := make([]*graph.Node, len(results))
		for i, shape := range results {
			zeros[i] = graph.Zeros(g, shape)
		}
		return zeros
	})
	return f.Call(operands...)
}

// calling is the prefix of the names of functions that stand for kernels. The kernel's number follows, and perhaps "_"
// with a suffix that makes the name unique.
const calling = "shardbook_kernel_"

// kernelOf returns the kernel that a function of this name stands for, or nil.
func kernelOf(name string) *Kernel {
	kernels.Lock()
	defer kernels.Unlock()
	k, _ := named(kernels.all, calling, name)
	return k
}

// knownTo registers the kernel with the plugin, once, and reports whether that worked.
func (k *Kernel) knownTo(b *Backend) bool {
	if b.info.Platform != plugin.CPU {
		return false
	}
	tell, _ := k.at.LoadOrStore(b.plugin.Path, sync.OnceValue(func() bool {
		return plugin.RegisterKernel(b.plugin, k.name, k.handler) == nil
	}))
	return tell.(func() bool)()
}

// typedCall is the version of XLA's foreign-function interface, in StableHLO's numbers; go-xla writes another.
const typedCall = 4

// write writes the kernel's call in place of a function call.
func (k *Kernel) write(beside compute.Value, operands []*stablehlo.Value,
	f *stablehlo.Function) ([]compute.Value, error) {
	values, err := stablehlo.CustomCallV2(k.name, "", operands, make([][]int, len(operands)), shapesOf(f.Outputs),
		make([][]int, len(f.Outputs)))
	if err != nil {
		return nil, err
	}
	statementOf(values[0]).Attributes["api_version"] = int32(typedCall)
	results := make([]compute.Value, len(values))
	for i, v := range values {
		results[i] = newValue(beside, v)
	}
	return results, nil
}

func shapesOf(values []*stablehlo.Value) (all []xlashapes.Shape) {
	for _, v := range values {
		all = append(all, v.Shape())
	}
	return all
}
