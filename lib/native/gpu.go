package native

/*
#include <dlfcn.h>

// ask_gpu reads the name and attributes of the first GPU, without a context on it. It returns CUDA's error, or -1
// without a driver.
static int ask_gpu(int size, char *called, int n, const int *attributes, int *values, const char **error) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) return -1;
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
	int (*device)(int *, int) = (int (*)(int *, int))dlsym(lib, "cuDeviceGet");
	int (*call)(char *, int, int) = (int (*)(char *, int, int))dlsym(lib, "cuDeviceGetName");
	int (*get)(int *, int, int) = (int (*)(int *, int, int))dlsym(lib, "cuDeviceGetAttribute");
	int (*name)(int, const char **) = (int (*)(int, const char **))dlsym(lib, "cuGetErrorName");
	if (!init || !device || !call || !get || !name) return -1;
	int code = init(0), gpu = 0;
	if (!code) code = device(&gpu, 0);
	if (!code) code = call(called, size, gpu);
	for (int i = 0; i < n && !code; i++) code = get(&values[i], attributes[i], gpu);
	if (code) name(code, error);
	return code;
}
*/
import "C"

import (
	"errors"
	"fmt"
)

// GPU is a GPU and what CUDA kernels depend on of it.
type GPU struct {
	Name         string  // as the driver says, "NVIDIA H100 80GB HBM3"
	Architecture string  // for which NVRTC compiles, such as "sm_90"
	Bandwidth    float64 // of its memory, in bytes per second, as its clock and bus allow
}

// FirstGPU describes the first of NVIDIA's GPUs. It returns an error if there is no driver or no GPU.
func FirstGPU() (GPU, error) {
	// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, _MEMORY_CLOCK_RATE in kHz, _GLOBAL_MEMORY_BUS_WIDTH in
	// bits, of CUDA's cuda.h.
	attributes := [...]C.int{75, 76, 36, 37}
	var values [len(attributes)]C.int
	var called [256]C.char
	var name *C.char
	code := C.ask_gpu(C.int(len(called)), &called[0], C.int(len(attributes)), &attributes[0], &values[0], &name)
	switch {
	case code < 0:
		return GPU{}, errors.New("native: there is no driver for NVIDIA's GPUs (libcuda.so.1): install it")
	case code != 0:
		return GPU{}, fmt.Errorf("native: there is no GPU that CUDA can use (%s): see whether nvidia-smi lists one",
			C.GoString(name))
	}
	return GPU{Name: C.GoString(&called[0]), Architecture: fmt.Sprintf("sm_%d%d", values[0], values[1]),
		Bandwidth: 2 * 1e3 * float64(values[2]) * float64(values[3]) / 8}, nil // two transfers a cycle
}
