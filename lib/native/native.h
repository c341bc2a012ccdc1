// What C and CUDA functions bound by lib/native are written with: slices as Go passes them, and what the code that the
// package adds behind the source needs. It is included before the source.
#ifndef SHARDBOOK_NATIVE_H
#define SHARDBOOK_NATIVE_H

#ifdef __CUDACC_RTC__ // NVRTC, which has none of C's headers
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
template <class T> struct slice { T *at; int64_t n; };
#define NATIVE_SLICE(name, type) typedef slice<type> slice_##name
#if __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
NATIVE_SLICE(f16, __half);
NATIVE_SLICE(bf16, __nv_bfloat16);
#endif
#else
#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "foreign.h"
#include <stdbool.h>
#include <stdio.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#define NATIVE_SLICE(name, type) typedef struct { type *at; int64_t n; } slice_##name
#endif

NATIVE_SLICE(bool, bool);
NATIVE_SLICE(i8, int8_t);
NATIVE_SLICE(i16, int16_t);
NATIVE_SLICE(i32, int32_t);
NATIVE_SLICE(i64, int64_t);
NATIVE_SLICE(u8, uint8_t);
NATIVE_SLICE(u16, uint16_t); // the bits of float16 and bfloat16 too
NATIVE_SLICE(u32, uint32_t);
NATIVE_SLICE(u64, uint64_t);
NATIVE_SLICE(f32, float);
NATIVE_SLICE(f64, double);

#ifdef __CUDACC_RTC__
#elif defined __CUDACC__

// native_to_gpu makes the GPU the current one on whose memory p points. *gpu is that of earlier arguments, or -1.
static inline const char *native_to_gpu(const void *p, int *gpu) {
	struct cudaPointerAttributes about;
	if (!p) return NULL;
	cudaError_t failed = cudaPointerGetAttributes(&about, p);
	if (failed != cudaSuccess) return cudaGetErrorString(failed);
	if (about.type != cudaMemoryTypeDevice && about.type != cudaMemoryTypeManaged)
		return "an argument points to the host's memory: give it that of a buffer on a GPU";
	if (*gpu >= 0 && *gpu != about.device) return "the arguments lie on different GPUs";
	*gpu = about.device;
	failed = cudaSetDevice(about.device);
	return failed == cudaSuccess ? NULL : cudaGetErrorString(failed);
}

// native_finish waits until what was launched is done.
static inline const char *native_finish(void) {
	cudaError_t failed = cudaGetLastError();
	if (failed == cudaSuccess) failed = cudaDeviceSynchronize();
	return failed == cudaSuccess ? NULL : cudaGetErrorString(failed);
}

#else

// A parameter of a function that XLA calls: a slice or a number, how many bytes an element has, and XLA's numbers of the
// element types that it may have.
typedef struct { bool slice; int size, types[3]; } native_parameter;

// native_gather writes an XLA call's results and operands as the arguments of a function with n parameters, and returns
// whether they fit. If not, it writes why.
static inline bool native_gather(foreign_frame *f, const native_parameter *p, int n, uint64_t *w, char *problem, size_t room) {
	int results = (int)f->out.size, operands = (int)f->in.size;
	if (results + operands != n) {
		snprintf(problem, room, "the function has %d parameters, the call %d results and %d operands", n, results, operands);
		return false;
	}
	for (int i = 0; i < n; i++, p++) {
		const foreign_array *a = i < results ? foreign_out(f, i) : foreign_in(f, i - results);
		if (a->type != p->types[0] && a->type != p->types[1] && a->type != p->types[2]) {
			snprintf(problem, room, "parameter %d has elements of another type than the array for it, of XLA's type %d", i, a->type);
			return false;
		}
		if (!p->slice && (i < results || a->rank)) {
			snprintf(problem, room, "parameter %d is a number: it takes a scalar operand", i);
			return false;
		}
		if (!p->slice) {
			memcpy(w++, a->data, (size_t)p->size);
			continue;
		}
		int64_t elements = 1;
		for (int64_t axis = 0; axis < a->rank; axis++) elements *= a->dims[axis];
		*w++ = (uint64_t)(uintptr_t)a->data;
		*w++ = (uint64_t)elements;
	}
	return true;
}

#endif
#endif
