package main

/*
#cgo CFLAGS: -O3
#cgo amd64 CFLAGS: -march=native
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

// Buffers of huge pages, where the system has them, so that address translation
// does not slow the limit down.
static float *allocate(size_t bytes) {
	size_t huge = 2 << 20;
	void *p = NULL;
	if (posix_memalign(&p, huge, (bytes + huge - 1) / huge * huge)) return NULL;
#ifdef MADV_HUGEPAGE
	madvise(p, (bytes + huge - 1) / huge * huge, MADV_HUGEPAGE);
#endif
	return p;
}

// What the compiler cannot see through keeps it from merging repetitions.
#define KEEP(p) __asm__ volatile("" : : "r"(p) : "memory")

static void copy(float *a, const float *b, size_t n, int times) {
	for (int t = 0; t < times; t++) { memcpy(a, b, n * sizeof *a); KEEP(a); }
}

// negate works in place in four stretches at once, which keeps more of memory busy
// than one does.
static void negate(float *a, const float *b, size_t n, int times) {
	typedef float line __attribute__((vector_size(64)));
	(void)b;
	size_t lines = n / 64; // of each stretch
	line *p = (line *)a;
	for (int t = 0; t < times; t++) {
		for (size_t i = 0; i < lines; i++)
			for (int k = 0; k < 4; k++) p[k * lines + i] = -p[k * lines + i];
		for (size_t i = 64 * lines; i < n; i++) a[i] = -a[i];
		KEEP(a);
	}
}

static void add(float *a, const float *b, size_t n, int times) {
	for (int t = 0; t < times; t++) { for (size_t i = 0; i < n; i++) a[i] += b[i]; KEEP(a); }
}
*/
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"time"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// loop is a loop over memory that does next to nothing else, as in McCalpin's STREAM.
type loop struct {
	run   func(a, b *C.float, n C.size_t, times C.int)
	moves int64 // bytes read and written for a byte of a
}

var (
	copyLoop   = loop{func(a, b *C.float, n C.size_t, times C.int) { C.copy(a, b, n, times) }, 2}
	negateLoop = loop{func(a, b *C.float, n C.size_t, times C.int) { C.negate(a, b, n, times) }, 2}
	addLoop    = loop{func(a, b *C.float, n C.size_t, times C.int) { C.add(a, b, n, times) }, 3}
)

// serveMemory is the limit of collectives that one loop gives.
func serveMemory(l loop) server {
	return serveLimit(func(ctx context.Context, threads group.Group) subject {
		return &memory{loop: l, ctx: ctx, threads: threads}
	})
}

// memory is one of the threads. All of them together move data between arrays as large as all ranks' buffers; the time
// is scaled to the bytes that the collective operation must move.
type memory struct {
	loop
	ctx     context.Context
	threads group.Group
	collectiveCase
	a, b []float32
}

func (m *memory) prepare(params []byte) (facts, error) {
	if err := json.Unmarshal(params, &m.collectiveCase); err != nil {
		return facts{}, err
	}
	n := max(1, int(m.Bytes/4)*m.Ranks/m.threads.Size())
	for _, array := range []*[]float32{&m.a, &m.b} {
		p := C.allocate(C.size_t(4 * n))
		if p == nil {
			return facts{}, errors.New("out of memory")
		}
		*array = unsafe.Slice((*float32)(p), n)
		fill(*array, 0, 0)
	}
	return facts{}, nil
}

func (m *memory) sample(calls int) (float64, error) {
	m.pass(1) // as those it is compared with
	if err := group.Barrier(m.ctx, m.threads); err != nil {
		return 0, err
	}
	begin := time.Now()
	m.pass(calls)
	moved := m.moves * int64(len(m.a)*4*m.threads.Size())
	return milliseconds(begin, calls) * float64(m.traffic()) / float64(moved), nil
}

func (m *memory) pass(times int) {
	m.run((*C.float)(&m.a[0]), (*C.float)(&m.b[0]), C.size_t(len(m.a)), C.int(times))
}

func (m *memory) finish() error {
	C.free(unsafe.Pointer(&m.a[0]))
	C.free(unsafe.Pointer(&m.b[0]))
	m.a, m.b = nil, nil
	return nil
}
