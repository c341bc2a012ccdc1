//go:build !resident

package plugin

/*
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { char name[96], bus[32]; size_t bytes; int major, minor; } gpu;
typedef struct { int cuda, gpus, code; char problem[256]; } answer; // problem: an error's name, or what failed

#define FAILS(...) snprintf(a.problem, sizeof a.problem, __VA_ARGS__)

// TRY calls a function of a library in the form of CUDA's driver and of NVML, in which 0 means success.
#define TRY(form, name, ...) \
	do { \
		int (*function) form = (int (*) form)dlsym(lib, name); \
		if ((a.code = function ? function(__VA_ARGS__) : -1)) { FAILS("%s", name); goto failed; } \
	} while (0)

// ask_driver describes at most some GPUs. It creates no context on them, and so takes no memory.
static answer ask_driver(const char *library, int least, gpu *all, int most) {
	answer a = { 0 };
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!lib) { a.code = -1, FAILS("%s", dlerror()); return a; }
	TRY((int *), "cuDriverGetVersion", &a.cuda);
	if (a.cuda < least) return a;
	TRY((unsigned), "cuInit", 0);
	TRY((int *), "cuDeviceGetCount", &a.gpus);
	for (int i = 0; i < a.gpus && i < most; i++) {
		gpu *g = &all[i];
		int device;
		TRY((int *, int), "cuDeviceGet", &device, i);
		TRY((char *, int, int), "cuDeviceGetName", g->name, sizeof g->name, device);
		TRY((char *, int, int), "cuDeviceGetPCIBusId", g->bus, sizeof g->bus, device);
		TRY((size_t *, int), "cuDeviceTotalMem_v2", &g->bytes, device);
		TRY((int *, int, int), "cuDeviceGetAttribute", &g->major, 75, device); // COMPUTE_CAPABILITY_MAJOR
		TRY((int *, int, int), "cuDeviceGetAttribute", &g->minor, 76, device);
	}
	return a;
failed:;
	int (*name)(int, const char **) = (int (*)(int, const char **))dlsym(lib, "cuGetErrorName");
	const char *text = NULL;
	if (a.code > 0 && name && !name(a.code, &text) && text) FAILS("%s", text);
	return a;
}

// free_memory asks NVML, which needs no context, and thus no memory, of the GPU. It is -1 if unknown.
static long long free_memory(const char *library, const char *bus) {
	answer a = { 0 };
	void *device = NULL;
	struct { unsigned long long total, free, used; } memory;
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!lib) return -1;
	TRY((void), "nvmlInit_v2");
	TRY((const char *, void **), "nvmlDeviceGetHandleByPciBusId_v2", bus, &device);
	TRY((void *, void *), "nvmlDeviceGetMemoryInfo", device, &memory);
	return memory.free;
failed:
	return -1;
}

static int can_load(const char *library) { return dlopen(library, RTLD_LAZY | RTLD_LOCAL) != NULL; }
*/
import "C"

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"unsafe"
)

// Where the driver is; tests replace these.
var (
	libCUDA       = "libcuda.so.1"
	libNVML       = "libnvidia-ml.so.1"
	deviceFiles   = "/dev/nvidia[0-9]*"
	driverVersion = "/proc/driver/nvidia/version"
)

// Driver is NVIDIA's driver and the GPUs that it gives this process.
type Driver struct {
	Release string // such as "580.95.05"; "" if unknown
	CUDA    int    // the newest CUDA that it supports, 13010 for 13.1
	GPUs    []GPU
}

// String returns the driver's release and CUDA's version.
func (d Driver) String() string {
	text := ""
	if d.Release != "" {
		text = d.Release + ", "
	}
	return fmt.Sprintf("%sCUDA %d.%d", text, d.CUDA/1000, d.CUDA%1000/10)
}

// Capability returns the least compute capability of the GPUs, zero if there are none.
func (d Driver) Capability() (least [2]int) {
	for i, g := range d.GPUs {
		if i == 0 || slices.Compare(g.Capability[:], least[:]) < 0 {
			least = g.Capability
		}
	}
	return least
}

// GPU is one of the driver's devices.
type GPU struct {
	Name       string
	Capability [2]int // compute capability
	Bytes      int64  // of memory
	bus        string
}

// Free returns the bytes of memory that no process has taken, and whether they are known.
func (g GPU) Free() (int64, bool) {
	library, bus := C.CString(libNVML), C.CString(g.bus)
	defer C.free(unsafe.Pointer(library))
	defer C.free(unsafe.Pointer(bus))
	free := int64(C.free_memory(library, bus))
	return free, free >= 0 && free <= g.Bytes // more is that of a GPU of which this is a part
}

// mostGPUs is the largest number of GPUs that are described.
const mostGPUs = 64

// driverFor is the oldest release of the driver for a version of CUDA, for people.
var driverFor = map[int]string{12: "525", NewestCUDA: "580"}

// NewestCUDA is the version of CUDA of the plugin that InstallCUDA installs.
const NewestCUDA = 13

// releaseIn matches the release in the driver's version file.
var releaseIn = regexp.MustCompile(`\b\d{3,}\.\d+(\.\d+)?\b`)

// AskDriver returns NVIDIA's driver and its GPUs. The error says what to do if there is none that works for the major
// version of CUDA.
func AskDriver(cuda int) (Driver, error) {
	library := C.CString(libCUDA)
	defer C.free(unsafe.Pointer(library))
	all := make([]C.gpu, mostGPUs)
	a := C.ask_driver(library, C.int(1000*cuda), &all[0], mostGPUs)
	text, _ := os.ReadFile(driverVersion)
	d := Driver{Release: releaseIn.FindString(string(text)), CUDA: int(a.cuda)}
	for _, g := range all[:min(int(a.gpus), mostGPUs)] {
		d.GPUs = append(d.GPUs, GPU{C.GoString(&g.name[0]), [2]int{int(g.major), int(g.minor)},
			int64(g.bytes), C.GoString(&g.bus[0])})
	}
	seen, _ := filepath.Glob(deviceFiles)
	problem := C.GoString(&a.problem[0])
	switch code := int(a.code); {
	case d.CUDA == 0 && len(seen) == 0:
		return d, fmt.Errorf("no NVIDIA GPU (no %s) and no driver (no %s): use the CPU (%s=cpu), or start the container "+
			"with its machine's GPUs (docker run --gpus all)", deviceFiles, filepath.Base(libCUDA), Env)
	case d.CUDA == 0:
		return d, fmt.Errorf("no NVIDIA driver for the %d GPUs (%s): install driver %s or newer, so that nvidia-smi lists "+
			"them, or run the container with NVIDIA's container toolkit", len(seen), problem, driverFor[cmp.Or(cuda, NewestCUDA)])
	case d.CUDA < 1000*cuda:
		return d, fmt.Errorf("NVIDIA's driver is too old: it is %v, and the plugin needs CUDA %d: install driver %s or "+
			"newer, or use the CPU (%s=cpu)", d, cuda, driverFor[cuda], Env)
	case code == 100 || code == 0 && len(d.GPUs) == 0: // CUDA_ERROR_NO_DEVICE
		return d, fmt.Errorf("NVIDIA's driver %v sees no GPU (CUDA_VISIBLE_DEVICES=%q): unset that, see that nvidia-smi "+
			"lists the GPU, or use the CPU (%s=cpu)", d, os.Getenv("CUDA_VISIBLE_DEVICES"), Env)
	case code == 803: // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
		return d, fmt.Errorf("NVIDIA's driver was updated while an older one runs (%s): restart the machine", problem)
	case code != 0:
		return d, fmt.Errorf("NVIDIA's driver %v does not start (%s, %d): see what nvidia-smi says, or use the CPU "+
			"(%s=cpu)", d, problem, code, Env)
	}
	return d, nil
}

// loads reports whether the loader finds a library where the system has its own, or in $LD_LIBRARY_PATH.
func loads(library string) bool {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	return C.can_load(name) != 0
}
