package xla_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestOpenGivesTheDevicesAskedFor(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8, 32, xla.MaxDevices} {
		b := devicetest.OpenOwn(t, n)
		if got := b.NumDevices(); got != n {
			t.Errorf("asked for %d devices, got %d", n, got)
		}
		if len(b.Info().Canaries) == 0 {
			t.Errorf("%d devices: opened with no canary", n)
		}
		for _, c := range b.Info().Canaries {
			if !c.OK() {
				t.Errorf("%d devices: opened although a canary is wrong: %v", n, c)
			}
		}
	}
}

func TestDevicesFromTheEnvironment(t *testing.T) {
	t.Setenv(xla.EnvDevices, "5")
	b := must.Get(xla.Open(xla.Plugin("cpu")))(t)
	defer b.Close()
	if got := b.NumDevices(); got != 5 {
		t.Errorf("%s=5 gave %d devices", xla.EnvDevices, got)
	}
	if b := devicetest.OpenOwn(t, 2); b.NumDevices() != 2 {
		t.Errorf("the option gave %d devices, want 2: it wins over the environment", b.NumDevices())
	}
}

func TestOpenErrors(t *testing.T) {
	folder := t.TempDir()
	text := filepath.Join(folder, "cpu_text.so")
	must.Do(t, os.WriteFile(text, []byte("not a library"), 0o644))
	for _, test := range []struct {
		name    string
		env     map[string]string
		options []xla.Option
		want    []string // all of them in the error
	}{
		{"no devices", nil, []xla.Option{xla.Devices(0)}, []string{"0 devices"}},
		{"fewer than none", nil, []xla.Option{xla.Devices(-1)}, []string{"-1 devices"}},
		{"too many", nil, []xla.Option{xla.Devices(1 << 30)}, []string{"1073741824 devices"}},
		{"environment not a number", map[string]string{xla.EnvDevices: "many"}, nil, []string{xla.EnvDevices, "many"}},
		{"environment zero", map[string]string{xla.EnvDevices: "0"}, nil, []string{xla.EnvDevices, "0 devices"}},
		{"no such plugin", nil, []xla.Option{xla.Plugin("/no/such/plugin.so")},
			[]string{"/no/such/plugin.so", "no such file"}},
		{"plugin from the environment", map[string]string{"SHARDBOOK_PLUGIN": "/no/such/env.so"}, nil,
			[]string{"/no/such/env.so"}},
		{"a folder", nil, []xla.Option{xla.Plugin(folder)}, []string{folder, "not a file"}},
		{"a text file", nil, []xla.Option{xla.Plugin(text)}, []string{text, "not a shared library"}},
		{"the cache is a file", nil, []xla.Option{xla.CacheDir(text)}, []string{text}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for name, value := range test.env {
				t.Setenv(name, value)
			}
			fails(xla.Open(test.options...))(t, "Open", test.want...)
		})
	}
}

// TestHalfPrecisionIsHalf rounds to half types inside of a program: 10000² is too large for float16 and 9984² in
// bfloat16, and 4097 has too many bits for both. By default XLA would not round them.
func TestHalfPrecisionIsHalf(t *testing.T) {
	for dtype, want := range map[dtypes.DType][]float32{
		dtypes.Float16:  {float32(math.Inf(1)), 4096},
		dtypes.BFloat16: {99_614_720, 4096},
	} {
		out := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
			half := graph.ConvertDType(in[0], dtype)
			ones := graph.OnesLike(graph.BroadcastToDims(half, 4097))
			return []*graph.Node{
				graph.ConvertDType(graph.Square(half), dtypes.Float32),
				graph.ConvertDType(graph.Dot(ones, ones).Product(), dtypes.Float32),
			}
		}, tensors.FromScalar(float32(10000))))(t)
		same(t, dtype.String(), out, want[:1], want[1:])
	}
}
