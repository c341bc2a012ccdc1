package native_test

import (
	"bytes"
	"debug/elf"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/cudatest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/native"
)

// addSource adds arrays, 16 bytes at a time where they are aligned: XLA's are, but for parts of an array.
const addSource = `
template <class T> __global__ void add(slice<T> y, slice_f32, slice<T> a, slice<T> b) {
	constexpr int width = 16 / sizeof(T);
	int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * width;
	bool aligned = (((uint64_t)y.at | (uint64_t)a.at | (uint64_t)b.at) & 15) == 0;
	if (aligned && i + width <= y.n) {
		uint4 x = *(const uint4 *)(a.at + i), z = *(const uint4 *)(b.at + i);
		T *to = (T *)&x;
		const T *from = (const T *)&z;
		for (int j = 0; j < width; j++) to[j] = T(float(to[j]) + float(from[j]));
		__stwb((uint4 *)(y.at + i), x);
	} else
		for (int64_t j = i; j < i + width && j < y.n; j++) y.at[j] = T(float(a.at[j]) + float(b.at[j]));
}

// scale has a block for each row.
__global__ void scale(slice_f32 y, slice_f32 x, slice_f32 by) {
	int64_t columns = x.n / by.n;
	for (int64_t j = threadIdx.x; j < columns; j += blockDim.x)
		y.at[blockIdx.x * columns + j] = x.at[blockIdx.x * columns + j] * by.at[blockIdx.x];
}
`

type (
	f32  = []float32
	bf16 = []bfloat16.BFloat16
)

var addKernels = []string{"add<float>", "add<__nv_bfloat16>", "scale"}

// compileAdd compiles the source with more options.
func compileAdd(t *testing.T, more ...native.Option) (*native.Library, error) {
	return native.CompileCUDA(addSource, append(more, native.WithCache(t.TempDir()),
		native.Global[func(y, none, a, b f32)](addKernels[0], native.Launch{Grid: "up(n[0], 4*128)", Block: "128"}),
		native.Global[func(y bf16, none f32, a, b bf16)](addKernels[1], native.Launch{Grid: "up(n[0], 8*128)", Block: "128"}),
		native.Global[func(y, x, by f32)](addKernels[2],
			native.Launch{Grid: "n[2]", Block: "min(n[1]/n[2], 2048), 1, 1", Shared: "n[0] < 1000 ? 0 : 100 << 10"}))...)
}

// call calls a kernel as XLA does, and returns its error.
func call(t *testing.T, l *native.Library, name string, results, operands []testkernel.Array) string {
	t.Helper()
	return testkernel.Call(must.Get(l.Handler(name))(t), operands, results)
}

func array(t *testing.T, of dtypes.DType, values []float32, dims ...int) testkernel.Array {
	t.Helper()
	a, free, err := testkernel.Guarded(len(values)%2 == 0, of, dims...)
	must.Do(t, err)
	t.Cleanup(free)
	a.Set(values)
	return a
}

// On a processor that stands for a GPU, the kernels compute what Go does, with XLA's stream, and errors of CUDA are the
// call's.
func TestGlobal(t *testing.T) {
	if !cudatest.Alone(t) {
		return
	}
	d := must.Get(cudatest.Load(t.TempDir(), addSource, addKernels...))(t)
	want := native.GPU{Name: "NVIDIA H100 80GB HBM3", Architecture: "sm_90", Bandwidth: 3352.32e9}
	if gpu, err := native.FirstGPU(); err != nil || gpu != want {
		t.Errorf("the GPU is %+v, %v; want %+v", gpu, err, want)
	}
	l := must.Get(compileAdd(t))(t)
	r := rand.New(rand.NewPCG(1, 2))
	none := array(t, dtypes.Float32, nil, 0)
	launches := 0
	for range 40 {
		n := r.IntN(3000)
		for name, of := range map[string]dtypes.DType{addKernels[0]: dtypes.Float32, addKernels[1]: dtypes.BFloat16} {
			x, z, want := make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range x {
				x[i], z[i] = float32(r.IntN(64)-32), float32(r.IntN(64)-32)
				switch r.IntN(20) {
				case 0:
					x[i] = float32(math.Inf(1))
				case 1:
					x[i] = float32(math.NaN())
				}
				want[i] = x[i] + z[i] // exact
			}
			a, b, y := array(t, of, x, n), array(t, of, z, n), array(t, of, x, n)
			if wrong := call(t, l, name, []testkernel.Array{y, none}, []testkernel.Array{a, b}); wrong != "" {
				t.Fatalf("%s of %d: %s", name, n, wrong)
			}
			for i, v := range y.Values() {
				if v != want[i] && !(v != v && want[i] != want[i]) {
					t.Fatalf("%s of %d: element %d is %g, want %g", name, n, i, v, want[i])
				}
			}
			if n > 0 {
				launches++
			}
		}
	}
	if got := int(*d.Int("gpu_launches")); got != launches || d.Stream() != testkernel.Stream {
		t.Errorf("%d launches on stream %#x, want %d on %#x", got, d.Stream(), launches, testkernel.Stream)
	}
	if loads := *d.Int("gpu_loads"); loads != 1 {
		t.Errorf("the code of all kernels was loaded %d times", loads)
	}

	rows := func(rows, columns int) (y, x, by testkernel.Array) {
		values := make([]float32, rows*columns)
		return array(t, dtypes.Float32, values, rows, columns), array(t, dtypes.Float32, values, rows, columns),
			array(t, dtypes.Float32, make([]float32, rows), rows)
	}
	y, x, by := rows(2, 3)
	for want, fn := range map[string]func() string{
		"parameter 1 has elements of another type": func() string {
			half := array(t, dtypes.BFloat16, make([]float32, 6), 6)
			return call(t, l, "scale", []testkernel.Array{y}, []testkernel.Array{half, by})
		},
		"3 parameters, the call 1 results and 1 operands": func() string {
			return call(t, l, "scale", []testkernel.Array{y}, []testkernel.Array{x})
		},
		"scale (for sm_90): launching a grid of 1 × 1 × 1 blocks of 2048 × 1 × 1 threads, with 102400 bytes of shared memory: " +
			"CUDA_ERROR_INVALID_VALUE, invalid argument: a block has at most 1024 threads": func() string {
			y, x, by := rows(1, 3000)
			return call(t, l, "scale", []testkernel.Array{y}, []testkernel.Array{x, by})
		},
		"scale (for sm_90): launching a grid of 2 × 1 × 1 blocks of 3 × 1 × 1 threads, with 0 bytes of shared memory: " +
			"CUDA_ERROR_UNKNOWN": func() string {
			*d.Int("gpu_fails") = 999
			return call(t, l, "scale", []testkernel.Array{y}, []testkernel.Array{x, by})
		},
		"scale (for sm_80): it cannot be loaded: CUDA_ERROR_NO_BINARY_FOR_GPU, an error of the test's: the architecture is " +
			"not that of this GPU": func() string {
			return call(t, must.Get(compileAdd(t, native.Architecture("sm_80")))(t), "scale", []testkernel.Array{y},
				[]testkernel.Array{x, by})
		},
	} {
		if got := fn(); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	y, x, by = rows(20, 100)
	if wrong := call(t, l, "scale", []testkernel.Array{y}, []testkernel.Array{x, by}); wrong != "" ||
		*d.Int("gpu_shared") != 100<<10 || *d.Int("gpu_allowed") != 100<<10 {
		t.Errorf("%q, and %d bytes of shared memory, %d allowed", wrong, *d.Int("gpu_shared"), *d.Int("gpu_allowed"))
	}
}

// What is wrong with a Global is said before anything is compiled.
func TestGlobalErrors(t *testing.T) {
	launch := native.Launch{Grid: "1", Block: "1"}
	for _, c := range []struct {
		name   string
		option native.Option
		words  []string
	}{
		{"no function", native.Global[int]("f", launch), []string{`Global("f")`, "int", "function type of slices"}},
		{"result", native.Global[func([]float32) error]("f", launch), []string{"no result"}},
		{"number", native.Global[func([]float32, float32)]("f", launch), []string{"parameter 1", "float32", "on the GPU"}},
		{"no grid", native.Global[func([]float32)]("f", native.Launch{Block: "1"}), []string{"no Grid"}},
		{"host", native.Bind("f", new(func())), []string{`Bind("f")`, "Global"}},
	} {
		_, err := native.CompileCUDA("", c.option)
		wants(t, err, c.words...)
	}
	_, err := native.CompileCUDA("", native.Global[func(f32)]("f", launch), native.Global[func(f32)]("f", launch))
	wants(t, err, "bound twice")
	_, err = native.Load("", native.Global[func(f32)]("f", launch))
	wants(t, err, `Global("f")`, "CompileCUDA")
}

// realNVRTC skips a test where NVIDIA's compiler is not installed. The full tier installs it.
func realNVRTC(t *testing.T) {
	t.Helper()
	switch {
	case native.HasNVRTC():
	case systest.Full():
		must.Do(t, plugin.InstallCUDA(t.Context(), must.Get(cache.Dir(""))(t),
			func(_, _ int, what string) { t.Log(what) }))
	default:
		systest.Skip(t, systest.Tier, "NVRTC is not installed: go run ./cmd/shardbook setup --cuda")
	}
}

// The headers for half precision are found where pip puts them: beside NVRTC, or, of CUDA 12, in another package.
func TestHeaders(t *testing.T) {
	for _, folders := range [][2]string{{"cu13", "cu13"}, {"cuda_nvrtc", "cuda_runtime"}} {
		site := t.TempDir()
		file := func(content string, parts ...string) string {
			path := filepath.Join(append([]string{site, "nvidia"}, parts...)...)
			must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must.Do(t, os.WriteFile(path, []byte(content), 0o644))
			return path
		}
		source := file("void nvrtcCompileProgram(void) {}", "nvrtc.c")
		library := file("", folders[0], "lib", "libnvrtc.so.12")
		if output, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v: %s", err, output)
		}
		want := filepath.Dir(file("", folders[1], "include", "cuda_bf16.h"))
		t.Setenv(plugin.Env, filepath.Join(site, "jax_plugins", "xla_cuda12", "xla_cuda_plugin.so"))
		if got, err := native.Headers(); err != nil || filepath.Clean(got) != want {
			t.Errorf("in %s: %q, %v", folders[1], got, err)
		}
	}
}

// NVRTC compiles for several architectures, without a GPU, to code with the kernels that were named.
func TestNVRTC(t *testing.T) {
	realNVRTC(t)
	for architecture, number := range map[string]byte{"sm_80": 80, "sm_90": 90} {
		l := must.Get(compileAdd(t, native.Architecture(architecture)))(t)
		for _, name := range addKernels {
			must.Get(l.Handler(name))(t)
			must.Get(l.Kernel(name))(t)
		}
		code, names := native.Code(l)
		file := must.Get(elf.NewFile(bytes.NewReader(code)))(t)
		if file.Machine != 190 || code[49] != number { // EM_CUDA; the architecture is in the flags
			t.Errorf("%s: the code is for machine %v, architecture %d", architecture, file.Machine, code[49])
		}
		symbols := must.Get(file.Symbols())(t)
		for i, lowered := range names {
			found := false
			for _, s := range symbols {
				found = found || s.Name == lowered
			}
			if !found || !strings.Contains(lowered, strings.Split(addKernels[i], "<")[0]) {
				t.Errorf("%s: %s is %q, which the code has: %v", architecture, addKernels[i], lowered, found)
			}
		}
	}
}

// NVRTC's errors have lines of the source, or the Global that does not fit.
func TestNVRTCErrors(t *testing.T) {
	realNVRTC(t)
	launch := native.Launch{Grid: "1", Block: "1"}
	const source = "__global__ void f(slice_f64 x) {}\n__global__ void h(slice_f16 x, slice_bf16 y) {}\n"
	good := native.Global[func([]float64)]("f", launch)
	for _, c := range []struct {
		name, source string
		options      []native.Option
		words        []string
	}{
		{"syntax", source + "\nvoid g( {}", []native.Option{good}, []string{"source.cu(4): error"}},
		{"type", source, []native.Option{native.Global[func(f32)]("f", launch)},
			[]string{"Global f as func([]float32)(1): error", "slice<double>", "slice<float>"}},
		{"name", source, []native.Option{native.Global[func(f32)]("ff", launch)}, []string{`identifier "ff" is undefined`}},
		{"flag", source, []native.Option{good, native.Flags("--no-such")}, []string{"--no-such"}},
		{"architecture", source, []native.Option{good, native.Architecture("sm_1")}, []string{"--gpu-architecture"}},
		{"grid", source, []native.Option{native.Global[func([]float64)]("f", native.Launch{Grid: "m[0]", Block: "1"})},
			[]string{"Launch of f:1", "m"}},
		{"dimensions", source, []native.Option{native.Global[func([]float64)]("f", native.Launch{Grid: "1, 2, 3, 4", Block: "1"})},
			[]string{"Launch of f", "more than three dimensions"}},
		{"halves", source, []native.Option{native.Global[func([]float16.Float16, bf16)]("h", launch)}, nil},
	} {
		options := append([]native.Option{native.WithCache(t.TempDir()), native.Architecture("sm_90")}, c.options...)
		_, err := native.CompileCUDA(c.source, options...)
		if c.words == nil {
			must.Do(t, err)
			continue
		}
		wants(t, err, c.words...)
	}
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		_, err := native.CompileCUDA(source, native.WithCache(t.TempDir()), good)
		wants(t, err, "no driver", `native.Architecture("sm_90")`)
	}
}
