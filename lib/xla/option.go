package xla

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/shardbook/shardbook/internal/plugin"
)

// EnvDevices names the environment variable with the number of devices.
const EnvDevices = "SHARDBOOK_DEVICES"

// envCompile names the environment variable that, set to "afresh", acts like [CompileAfresh].
const envCompile = "SHARDBOOK_COMPILE"

// envKernels and envMemory name the environment variables that, set to "off" or "cuda" and to "return", act like
// [NoKernels] or [CUDAKernels] and [ReturnMemory].
const (
	envKernels = "SHARDBOOK_KERNELS"
	envMemory  = "SHARDBOOK_MEMORY"
)

// DefaultDevices is the default number of CPU devices: a mesh of 8 has room for three axes.
const DefaultDevices = 8

// MaxDevices is the largest number of CPU devices of a process. With 256, five independent collectives ran at the same
// time; with 384, XLA waited forever, with devices in different ones. On two cores a device needs one to two threads
// and less than a MiB of memory besides its buffers.
const MaxDevices = 256

// Option is an option of Open. Options override the environment, which overrides the defaults.
type Option func(*config)

type config struct {
	devices      int    // 0: default
	plugin       string // path or platform; "": default
	cacheDir     string // "": default
	allCanaries  bool
	afresh       bool
	tf32         bool
	noKernels    bool
	cudaKernels  bool
	noCUDAGraphs bool
	giveBack     bool
	gpu          string                             // to compile for
	share        int                                // the plugin's devices that ours share; 0: each has its own
	spoil        func(canary string, got []float64) // for tests
	wrong        error                              // in an option
}

// Devices sets the number of devices, from 1 to MaxDevices; on CUDA at most the number of GPUs, unless they [Share].
// The default is $SHARDBOOK_DEVICES, else DefaultDevices on CPU and all GPUs on CUDA.
func Devices(n int) Option {
	return func(c *config) { c.devices, c.wrong = n, checkDevices(n, "xla.Devices") }
}

// Plugin chooses the PJRT plugin: the path of its shared library, "cpu", "cuda", or "go-xla" for go-xla's own release
// for CPUs, whose download cannot be verified. The default is $SHARDBOOK_PLUGIN, else CUDA if its plugin and a GPU are
// there, else CPU.
func Plugin(pathOrPlatform string) Option {
	return func(c *config) { c.plugin = pathOrPlatform }
}

// CacheDir sets the folder for installed plugins and compiled programs. The default is $SHARDBOOK_CACHE, else
// "shardbook" in the user's cache folder.
func CacheDir(dir string) Option {
	return func(c *config) { c.cacheDir = dir }
}

// AllCanaries makes Open run every canary, also for a plugin that has passed them on this machine.
func AllCanaries() Option {
	return func(c *config) { c.allCanaries = true }
}

// CompileAfresh makes XLA compile programs instead of loading them from the cache folder, for measuring compilation.
// $SHARDBOOK_COMPILE=afresh does the same.
func CompileAfresh() Option {
	return func(c *config) { c.afresh = true }
}

// TF32 makes GPUs multiply float32 with 10 bits of mantissa instead of 23, several times as fast and with an error of
// 1e-3. Without it, a run on CUDA has the same losses as on CPUs, up to rounding.
func TF32() Option {
	return func(c *config) { c.tf32 = true }
}

// Share has the backend's devices share the first n of the plugin's: device i is the plugin's device i mod n. So
// several ranks, each with devices of its own, run on one GPU. A program runs on at most n devices.
func Share(n int) Option {
	return func(c *config) { c.share, c.wrong = n, checkDevices(n, "xla.Share") }
}

// CompileFor makes Open return a backend whose programs XLA compiles for GPUs that this machine need not have: "a100",
// "h100", "h200" or "b200". It needs the CUDA plugin, and no GPU or driver. Programs have their optimized operations
// and the memory that they need there ([Program.Memory]), but they do not run: a call returns zeros. So a training step
// on such a backend shows whether XLA compiles all its programs, and how much memory each device would need.
func CompileFor(gpu string) Option {
	return func(c *config) { c.gpu = gpu }
}

// NoKernels leaves matmuls, sums and collectives on CPUs to XLA, which is slower, instead of calling C kernels, and
// whatever else [Kernel.Replaces] decides.
// $SHARDBOOK_KERNELS=off does the same.
func NoKernels() Option {
	return func(c *config) { c.noKernels = true }
}

// CUDAKernels has packages such as lib/fused call CUDA kernels of their own on GPUs in place of XLA's operations
// ([Kernel.Replaces]), for comparing the two. They are compiled when a program first calls them, and Open checks those
// that have a check. It has no effect on CPUs. $SHARDBOOK_KERNELS=cuda does the same.
func CUDAKernels() Option {
	return func(c *config) { c.cudaKernels = true }
}

// NoCUDAGraphs has GPUs launch each kernel by itself. By default XLA makes CUDA graphs (command buffers) of several
// kernels, which one launch starts sooner; but a profile ([Backend.Profile]) of a graph that was built before the
// recording does not say which operations its kernels are. It has no effect on CPUs.
func NoCUDAGraphs() Option {
	return func(c *config) { c.noCUDAGraphs = true }
}

// ReturnMemory has XLA on CPUs return large buffers to the operating system as soon as they are free. By default they
// stay with the process, at most a sixteenth above the most that were in use at a time, since XLA allocates the buffers
// of a program for every run, and fresh pages cost up to a quarter of a step's time. The first Open of a process
// chooses. [FreeMemory] returns what is unused at any time. $SHARDBOOK_MEMORY=return does the same.
func ReturnMemory() Option {
	return func(c *config) { c.giveBack = true }
}

// newConfig combines options, environment and defaults.
func newConfig(options []Option) (config, error) {
	var c config
	for _, option := range options {
		if option(&c); c.wrong != nil {
			return c, c.wrong
		}
	}
	if text := os.Getenv(EnvDevices); c.devices == 0 && text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return c, fmt.Errorf("%s=%q is not an integer: set it to the number of devices, 1 to %d", EnvDevices,
				text, MaxDevices)
		}
		if err := checkDevices(n, EnvDevices); err != nil {
			return c, err
		}
		c.devices = n
	}
	if c.plugin == "" {
		c.plugin = os.Getenv(plugin.Env)
	}
	for _, s := range []struct {
		env, otherwise string
		words          map[string]*bool
	}{
		{envCompile, "load programs from the cache", map[string]*bool{"afresh": &c.afresh}},
		{envKernels, "have programs on CPUs call kernels",
			map[string]*bool{"off": &c.noKernels, "cuda": &c.cudaKernels}},
		{envMemory, "keep freed memory", map[string]*bool{"return": &c.giveBack}},
	} {
		text := os.Getenv(s.env)
		if set := s.words[text]; set != nil {
			*set = true
		} else if text != "" {
			words := slices.Sorted(maps.Keys(s.words))
			return c, fmt.Errorf("%s=%q: set it to \"%s\", or to nothing to %s", s.env, text,
				strings.Join(words, `" or "`), s.otherwise)
		}
	}
	return c, nil
}

func checkDevices(n int, source string) error {
	if n < 1 || n > MaxDevices {
		return fmt.Errorf("%s: %d devices asked for: choose 1 to %d", source, n, MaxDevices)
	}
	return nil
}
