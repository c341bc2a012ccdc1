package xla

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/shardbook/shardbook/internal/must"
)

// TestCanaryNumbersAreExact checks that every partial sum of the canaries is a multiple of 1/2 of at most 128, which
// all types represent exactly (BFloat16, the shortest, has 8 bits of significand).
func TestCanaryNumbersAreExact(t *testing.T) {
	const n = canarySide
	x, w := canaryMatrix(7), canaryMatrix(5)
	half := slices.Repeat([]float32{0.5}, n*n)
	for name, b := range map[string][]float32{"inputs": w, "constant": half} {
		var anything bool
		for col := range n {
			var positive, negative float64
			for row := range n {
				var element float64
				for k := range n {
					element += float64(x[row*n+k]) * float64(b[k*n+col])
				}
				positive += max(element, 0)
				negative += min(element, 0)
			}
			// In any order, partial sums stay between the sums of one sign.
			if positive > 128 || negative < -128 {
				t.Fatalf("%s, column %d: partial sums may reach %v and %v", name, col, positive, negative)
			}
			anything = anything || positive+negative != 0
		}
		if !anything {
			t.Errorf("%s: every sum is 0, which a device that computes nothing would get right", name)
		}
	}
}

// TestOpenRefuses changes a canary's result: in the type that is checked every time, in one that is checked once, and
// in a collective. Open rejects the plugin, names the canary, and no longer trusts the plugin.
func TestOpenRefuses(t *testing.T) {
	good := must.Get(Open(Devices(2), Plugin("cpu")))(t)
	defer good.Close()
	cache := t.TempDir()
	open := func(canary string, change func([]float64)) error {
		b, err := Open(Devices(2), Plugin(good.info.Plugin), CacheDir(cache), func(c *config) {
			c.spoil = func(name string, got []float64) {
				if name == canary {
					change(got)
				}
			}
		})
		if err == nil {
			b.Close()
		}
		return err
	}
	trusted := func() int { return len(must.Get(filepath.Glob(filepath.Join(cache, "trusted", "*")))(t)) }
	for _, c := range []struct {
		canary string
		change func([]float64)
	}{
		{"Float16 matmul with a constant, summed", func(v []float64) { v[0] = math.NaN() }},
		{"all-to-all over 2 devices", func(v []float64) { v[len(v)-1]++ }},
		{"none", nil},
		{"Float32 matmul of two inputs, summed", func(v []float64) { clear(v[len(v)/2:]) }},
		{"all-reduce over 2 devices", func(v []float64) { v[len(v)-1] = 1e30 }},
	} {
		err := open(c.canary, c.change)
		if c.change == nil {
			if err != nil || trusted() != 1 {
				t.Errorf("a right plugin: %v, %d are trusted", err, trusted())
			}
			continue
		}
		if trusted() != 0 || err == nil {
			t.Errorf("%s is wrong: %d plugins are trusted, error %v", c.canary, trusted(), err)
			continue
		}
		for _, part := range []string{"is refused", "it computes wrongly: " + c.canary + ": ", "XLA_FLAGS"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s is wrong: error %q does not say %q", c.canary, err, part)
			}
		}
	}
}

// TestBadFusionsAreRefused opens the plugin with XLA's faulty fusions switched on. If they compute correctly on this
// processor, the backend opens, and then other numbers than the canaries' must be correct as well.
func TestBadFusionsAreRefused(t *testing.T) {
	if os.Getenv("SHARDBOOK_TEST_OPEN") != "" {
		b, err := Open(Devices(2), Plugin("cpu"), AllCanaries())
		if err != nil {
			os.Stdout.WriteString("refused: " + err.Error())
			return
		}
		defer b.Close()
		wrong, err := fusedWrongly(b)
		fmt.Printf("opened, %d values wrong, error %v.", wrong, err)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBadFusionsAreRefused$")
	cmd.Env = append(os.Environ(), "SHARDBOOK_TEST_OPEN=1",
		"XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE")
	output, err := cmd.CombinedOutput()
	text := string(output)
	t.Log(text)
	must.Do(t, err)
	switch {
	case strings.Contains(text, "opened, 0 values wrong, error <nil>."):
	case strings.Contains(text, "refused: ") && strings.Contains(text, "computes wrongly") &&
		strings.Contains(text, "XLA_FLAGS"):
	default:
		t.Errorf("neither opened rightly nor refused with the reason")
	}
}

// fusedWrongly counts the wrong values of matmuls that XLA has fused wrongly: with a constant, and then summed.
func fusedWrongly(b *Backend) (wrong int, err error) {
	const n, quarter = canarySide, 0.25
	x, constants := canaryMatrix(3), slices.Repeat([]float32{quarter}, n*n)
	got, err := graph.CallOnce(b, func(x *graph.Node) *graph.Node {
		product := graph.Dot(x, graph.BroadcastToDims(graph.Scalar(x.Graph(), dtypes.Float32, quarter), n, n)).Product()
		return graph.ConvertDType(graph.ReduceSum(product, 0), dtypes.Float64)
	}, tensors.FromFlatDataAndDimensions(x, n, n))
	if err != nil {
		return 0, err
	}
	return given{"a product", got, columnSums(x, constants)}.compare(nil).Wrong, nil
}
