package xla

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/stablehlo"
	xlashapes "github.com/gomlx/go-xla/types/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/xla/internal/dense"
)

// Kernel is a C function that programs on a CPU call by XLA's foreign-function interface
// (https://openxla.org/xla/custom_call). Write it with foreign/foreign.h.
type Kernel struct {
	name     string
	function string // the name of the function that stands for it
	handler  unsafe.Pointer
	at       sync.Map // by the plugin's path: whether the kernel is registered
	check    func() (operands, want []*tensors.Tensor)
}

var kernels = numbered[*Kernel]{prefix: "shardbook_kernel_"}

// NewKernel makes a kernel of a C function void *handler(foreign_frame *). The name is that in programs, and unique in
// the process. Use it for package-level variables: kernels are never freed.
func NewKernel(name string, handler unsafe.Pointer) *Kernel {
	k := &Kernel{name: name, handler: handler}
	k.function = kernels.name(fmt.Sprintf("%p", k), k)
	return k
}

// Checked has every Open check the kernel: a canary calls it on the operands and compares its results with the right
// ones, which must be exact in any order of summation. Call it once, where the kernel is made.
func (k *Kernel) Checked(check func() (operands, want []*tensors.Tensor)) *Kernel {
	k.check = check
	checkedKernels.Lock()
	defer checkedKernels.Unlock()
	checkedKernels.all = append(checkedKernels.all, k)
	return k
}

// checkedKernels are those that canaries check.
var checkedKernels struct {
	sync.Mutex
	all []*Kernel
}

// Call adds a call of the kernel to the operands' graph, and returns its results, of the given shapes. There must be at
// least two: GoMLX drops a call with one result under Checkpoint. Operands and results are in row-major order.
//
// XLA assumes that the results depend only on the operands, and may call the kernel once for equal operands. The
// kernel's error becomes the program's; if only one of several devices has it and the program has collectives after the
// call, once the other devices have waited for it (see [While]).
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
	if k.callerIn(operands[0].Graph()) == nil {
		return otherwise(operands)
	}
	return standIn(k.function+"_"+k.name, operands, results)
}

// Replaces reports whether the kernel should compute in place of XLA's operations in a graph: where Call calls it, on
// processors with vectors of at least 256 bits, for which kernels are compiled, unless the backend was opened with
// [NoKernels].
func (k *Kernel) Replaces(g *graph.Graph) bool {
	b := k.callerIn(g)
	return b != nil && b.kernels && dense.Bits() > 128
}

// callerIn returns a graph's backend if XLA can call the kernel in the graph's program, else nil.
func (k *Kernel) callerIn(g *graph.Graph) *Backend {
	b, ours := g.Backend().(*Backend)
	if !ours || g.DistributedStrategy() == distributed.AutoSharding || !k.knownTo(b) {
		return nil
	}
	return b
}

// knownTo registers the kernel with the plugin, once, and reports whether that worked.
func (k *Kernel) knownTo(b *Backend) bool {
	if b.info.Platform != plugin.CPU {
		return false
	}
	tell, _ := k.at.LoadOrStore(b.info.Plugin, sync.OnceValue(func() bool { return b.owner.register(k) == nil }))
	return tell.(func() bool)()
}

// typedCall is the version of XLA's foreign-function interface, in StableHLO's numbers; go-xla writes another.
const typedCall = 4

// write writes the kernel's call in place of a function call.
func (k *Kernel) write(inputs []value, f *stablehlo.Function) ([]value, error) {
	return k.call(inputs, outputShapes(f))
}

// call writes a call.
func (k *Kernel) call(operands []value, results []xlashapes.Shape) ([]value, error) {
	values, err := customCall(k.name, operands, results)
	if err == nil {
		statementOf(hloValue(values[0])).Attributes["api_version"] = int32(typedCall)
	}
	return values, err
}
