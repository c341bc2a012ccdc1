// Package devicetest gives tests devices to run on.
package devicetest

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// Plugin is the devices that tests run on: CPUs, or what $SHARDBOOK_PLUGIN says.
func Plugin() string { return cmp.Or(os.Getenv(plugin.Env), string(plugin.CPU)) }

// Open opens n devices that are gone when the test ends. Where there are fewer GPUs, the test is skipped.
func Open(t testing.TB, n int) *xla.Backend {
	t.Helper()
	backend, err := xla.Open(xla.Devices(n), xla.Plugin(Plugin()))
	if errors.Is(err, xla.ErrTooFew) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	return backend
}

// One returns one device that all tests of the process share. It panics where
// there is none, since examples have no test to fail.
var One = sync.OnceValue(func() *xla.Backend {
	backend, err := xla.Open(xla.Devices(1), xla.Plugin(Plugin()))
	if err != nil {
		panic(fmt.Errorf("no device to test on: %w", err))
	}
	return backend
})

// PureGo returns GoMLX's own backend, which compiles nothing and shares nothing with XLA: enough where the question is
// what a graph says, and a second opinion on what XLA makes of it. It runs one operation after another, since several
// loops at once wait for each other for ever.
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
func CallOn(backend compute.Backend, fn func([]*graph.Node) []*graph.Node, args ...*tensors.Tensor) ([]*tensors.Tensor, error) {
	exec, err := graph.NewExec(backend, fn)
	if err != nil {
		return nil, err
	}
	defer exec.Finalize()
	return exec.Call(args)
}

// CompileQuickly has XLA spend less on machine code, for tests that compile far more than they run: compiling takes half the
// time, and buffers are the same. It is for TestMain, before anything opens a device.
func CompileQuickly() {
	flags := " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
	os.Setenv("XLA_FLAGS", strings.TrimSpace(os.Getenv("XLA_FLAGS")+flags))
}

// Main is a TestMain with CompileQuickly, but for benchmarks: what they measure is compiled as it is for users.
func Main(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		CompileQuickly()
	}
	os.Exit(m.Run())
}
