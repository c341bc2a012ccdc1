package rank_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/rank"
)

func ExampleFirsts() {
	fmt.Println(rank.Firsts(3), rank.Firsts(0))
	// Output: [0 1 2] []
}

// TestScaled multiplies in float32, and returns the type it was given.
func TestScaled(t *testing.T) {
	x := tensors.FromValue([]bfloat16.BFloat16{bfloat16.FromFloat32(1.0078125), bfloat16.FromFloat32(-256)})
	third := float32(1) / 3
	out, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{rank.Scaled(in[0], in[1])}
	}, x, tensors.FromScalar(third))
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range tensors.MustCopyFlatData[bfloat16.BFloat16](out[0]) {
		if want := bfloat16.FromFloat32([]float32{1.0078125, -256}[i] * third); got != want {
			t.Errorf("element %d is %v, want %v", i, got, want)
		}
	}
}

func TestLostBy(t *testing.T) {
	broken := errors.New("broken")
	err := rank.LostBy("zero", 3, broken)
	if want := "zero: rank 3 is lost: join a new group and load the last checkpoint; it was lost by: broken"; err.Error() != want || !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
