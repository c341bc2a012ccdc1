// Package native compiles C and CUDA functions while a program runs, and makes Go functions and XLA kernels of them:
// what torch.utils.cpp_extension.load_inline is in PyTorch.
//
//	var double func(x []float32)
//	_, err := native.Load(`
//		void twice(slice_f32 x) {
//			for (int64_t i = 0; i < x.n; i++) x.at[i] *= 2;
//		}`, native.Bind("twice", &double))
//
// Slices may be the memory of CPU devices (xla.View).
//
// A function of C has the memory of this process in its hands: if it writes past an array's end or crashes, there is no
// error but the end of the process, or worse.
package native

import (
	"fmt"
	"unsafe"
)

// Library is a compiled source, loaded into this process until the process ends: bound functions, XLA's programs and
// threads may be in it at any time, and nobody can tell that none is. Its methods may be called from several goroutines
// at once.
type Library struct {
	path   string
	handle unsafe.Pointer
	bound  []*binding
}

// Option changes what Load and LoadCUDA do.
type Option func(*config) error

type config struct {
	cacheDir string
	flags    []string
	bound    []*binding
}

// Flags adds arguments for the compiler, behind the package's own (-O3 -march=native for C), so that of two that
// exclude each other, as -O3 and -O0 do, it is these that count. The compiler runs in the current folder, with no
// shell. To sum up in vectors take -fopenmp-simd and "#pragma omp simd reduction(+:sum)", not -ffast-math: with gcc
// before version 13 that makes denormal numbers zero for the whole thread that loads the library.
func Flags(flags ...string) Option {
	return func(c *config) error {
		c.flags = append(c.flags, flags...)
		return nil
	}
}

// withCache sets the folder in which compiled libraries are kept, in a folder "native".
func withCache(dir string) Option {
	return func(c *config) error {
		c.cacheDir = dir
		return nil
	}
}

// Load compiles a source in C with $CC, gcc or cc, loads it, and makes what Bind options ask for. native.h, which has
// the slice types, and foreign.h of lib/xla/foreign are included before the source; the mathematics library is linked.
//
// What the same compiler made before of the same source with the same flags, for the same processor, is not compiled
// again: libraries are kept in the folder "native" of $SHARDBOOK_CACHE, else of the user's cache folder, which may be
// deleted at any time. Files that the source includes are no part of that: after a change in one, change the source or
// a flag, such as -DVERSION=2.
//
// It returns an error if there is no compiler, if the source does not compile (the compiler's own words, in which
// source.c is the source), if a symbol is missing, and where Bind says so.
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
		if b.call, err = l.Symbol(callName(i)); err != nil {
			return nil, err
		}
	}
	for _, b := range l.bound { // nothing is bound unless all is
		b.set()
	}
	return l, nil
}

// Path returns the path of the compiled library, for tools such as objdump.
func (l *Library) Path() string { return l.path }

// Symbol returns the address of a function or variable that is not static in the source. In CUDA, names are those of C
// only for what is declared extern "C".
func (l *Library) Symbol(name string) (unsafe.Pointer, error) {
	address := symbol(l.handle, name)
	if address == nil {
		return nil, fmt.Errorf("native: the source has no symbol %q: define it, and not as static", name)
	}
	return address, nil
}
