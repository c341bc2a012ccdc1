// Package native compiles C and CUDA functions while a program runs, and makes Go functions and XLA kernels of them,
// like torch.utils.cpp_extension.load_inline in PyTorch. [Load] is for C, [CompileCUDA] for kernels that XLA's programs
// launch on GPUs, and [LoadCUDA] for functions on the host that launch kernels themselves.
//
//	var double func(x []float32)
//	_, err := native.Load(`
//		void twice(slice_f32 x) {
//			for (int64_t i = 0; i < x.n; i++) x.at[i] *= 2;
//		}`, native.Bind("twice", &double))
//
// Slices may be the memory of CPU devices (xla.View).
//
// A C function can access all memory of the process: if it writes outside an array or crashes, the process ends or its
// memory is corrupted, with no Go error.
package native

import (
	"fmt"
	"regexp"
	"sync/atomic"
	"unsafe"

	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/xla/foreign"
)

// Library is a compiled source. It stays loaded until the process ends, because bound functions, XLA programs and
// threads may use it at any time. Its methods may be called from several goroutines.
type Library struct {
	path   string
	handle unsafe.Pointer
	bound  []*binding
}

// Option changes what Load and LoadCUDA do.
type Option func(*config) error

type config struct {
	cacheDir     string
	flags        []string
	bound        []*binding
	architecture string
}

// Flags adds compiler arguments after the package's own (-O3 -march=native for C), so they win, as -O0 over -O3. The
// compiler runs in the current folder, without a shell. To vectorize sums use -fopenmp-simd and "#pragma omp simd
// reduction(+:sum)", not -ffast-math, with which gcc before version 13 flushes denormal numbers to zero in the thread
// that loads the library.
func Flags(flags ...string) Option {
	return func(c *config) error {
		c.flags = append(c.flags, flags...)
		return nil
	}
}

// withCache sets the folder in which the folder "native" holds compiled libraries.
func withCache(dir string) Option {
	return func(c *config) error {
		c.cacheDir = dir
		return nil
	}
}

// Load compiles a C source with $CC, gcc or cc, loads it, and sets the functions of [Bind] options. It includes
// native.h, which has the slice types, and foreign.h of lib/xla/foreign before the source, and links the math library.
//
// Compiled libraries are cached in the folder "native" of $SHARDBOOK_CACHE, else of the user's cache folder, by
// compiler, source, flags and processor. The cache may be deleted at any time. It does not notice changes of files that
// the source includes: change the source or a flag then, such as -DVERSION=2.
//
// It returns an error if there is no compiler, if the source does not compile (with the compiler's messages, which call
// it source.c), if a symbol is missing, or for the reasons that [Bind] lists.
func Load(source string, options ...Option) (*Library, error) { return load(inC, source, options) }

func load(in language, source string, options []Option) (*Library, error) {
	var c config
	for _, option := range options {
		if err := option(&c); err != nil {
			return nil, err
		}
	}
	text, err := withBindings(in, source, c.bound)
	if err != nil {
		return nil, err
	}
	return in.load(text, c)
}

// load compiles and loads a text that has the functions for all bindings.
func (in language) load(text string, c config) (*Library, error) {
	path, err := in.build(text, c)
	if err != nil {
		return nil, err
	}
	handle, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("native: the compiled source cannot be loaded: %w; if a symbol is undefined, define "+
			"it, or name its library in Flags", err)
	}
	l := &Library{path: path, handle: handle, bound: c.bound}
	for i, b := range l.bound {
		if b.launch != nil {
			continue
		}
		if b.call, err = l.Symbol(callName(i)); err != nil {
			return nil, err
		}
	}
	for _, b := range l.bound { // nothing is bound unless all is
		if b.launch == nil {
			b.set()
		}
	}
	return l, nil
}

// Symbol returns the address of a function or variable that is not static in the source. In CUDA, declare it extern
// "C", or use its mangled name.
func (l *Library) Symbol(name string) (unsafe.Pointer, error) {
	address := symbol(l.handle, name)
	if address == nil {
		return nil, fmt.Errorf("native: the source has no symbol %q: define it, and not as static", name)
	}
	foreign.Located(address, l.path, name)
	return address, nil
}

// made numbers kernels, because XLA needs a unique name for each kernel of the process, and two sources may each have a
// layer_norm.
var made atomic.Int64

var noIdentifier = regexp.MustCompile(`[^A-Za-z0-9_]+`)

// Kernel makes an XLA kernel of a bound function, which XLA programs call on the devices' own buffers: of
// [CompileCUDA]'s on GPUs, where it is launched on XLA's stream and nothing waits for it, and of [Load]'s on CPUs. The
// function's parameters are the results of the call, in order, then the operands: slices for arrays in row-major order,
// numbers for scalars, on CPUs only. With results y and mean of operands x and epsilon, the function is
//
//	const char *f(slice_f32 y, slice_f32 mean, slice_f32 x, float epsilon)
//
// The function must not write to operands, and must return the same results for the same operands. If it returns a
// message, or a call has operands of other types, the program fails; see [xla.Kernel.Call]. For a kernel that uses
// XLA's threads or needs shapes, write a handler with foreign.h and give its Symbol to [xla.NewKernel].
//
// Kernels are never freed: make one when the library is loaded, not for each call.
//
// It returns an error if the function is not bound, has pointer parameters, returns a number, or is from LoadCUDA.
func (l *Library) Kernel(name string) (*xla.Kernel, error) {
	handler, err := l.Handler(name)
	if err != nil {
		return nil, err
	}
	unique := fmt.Sprintf("native%d_%s", made.Add(1), noIdentifier.ReplaceAllString(name, "_"))
	if l.bound[0].launch != nil {
		return xla.NewCUDAKernel(unique, func() (unsafe.Pointer, error) { return handler, nil }), nil
	}
	return xla.NewKernel(unique, handler), nil
}

// Handler returns what Kernel gives [xla.NewKernel], or [xla.NewCUDAKernel]: for a kernel with a name of one's own.
func (l *Library) Handler(name string) (unsafe.Pointer, error) {
	for i, b := range l.bound {
		if b.name != name {
			continue
		}
		handler, err := l.Symbol(kernelName(i))
		if err != nil {
			return nil, fmt.Errorf("native: XLA cannot call %s, a %v: want a function in C of slices "+
				"and numbers, with no result but an error", name, b.of)
		}
		return handler, nil
	}
	return nil, fmt.Errorf("native: %q is not bound: give Load a Bind for it, or CompileCUDA a Global", name)
}
