package rank

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
)

// Firsts are the places of the first n inputs, which is where programs have what is donated to them.
func Firsts(n int) []int {
	places := make([]int, n)
	for i := range places {
		places[i] = i
	}
	return places
}

// Scaled returns x, of any floating-point type, times a float32 scalar: a sum times one over the number of its summands is their
// mean. (A quotient would be compiled now to a division, now to a product, and engines would differ in bits.)
//
// It builds a graph, and panics where GoMLX does.
func Scaled(x, factor *graph.Node) *graph.Node {
	return graph.ConvertDType(graph.Mul(graph.ConvertDType(x, dtypes.Float32), factor), x.DType())
}

// LostBy is the error of a rank of an engine that was lost, and by what: what is asked of it after is that.
func LostBy(engine string, rank int, by error) error {
	return fmt.Errorf("%s: rank %d is lost: join a new group and load the last checkpoint; it was lost by: %w", engine, rank, by)
}
