// CUDA's driver and its compiler NVRTC, as far as lib/native calls them, for one GPU: this machine's processor. A kernel is
// a function of this library; the threads of a block take turns, each until it ends or waits for the others, and blocks run
// one after another.
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <mutex>
#include <utility>
#include <vector>

struct dim3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static dim3 gridDim, blockDim, blockIdx, threadIdx;
static ucontext_t scheduler, threads[1024];
static std::vector<char> stacks;
static bool ended[1024];
static unsigned current;

static void wait_for_others() { swapcontext(&threads[current], &scheduler); }

#define __CUDACC_RTC__ 1
#define __global__
#define __device__ inline
#define __shared__ static
#define __syncthreads wait_for_others
#define __expf expf
#define __stwb(to, value) (*(to) = (value))
#define __fdividef(a, b) ((a) / (b))
#include "native.h"

#include "source.cu"

// A kernel's name in the source, its address, and what calls it with CUDA's parameters.
struct kernel { const char *name; void *address; void (*call)(void **); };
template <auto f> struct caller;
template <class... A, void (*f)(A...)> struct caller<f> {
	template <size_t... i> static void with(void **p, std::index_sequence<i...>) { f(*(A *)p[i]...); }
	static void call(void **p) { with(p, std::index_sequence_for<A...>()); }
};
#define KERNEL(...) {#__VA_ARGS__, (void *)&__VA_ARGS__, caller<&__VA_ARGS__>::call}
static const kernel kernels[] = {
#include "kernels.inc"
};

static const kernel *running;
static void **parameters;

static void thread() {
	running->call(parameters);
	ended[current] = true;
}

static void run_block() {
	enum { stack = 64 << 10 };
	unsigned n = blockDim.x * blockDim.y * blockDim.z, left = n;
	stacks.resize((size_t)n * stack);
	for (unsigned i = 0; i < n; i++) {
		getcontext(&threads[i]);
		threads[i].uc_stack.ss_sp = &stacks[(size_t)i * stack];
		threads[i].uc_stack.ss_size = stack;
		threads[i].uc_link = &scheduler;
		makecontext(&threads[i], thread, 0);
		ended[i] = false;
	}
	while (left)
		for (unsigned i = 0; i < n; i++) {
			if (ended[i]) continue;
			current = i;
			threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
			swapcontext(&scheduler, &threads[i]);
			left -= ended[i];
		}
}

extern "C" {
int gpu_fails, gpu_loads, gpu_launches, gpu_shared, gpu_allowed; // an error for the next launch; counts; bytes
void *gpu_stream;                                               // of the last launch

int cuInit(unsigned) { return 0; }
int cuGetExportTable(const void **, const void *) { return 500; } // which NVRTC calls
int cuDeviceGet(int *device, int) { return *device = 0; }

int cuDeviceGetName(char *name, int n, int) { return snprintf(name, n, "NVIDIA H100 80GB HBM3"), 0; }

int cuDeviceGetAttribute(int *value, int attribute, int) {
	switch (attribute) {
	case 75: *value = 9; return 0;
	case 76: *value = 0; return 0;
	case 36: *value = 2619000; return 0; // kHz
	case 37: *value = 5120; return 0;    // bits
	}
	return 1;
}

// cuLibraryLoadData takes machine code for sm_90: ELF for processor 190, with the architecture in its flags.
int cuLibraryLoadData(void **library, const void *image, void *, void *, unsigned, void *, void *, unsigned) {
	const unsigned char *elf = (const unsigned char *)image;
	if (memcmp(elf, "\x7f" "ELF", 4) || elf[18] != 190) return 200;
	if (elf[49] != 90) return 209;
	gpu_loads++;
	*library = dlopen(NULL, RTLD_NOW);
	return 0;
}

int cuLibraryGetKernel(void **function, void *, const char *name) {
	Dl_info about;
	dladdr((void *)cuInit, &about);
	void *self = dlopen(about.dli_fname, RTLD_NOW), *address = dlsym(self, name);
	for (const kernel &k : kernels)
		if (address && k.address == address) return *function = (void *)&k, 0;
	return 500;
}

int cuKernelSetAttribute(int attribute, int value, void *, int device) {
	gpu_allowed = value;
	return attribute == 8 && device == 0 ? 0 : 1;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
		void *stream, void **given, void **) {
	static std::mutex one;
	std::lock_guard<std::mutex> lock(one);
	int fails = gpu_fails;
	gpu_fails = 0;
	if (fails) return fails;
	if (!gx || !gy || !gz || !bx || !by || !bz || gy > 65535 || gz > 65535 || (uint64_t)bx * by * bz > 1024) return 1;
	gpu_launches++, gpu_stream = stream, gpu_shared = (int)shared;
	running = (const kernel *)function, parameters = given;
	gridDim = {gx, gy, gz}, blockDim = {bx, by, bz};
	for (unsigned z = 0; z < gz; z++)
		for (unsigned y = 0; y < gy; y++)
			for (unsigned x = 0; x < gx; x++) blockIdx = {x, y, z}, run_block();
	return 0;
}

int cuGetErrorName(int code, const char **name) {
	*name = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : code == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_UNKNOWN";
	return 0;
}

int cuGetErrorString(int code, const char **text) {
	*text = code == 1 ? "invalid argument" : "an error of the test's";
	return 0;
}

// NVRTC's machine code is a header of ELF's; the program is that.
int nvrtcCreateProgram(void **program, const char *, const char *, int, const char **, const char **) {
	*program = malloc(64);
	return 0;
}
int nvrtcDestroyProgram(void **program) { return free(*program), 0; }
int nvrtcAddNameExpression(void *, const char *) { return 0; }
int nvrtcGetProgramLogSize(void *, size_t *n) { return *n = 1, 0; }
int nvrtcGetProgramLog(void *, char *log) { return *log = 0; }
const char *nvrtcGetErrorString(int) { return "an error of the test's"; }
int nvrtcGetCUBINSize(void *, size_t *n) { return *n = 64, 0; }
int nvrtcGetCUBIN(void *program, char *to) { return memcpy(to, program, 64), 0; }

int nvrtcCompileProgram(void *program, int n, const char **options) {
	int architecture = 0;
	for (int i = 0; i < n; i++) sscanf(options[i], "--gpu-architecture=sm_%d", &architecture);
	unsigned char *elf = (unsigned char *)memset(program, 0, 64);
	memcpy(elf, "\x7f" "ELF", 4);
	elf[18] = 190, elf[49] = (unsigned char)architecture;
	return architecture ? 0 : 5;
}

int nvrtcGetLoweredName(void *, const char *name, const char **lowered) {
	Dl_info about;
	for (const kernel &k : kernels)
		if (!strcmp(k.name, name) && dladdr(k.address, &about)) return *lowered = about.dli_sname, 0;
	return 10;
}
}
