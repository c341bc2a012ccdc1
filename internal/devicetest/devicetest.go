// Package devicetest gives tests devices to run on.
package devicetest

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/xla"
)

// Plugin is the devices that tests run on: CPUs, or what $SHARDBOOK_PLUGIN says.
func Plugin() string { return cmp.Or(os.Getenv(plugin.Env), string(plugin.CPU)) }

// GPU skips a test that needs a GPU if the tests run on CPUs, and notes that it was left out.
func GPU(t testing.TB) {
	t.Helper()
	if Plugin() == string(plugin.CPU) {
		systest.Skip(t, systest.NoGPU, "set "+plugin.Env+"=cuda")
	}
}

// Open returns n devices that all tests of the process share: each backend compiles canaries first. Where there are
// fewer GPUs, the test is skipped.
func Open(t testing.TB, n int) *xla.Backend {
	t.Helper()
	opening, _ := shared.LoadOrStore(n, sync.OnceValues(func() (*xla.Backend, error) { return open(n) }))
	backend, err := opening.(func() (*xla.Backend, error))()
	check(t, err)
	return backend
}

var shared sync.Map // number of devices → func() (*xla.Backend, error)

// OpenOwn opens n devices for this test alone, and closes them when it ends.
func OpenOwn(t testing.TB, n int) *xla.Backend {
	t.Helper()
	backend, err := open(n)
	check(t, err)
	t.Cleanup(backend.Close)
	return backend
}

// OpenShared opens n devices that share a number of the plugin's, as ranks share a GPU, and closes them when the test
// ends.
func OpenShared(t testing.TB, n, share int) *xla.Backend {
	t.Helper()
	backend, err := xla.Open(xla.Devices(n), xla.Share(share), xla.Plugin(Plugin()))
	check(t, err)
	t.Cleanup(backend.Close)
	return backend
}

func open(n int) (*xla.Backend, error) { return xla.Open(xla.Devices(n), xla.Plugin(Plugin())) }

func check(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, xla.ErrTooFew) {
		systest.Skip(t, systest.NoGPU, err)
	}
	must.Do(t, err)
}

// One returns one device that all tests of the process share. It panics where
// there is none, since examples have no test to fail.
var One = sync.OnceValue(func() *xla.Backend {
	backend, err := open(1)
	if err != nil {
		panic(fmt.Errorf("no device to test on: %w", err))
	}
	return backend
})

// PureGo returns GoMLX's own backend, which compiles nothing and shares nothing with XLA: for tests of graphs, and for
// a second opinion on XLA's results. It runs one operation after another, since loops at once deadlock.
var PureGo = sync.OnceValue(func() compute.Backend {
	backend, err := gobackend.New("ops_sequential")
	if err != nil {
		panic(fmt.Errorf("no backend to test on: %w", err))
	}
	return backend
})

// Call builds, compiles and runs a graph function once on One.
func Call(fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	return CallOn(One(), fn, args...)
}

// CallOn is Call on another backend.
func CallOn(backend compute.Backend, fn func([]*graph.Node) []*graph.Node,
	args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	exec, err := graph.NewExec(backend, fn)
	if err != nil {
		return nil, err
	}
	defer exec.Finalize()
	return exec.Call(args)
}

// EnvXLA names the environment variable that, set to "default", has tests compile as users do.
const EnvXLA = "SHARDBOOK_TEST_XLA"

// quickly are XLA's flags that make it compile in half the time.
const quickly = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true " +
	"--xla_cpu_parallel_codegen_split_count=1 --xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"

// CompileQuickly has XLA optimize less, for tests that compile far more than they run: compiling takes half the time.
// XLA plans the same temporary memory (TestTemporariesAtBothLevels in lib/memest). It is for TestMain, before anything
// opens a device. With $SHARDBOOK_TEST_XLA=default it leaves XLA as it is for users, also in a process that one which
// compiles quickly has started.
func CompileQuickly() {
	flags := strings.Replace(os.Getenv("XLA_FLAGS"), quickly, "", 1)
	if !AsUsersDo() {
		flags += " " + quickly
	}
	os.Setenv("XLA_FLAGS", strings.TrimSpace(flags))
}

// AsUsersDo reports whether programs are to be compiled as they are for users.
func AsUsersDo() bool {
	switch text := os.Getenv(EnvXLA); text {
	case "":
		return false
	case "default":
		return true
	default:
		panic(fmt.Sprintf("%s=%q: set it to \"default\", or to nothing", EnvXLA, text))
	}
}

// CompiledAsUsersDo runs the test again in a process whose programs are compiled as for users, and reports whether this
// is that process. XLA reads its flags once in a process, and a test that computes for long takes many times as long
// if it is compiled quickly.
func CompiledAsUsersDo(t *testing.T) bool {
	t.Helper()
	if AsUsersDo() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), EnvXLA+"=default")
	output, err := cmd.CombinedOutput()
	if t.Logf("%s", output); err != nil {
		t.Errorf("in a process of its own: %v", err)
	}
	return false
}

// Main is a TestMain with CompileQuickly, but for benchmarks: what they measure is compiled as it is for users.
func Main(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		CompileQuickly()
	}
	os.Exit(m.Run())
}

// WithBarriers is PureGo with what Node.Checkpoint is made of, which it lacks: barriers. As it runs one operation after
// another as they are written, they need do nothing, and what is recomputed has the bits of the first time. What it
// returns cannot be given to it again.
var WithBarriers = sync.OnceValue(func() compute.Backend { return barrierBackend{PureGo()} })

type (
	barrierBackend  struct{ compute.Backend }
	barrierBuilder  struct{ compute.Builder }
	barrierFunction struct{ compute.Function }
)

func (b barrierBackend) Builder(name string) compute.Builder {
	return barrierBuilder{b.Backend.Builder(name)}
}

func (b barrierBuilder) Main() compute.Function { return barrierFunction{b.Builder.Main()} }

func (f barrierFunction) OptimizationBarrier(xs ...compute.Value) ([]compute.Value, error) {
	same := make([]compute.Value, len(xs))
	for i, x := range xs {
		var err error
		if same[i], err = f.Identity(x); err != nil {
			return nil, err
		}
	}
	return same, nil
}

func (f barrierFunction) SchedulingBarrier(x compute.Value, _ ...compute.Value) (compute.Value, error) {
	return f.Identity(x)
}

// NoLeaks returns a function that fails the test unless all goroutines that were started since have ended and all
// buffers that were made on the devices since are freed.
func NoLeaks(t *testing.T, backend *xla.Backend) func() {
	t.Helper()
	runtime.GC()
	ended, live := systest.NoLeaks(t), backend.Live()
	return func() {
		t.Helper()
		ended()
		for device, now := range backend.Live() { // numbers that programs were given wait for the garbage collector
			if buffers, bytes := now.Buffers-live[device].Buffers,
				now.Bytes-live[device].Bytes; bytes > 4*int64(buffers) {
				t.Errorf("device %d has %d bytes in %d buffers more than before", device, bytes, buffers)
			}
		}
	}
}

// OpenFor opens n devices of a model of GPU that need not be here: XLA compiles for them, and programs return zeros.
// The full tier installs the CUDA plugin; the quick one leaves the test out where it is not installed.
func OpenFor(t testing.TB, gpu string, n int, options ...xla.Option) *xla.Backend {
	t.Helper()
	root := must.Get(cache.Dir(""))(t)
	if systest.Full() {
		must.Do(t, plugin.InstallCUDA(t.Context(), root, func(_, _ int, what string) { t.Log(what) }))
	} else if _, err := plugin.Find(string(plugin.CUDA), root); err != nil {
		systest.Skip(t, systest.Tier, err)
	}
	options = append(options, xla.CompileFor(gpu), xla.Devices(n), xla.Plugin(string(plugin.CUDA)))
	backend := must.Get(xla.Open(options...))(t)
	t.Cleanup(backend.Close)
	return backend
}
