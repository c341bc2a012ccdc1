// What the C code around CUDA kernels needs to launch them on XLA's stream, by CUDA's driver API. It is included before
// that code, which native.CompileCUDA writes.
#ifndef SHARDBOOK_LAUNCH_H
#define SHARDBOOK_LAUNCH_H

#include <dlfcn.h>
#include <pthread.h>

#include "native.h"

// A compiled source. CUDA loads it on each GPU when a kernel of it is first used there.
typedef struct {
	const void *bytes;
	const char *architecture;
	pthread_mutex_t lock;
	void *library; // CUlibrary, once it is loaded
} native_image;

// A kernel of it, by its names in the image and in the source.
typedef struct {
	native_image *image;
	const char *name, *called;
	void *function; // CUkernel, once it is loaded
} native_global;

// The size of a grid or of a block.
typedef struct { int64_t x, y, z; } native_dim3;

// NATIVE_DIM3 is one of up to three numbers in an array, the rest 1.
#define NATIVE_DIM3(a) ((native_dim3){a[0], NATIVE_AT(a, 1), NATIVE_AT(a, 2)})
#define NATIVE_AT(a, i) (sizeof a / sizeof *a > i ? a[i] : 1)

static struct {
	int (*load)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
	int (*find)(void **, void *, const char *);
	int (*allow)(int, int, void *, int);
	int (*run)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
	int (*name)(int, const char **), (*text)(int, const char **);
	const char *problem;
} native_cuda;

static void native_open_cuda(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		native_cuda.problem = "libcuda.so.1 cannot be loaded: install NVIDIA's driver";
		return;
	}
	struct { void **function; const char *name; } all[] = {
		{(void **)&native_cuda.load, "cuLibraryLoadData"}, {(void **)&native_cuda.find, "cuLibraryGetKernel"},
		{(void **)&native_cuda.allow, "cuKernelSetAttribute"}, {(void **)&native_cuda.run, "cuLaunchKernel"},
		{(void **)&native_cuda.name, "cuGetErrorName"}, {(void **)&native_cuda.text, "cuGetErrorString"}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!(*all[i].function = dlsym(lib, all[i].name)))
			native_cuda.problem = "NVIDIA's driver is older than that of CUDA 12: install a newer one";
}

// native_cuda_failed returns the error of a call of CUDA's, with its name and what to do.
static foreign_error *native_cuda_failed(foreign_frame *f, const native_global *k, const char *what, int code) {
	char message[600];
	const char *name = "an error that the driver does not know", *text = "", *remedy = "";
	native_cuda.name(code, &name);
	native_cuda.text(code, &text);
	if (code == 209) remedy = ": the architecture is not that of this GPU: compile for it, or leave native.Architecture out";
	if (code == 1 || code == 701) remedy = ": a block has at most 1024 threads, with what the GPU has of shared memory, and a grid 65535 blocks in y and z: change native.Launch";
	if (code == 2) remedy = ": XLA or another process has the memory: take a smaller batch, or fewer processes on this GPU";
	snprintf(message, sizeof message, "CUDA kernel %s (for %s): %s: %s, %s%s", k->called, k->image->architecture, what, name, text, remedy);
	return foreign_fail(f, message);
}

// native_launch_failed returns the error of a launch.
static foreign_error *native_launch_failed(foreign_frame *f, const native_global *k, native_dim3 grid, native_dim3 block,
		int64_t shared, int code) {
	char what[200];
	snprintf(what, sizeof what, "launching a grid of %lld × %lld × %lld blocks of %lld × %lld × %lld threads, with %lld bytes "
		"of shared memory", (long long)grid.x, (long long)grid.y, (long long)grid.z, (long long)block.x, (long long)block.y,
		(long long)block.z, (long long)shared);
	return native_cuda_failed(f, k, what, code);
}

// native_launch runs a kernel of n parameters, each a slice in two words, on the stream of the call.
static foreign_error *native_launch(foreign_frame *f, native_global *k, native_dim3 grid, native_dim3 block, int64_t shared,
		uint64_t *words, int n) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, native_open_cuda);
	if (native_cuda.problem) return foreign_fail(f, native_cuda.problem);
	foreign_stream_args stream = {sizeof stream, NULL, f->context, NULL};
	foreign_error *wrong = f->api->stream(&stream);
	if (wrong) return wrong;
	foreign_device_args device = {sizeof device, NULL, f->context, 0};
	if (shared > 48 << 10 && (wrong = f->api->device(&device))) return wrong;

	native_image *image = k->image;
	int code = 0;
	pthread_mutex_lock(&image->lock);
	if (!image->library) code = native_cuda.load(&image->library, image->bytes, NULL, NULL, 0, NULL, NULL, 0);
	if (!code && !k->function) code = native_cuda.find(&k->function, image->library, k->name);
	pthread_mutex_unlock(&image->lock);
	if (code) return native_cuda_failed(f, k, "it cannot be loaded", code);

	if (grid.x == 0 || grid.y == 0 || grid.z == 0) return NULL; // no elements
	const int64_t all[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, shared};
	for (int i = 0; i < 7; i++)
		if (all[i] < 0 || all[i] > INT32_MAX)
			return native_launch_failed(f, k, grid, block, shared, 1 /* CUDA_ERROR_INVALID_VALUE */);
	if (shared > 48 << 10) // what a kernel may have without being asked for
		code = native_cuda.allow(8 /* MAX_DYNAMIC_SHARED_SIZE_BYTES */, (int)shared, k->function, device.device);
	void *parameters[n];
	for (int i = 0; i < n; i++) parameters[i] = words + 2 * i;
	if (!code)
		code = native_cuda.run(k->function, (unsigned)grid.x, (unsigned)grid.y, (unsigned)grid.z, (unsigned)block.x,
			(unsigned)block.y, (unsigned)block.z, (unsigned)shared, stream.stream, parameters, NULL);
	return code ? native_launch_failed(f, k, grid, block, shared, code) : NULL;
}

// What the expressions of native.Launch are written with, beside n[i], the number of elements of parameter i.
static inline int64_t up(int64_t n, int64_t of) { return (n + of - 1) / of; } // blocks for n elements
static inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
