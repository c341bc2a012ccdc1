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

// Kernel is a C function that programs on CPUs or on GPUs call by XLA's foreign-function interface
// (https://openxla.org/xla/custom_call). Write it with foreign/foreign.h. lib/native makes one of a function in C or
// CUDA.
type Kernel struct {
	name     string
	function string // the name of the function that stands for it
	platform plugin.Platform
	handler  func() (unsafe.Pointer, error)
	at       sync.Map // by the plugin's path: the error of registering the kernel
	check    func() (operands, want []*tensors.Tensor)
}

var kernels = numbered[*Kernel]{prefix: "shardbook_kernel_"}

// NewKernel makes a kernel for CPUs of a C function void *handler(foreign_frame *). The name is that in programs, and
// unique in the process. Use it for package-level variables: kernels are never freed.
func NewKernel(name string, handler unsafe.Pointer) *Kernel {
	return newKernel(name, plugin.CPU, func() (unsafe.Pointer, error) { return handler, nil })
}

// NewCUDAKernel is NewKernel for NVIDIA's GPUs. The handler runs on the host, and launches work on the stream of the
// call without waiting for it; arrays are in the device's memory. NewCUDAKernel's function is called when a program
// first calls the kernel, so that it may compile it.
func NewCUDAKernel(name string, handler func() (unsafe.Pointer, error)) *Kernel {
	return newKernel(name, plugin.CUDA, handler)
}

func newKernel(name string, on plugin.Platform, handler func() (unsafe.Pointer, error)) *Kernel {
	k := &Kernel{name: name, platform: on, handler: handler}
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
// than it is for, on other backends, with a plugin without that interface, and in CompileAuto, whose compiler could not
// split the call. Otherwise may call the kernel for other devices. Like GoMLX's function calls, Call has no gradient:
// lib/autodiff's Custom gives it one.
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
// [NoKernels]; and on GPUs only if it was opened with [CUDAKernels]. It panics if a CUDA kernel cannot be had then.
func (k *Kernel) Replaces(g *graph.Graph) bool {
	b, ours := g.Backend().(*Backend)
	if ours && b.cudaKernels && k.platform == plugin.CUDA {
		if err := k.registered(b); err != nil {
			panic(err)
		}
	}
	b = k.callerIn(g)
	return b != nil && (b.cudaKernels || b.kernels && dense.Bits() > 128)
}

// callerIn returns a graph's backend if XLA can call the kernel in the graph's program, else nil.
func (k *Kernel) callerIn(g *graph.Graph) *Backend {
	b, ours := g.Backend().(*Backend)
	if !ours || g.DistributedStrategy() == distributed.AutoSharding || !k.knownTo(b) {
		return nil
	}
	return b
}

// knownTo reports whether programs of a backend can call the kernel.
func (k *Kernel) knownTo(b *Backend) bool { return k.registered(b) == nil }

// registered registers the kernel with the backend's plugin, once, and returns the error of that.
func (k *Kernel) registered(b *Backend) error {
	if b.info.Platform != k.platform {
		return fmt.Errorf("kernel %q is for %s, and the devices are %s's", k.name, k.platform, b.info.Platform)
	}
	tell, _ := k.at.LoadOrStore(b.info.Plugin, sync.OnceValue(func() error { return b.owner.register(k) }))
	return tell.(func() error)()
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
