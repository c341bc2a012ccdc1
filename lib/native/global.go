package native

import (
	"crypto/sha256"
	_ "embed" // for launch.h
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/internal/cache"
)

//go:embed launch.h
var launchHeader string

// Launch is what CUDA's <<<Grid, Block, Shared>>> says: blocks, threads per block, and bytes of dynamic shared memory.
// Each is a C expression, or up to three with commas, for the axes x, y and z. It may use n[i], the number of elements
// of the kernel's parameter i, up(n, k), which is n/k rounded up, and min and max:
//
//	native.Launch{Grid: "up(n[0], 4*256)", Block: "256"}
//	native.Launch{Grid: "up(n[3], 32), n[0]/n[3]", Block: "32, 8"}
//
// A kernel with a grid of 0 is not launched.
type Launch struct{ Grid, Block, Shared string }

// Global tells CompileCUDA of a kernel, a __global__ function, and how XLA is to launch it. The name is that of a
// function, or a C++ expression such as "add<float>". F is a function type without results whose parameters are slices;
// the compiler checks that the kernel's are these:
//
//	[]float32, []int32, …   slice_f32, slice_i32, …, as for Bind, passed by value: at is an address on the GPU
//	[]bfloat16.BFloat16     slice_bf16, of __nv_bfloat16
//	[]float16.Float16       slice_f16, of __half
//
// In a template slice<T> is the slice of T.
func Global[F any](name string, launch Launch) Option {
	return func(c *config) error {
		b, err := newGlobal(name, launch, reflect.TypeFor[F]())
		if err != nil {
			return fmt.Errorf("native: Global(%q) with a %v: %w", name, reflect.TypeFor[F](), err)
		}
		return c.bind(b)
	}
}

func newGlobal(name string, launch Launch, t reflect.Type) (*binding, error) {
	if t.Kind() != reflect.Func || t.IsVariadic() || t.NumOut() > 0 || t.NumIn() == 0 {
		return nil, errors.New("give it a function type of slices, with no result")
	}
	if launch.Grid == "" || launch.Block == "" {
		return nil, errors.New("Launch has no Grid or no Block: give it both")
	}
	if launch.Shared == "" {
		launch.Shared = "0"
	}
	b := &binding{name: name, of: t, launch: &launch, words: 2 * t.NumIn()}
	for i := range t.NumIn() {
		p, ok := parameterOf(t.In(i))
		if !ok || p.kind != reflect.Slice {
			return nil, fmt.Errorf("parameter %d is of type %v: make it a slice of numbers, since what kernels read is "+
				"on the GPU", i, t.In(i))
		}
		if half, ok := halves[t.In(i).Elem()]; ok {
			p.of, p.c = half, "slice_"+half.slice
		}
		b.parameters = append(b.parameters, p)
	}
	return b, nil
}

// halves are the types that CUDA tells apart, as numbers does not.
var halves = map[reflect.Type]number{
	reflect.TypeFor[bfloat16.BFloat16](): {"__nv_bfloat16", "bf16", 2, []int{16}},
	reflect.TypeFor[float16.Float16]():   {"__half", "f16", 2, []int{10}},
}

// Architecture has CompileCUDA compile for GPUs such as "sm_90". The default is the architecture of the first GPU.
func Architecture(name string) Option {
	return func(c *config) error {
		c.architecture = name
		return nil
	}
}

// CompileCUDA compiles a CUDA source by NVRTC, NVIDIA's compiler as a library, and makes kernels for XLA's programs on
// GPUs ([Library.Kernel]) of those that [Global] options name. The source has device code only, and none of C's
// headers; native.h's types, slices and the headers for half precision are included before it. [Flags] are NVRTC's. The
// code has line numbers for profilers.
//
// NVRTC is looked for beside the plugin that $SHARDBOOK_PLUGIN names (with pip's packages nvidia-cuda-nvrtc and
// nvidia-cuda-runtime), in the cache folder, where `shardbook setup --cuda` puts it, where the loader looks, in
// $CUDA_HOME, and in /usr/local/cuda. A C compiler is needed too, as for Load. Neither needs a GPU if [Architecture] is
// given. The result is cached like that of Load.
//
// It returns an error if a compiler is missing, there is no GPU to compile for, or the source does not compile (with
// the compiler's messages, which call it source.cu).
func CompileCUDA(source string, options ...Option) (*Library, error) {
	var c config
	for _, option := range options {
		if err := option(&c); err != nil {
			return nil, err
		}
	}
	for _, b := range c.bound {
		if b.launch == nil {
			return nil, fmt.Errorf("native: Bind(%q): functions on the GPU are bound by Global; LoadCUDA has functions "+
				"on the host", b.name)
		}
	}
	image, err := c.image(source)
	if err != nil {
		return nil, err
	}
	return inC.load(image.handlers(c.bound), config{cacheDir: c.cacheDir, bound: c.bound})
}

// image is a compiled source.
type image struct {
	Architecture string
	Names        []string // in the code, of the kernels
	Code         []byte
}

// image returns a source compiled: from the cache, or else it compiles it.
func (c config) image(source string) (i image, err error) {
	root, err := cache.Dir(c.cacheDir)
	if err != nil {
		return i, fmt.Errorf("native: %w", err)
	}
	with, err := findNVRTC()
	if err != nil {
		return i, err
	}
	if i.Architecture = c.architecture; i.Architecture == "" {
		gpu, err := FirstGPU()
		if err != nil {
			return i, fmt.Errorf("%w, or give native.Architecture(\"sm_90\") to compile without one", err)
		}
		i.Architecture = gpu.Architecture
	}
	options := []string{"--gpu-architecture=" + i.Architecture, "-lineinfo", "--pre-include=native.h"}
	if with.include != "" {
		options = append(options, "--include-path="+with.include)
	}
	options = append(options, c.flags...)
	var s strings.Builder
	s.WriteString(source)
	var names []string
	for number, b := range c.bound {
		var types []string
		for _, p := range b.parameters {
			types = append(types, p.c)
			if with.include == "" && strings.HasSuffix(p.c, "f16") {
				return i, fmt.Errorf("native: Global(%q): CUDA's headers for half precision (cuda_bf16.h) are not beside "+
					"NVRTC: pip install nvidia-cuda-runtime in its environment", b.name)
			}
		}
		fmt.Fprintf(&s, "\ntemplate <void (*)(%s)> struct native_check_%d;\n#line 1 %q\n"+
			"typedef native_check_%[2]d<%[4]s> native_checked_%[2]d;", strings.Join(types, ", "), number,
			fmt.Sprintf("Global %s as %v", b.name, b.of), b.name)
		names = append(names, b.name)
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q", slices.Concat([]string{s.String(), header, with.version}, options)))
	path := filepath.Join(root, "native", hex.EncodeToString(key[:])+".cubin.json")
	if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &i) == nil {
		return i, nil
	}
	if i.Code, i.Names, err = with.compile(s.String(), options, names); err != nil {
		return i, err
	}
	text, err := json.Marshal(i)
	if err != nil {
		return i, err
	}
	return i, inCache(path, func(aside string) (string, error) {
		file := filepath.Join(aside, "image")
		return file, os.WriteFile(file, text, 0o644)
	})
}

// handlers returns C code with the image, and a handler for each kernel.
func (i image) handlers(bound []*binding) string {
	var s strings.Builder
	s.WriteString(launchHeader + "\n#line 1 \"handlers\"\nstatic const uint64_t bytes[] = {")
	for at := 0; at < len(i.Code); at += 8 { // which aligns them to 8
		var word [8]byte
		copy(word[:], i.Code[at:])
		fmt.Fprintf(&s, "%#x,", binary.LittleEndian.Uint64(word[:]))
	}
	fmt.Fprintf(&s, "};\nstatic native_image image = {bytes, %q, PTHREAD_MUTEX_INITIALIZER};\n", i.Architecture)
	for number, b := range bound {
		var n []string
		for p := range b.parameters {
			n = append(n, fmt.Sprintf("w[%d]", 2*p+1))
		}
		b.writeHandler(&s, number, fmt.Sprintf(`	static native_global k = {&image, %q, %q};
	const int64_t n[] = {%s};
#line 1 %q
	const int64_t grid[] = {%s}, block[] = {%s}, shared = %s; (void)n;
	_Static_assert(sizeof grid <= 3 * sizeof *grid && sizeof block <= 3 * sizeof *block, "more than three dimensions");
	return native_launch(f, &k, NATIVE_DIM3(grid), NATIVE_DIM3(block), shared, w, %d);
`, i.Names[number], b.name, strings.Join(n, ", "), "Launch of "+b.name, b.launch.Grid, b.launch.Block, b.launch.Shared,
			len(b.parameters)))
	}
	return s.String()
}
