package native_test

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/native"
)

// In place of CUDA the tests have two arrays, which are the memories of two GPUs, and in place of nvcc a compiler for
// C++ and a script that knows nvcc's options. So what they say of LoadCUDA is: its own code is C++ and calls CUDA's
// functions in the right order, with CUDA's names as this file has them.
const madeUpCUDA = `#pragma once
enum cudaError_t { cudaSuccess = 0, cudaErrorLaunchFailure = 719 };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes { cudaMemoryType type; int device; void *devicePointer, *hostPointer; };
extern "C" {
float gpu_memory[2][64];
int gpu_current = -1, gpu_waits, gpu_launch_fails, gpu_work_fails;
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
	a->type = cudaMemoryTypeUnregistered;
	for (int i = 0; i < 2; i++)
		if (p >= gpu_memory[i] && p < gpu_memory[i] + 64) a->type = cudaMemoryTypeDevice, a->device = i;
	return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int i) { gpu_current = i; return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return gpu_launch_fails ? cudaErrorLaunchFailure : cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() {
	gpu_waits++;
	return gpu_work_fails ? cudaErrorLaunchFailure : cudaSuccess;
}
inline const char *cudaGetErrorString(cudaError_t e) {
	return e == cudaErrorLaunchFailure ? "unspecified launch failure" : "?";
}
`

// madeUpNVCC writes them, and returns the compiler's path.
func madeUpNVCC(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "cuda_runtime.h"), []byte(madeUpCUDA), 0o644))
	return script(t, `
n=$#
while [ $n -gt 0 ]; do
	word=$1; shift; n=$((n-1))
	case "$word" in
	-arch=native|-lineinfo|-Xcompiler) ;;
	-Xlinker) set -- "$@" "-Wl,$1"; shift; n=$((n-1)) ;;
	*.cu) set -- "$@" -x c++ "$word" ;;
	*) set -- "$@" "$word" ;;
	esac
done
exec g++ -D__CUDACC__ -I '`+dir+`' "$@"
`)
}

func TestCUDA(t *testing.T) {
	t.Setenv("NVCC", madeUpNVCC(t))
	var double func(x []float32, factor float32, also *float32) error
	var any func(p unsafe.Pointer) error
	l, err := native.LoadCUDA(`
static const char *scale(slice_f32 x, float factor, float *also) {
	if (factor < 0) return "the factor is negative";
	for (int64_t i = 0; i < x.n; i++) x.at[i] *= factor;
	if (also) *also = factor;
	return NULL;
}
static const char *any(void *p) { return NULL; }`,
		native.WithCache(kept), native.Bind("scale", &double), native.Bind("any", &any))
	must.Do(t, err)
	variable := func(name string) unsafe.Pointer {
		return must.Get(l.Symbol(name))(t)
	}
	memory := (*[2][64]float32)(variable("gpu_memory"))
	current, waits := (*int32)(variable("gpu_current")), (*int32)(variable("gpu_waits"))
	for gpu := range memory {
		x := unsafe.Slice(&memory[gpu][4], 3)
		copy(x, []float32{1, 2, 3})
		must.Do(t, double(x, 2, &memory[gpu][0]))
		if m := memory[gpu]; [4]float32(m[4:]) != [4]float32{2, 4, 6} || m[0] != 2 {
			t.Errorf("GPU %d's memory is %v", gpu, m)
		}
		if int(*current) != gpu || int(*waits) != gpu+1 {
			t.Errorf("the call for GPU %d ran on GPU %d, and %d calls waited for their work", gpu, *current, *waits)
		}
	}
	before := *memory
	wants(t, double([]float32{1}, 2, nil), "scale: ", "host's memory")
	wants(t, double(memory[0][:1], 2, new(float32)), "host's memory")
	wants(t, double(memory[0][:1], 2, &memory[1][0]), "different GPUs")
	wants(t, double(memory[0][:1], -1, nil), "the factor is negative")
	wants(t, any(unsafe.Pointer(new(int))), "any: ", "host's memory")
	if *memory != before {
		t.Error("a call that was refused wrote to memory")
	}
	if err := double(nil, 2, nil); err != nil {
		t.Error(err)
	}
	for _, what := range []string{"gpu_launch_fails", "gpu_work_fails"} {
		fails := (*int32)(variable(what))
		*fails = 1
		wants(t, double(memory[0][:1], 2, nil), "unspecified launch failure")
		*fails = 0
	}
	_, err = l.Kernel("scale")
	wants(t, err, "scale", "in C")
}

func TestCUDAErrors(t *testing.T) {
	t.Setenv("NVCC", madeUpNVCC(t))
	_, err := native.LoadCUDA("void f() {}\n__global__ void g() {}\n", native.WithCache(kept))
	wants(t, err, "source.cu:2:1: error")
	_, err = native.LoadCUDA("void f() {}", native.WithCache(kept), native.Bind("f", new(func())))
	wants(t, err, `Bind("f")`, "make its result an error")
	_, err = native.LoadCUDA("static const char *f(double *) { return 0; }", native.WithCache(kept),
		native.Bind("f", new(func(*float32) error)))
	wants(t, err, "Bind f as func(*float32) error", "double*")
	t.Setenv("NVCC", filepath.Join(t.TempDir(), "nvcc"))
	_, err = native.LoadCUDA("", native.WithCache(kept))
	wants(t, err, "nvcc", "NVCC")
}

// nvcc is looked for in NVCC, on the PATH, and in the toolkit's folder.
func TestFindNVCC(t *testing.T) {
	works := madeUpNVCC(t)
	home := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(home, "bin"), 0o755))
	must.Do(t, os.Symlink(works, filepath.Join(home, "bin", "nvcc")))
	tools := os.Getenv("PATH")
	for _, c := range []struct{ nvcc, path, home string }{
		{works + " -DX", tools, ""},
		{"", filepath.Join(home, "bin") + ":" + tools, ""},
		{"", tools, home},
	} {
		t.Setenv("NVCC", c.nvcc)
		t.Setenv("PATH", c.path)
		t.Setenv("CUDA_HOME", c.home)
		if _, err := native.LoadCUDA("", native.WithCache(t.TempDir())); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := os.Stat("/usr/local/cuda"); err == nil {
		return // it is found there
	}
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CUDA_HOME", "")
	_, err := native.LoadCUDA("", native.WithCache(kept))
	wants(t, err, "no nvcc", "CUDA toolkit")
}
