package precision_test

import (
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
)

// These tests pass while the bugs in docs/upstream.md exist.

func mended(t *testing.T, what, workaround string) {
	t.Helper()
	t.Errorf("upstream has mended %s: remove the workaround in %s, and its section in docs/upstream.md", what,
		workaround)
}

// TestUpstreamGradientOfSeveralAxes contracts axes 0 and 1 of one operand with 1 and 0 of the other.
func TestUpstreamGradientOfSeveralAxes(t *testing.T) {
	_, err := try(devicetest.One(), func(in nodes) nodes {
		y := graph.DotGeneral(in[0], []int{0, 1}, nil, in[1], []int{1, 0}, nil)
		return graph.Gradient(graph.ReduceAllSum(y), in...)
	}, [][][]float32{{{1, 2}, {3, 4}, {5, 6}}}, [][][]float32{{{1, 2}}, {{3, 4}}, {{5, 6}}})
	if err == nil || !strings.Contains(err.Error(), "shape") {
		t.Logf("upstream's error: %v", err)
		mended(t, "gradients of products over several axes", "lib/precision/matmul.go (Dot)")
	}
}

// TestUpstreamGradientsOfHalfProducts counts the matmuls of a gradient in float32.
func TestUpstreamGradientsOfHalfProducts(t *testing.T) {
	wide := 0
	_, err := try(devicetest.One(), func(in nodes) nodes {
		x := graph.ConvertDType(in[0], dtypes.BFloat16)
		y := graph.ReduceAllSum(graph.ConvertDType(graph.Dot(x, x).Product(), dtypes.Float32))
		grads := graph.Gradient(y, in[0])
		for _, n := range y.Graph().Nodes() {
			if n.Type() == graph.NodeTypeDotGeneral && n.DType() == dtypes.Float32 {
				wide++
			}
		}
		return grads
	}, [][]float32{{1, 2}, {3, 4}})
	must.Do(t, err)
	if wide == 0 {
		mended(t, "gradients of half products", "lib/precision/matmul.go (product)")
	}
}

func TestUpstreamHalfConversions(t *testing.T) {
	small := float16.FromFloat32(0x1p-20) // a subnormal number of float16
	nan := bfloat16.FromFloat32(math.Float32frombits(0x7f800001))
	if small.Float32() != 0 && nan.Float32() != nan.Float32() {
		mended(t, "conversions to half types", "lib/precision/codec.go and lib/collective/group/half.go")
	}
}
