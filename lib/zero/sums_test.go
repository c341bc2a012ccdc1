package zero

import (
	"context"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// TestPhases runs a function with sums of sums on two ranks: those that do not need each other are made in one phase.
func TestPhases(t *testing.T) {
	backend := devicetest.Open(t, 2)
	fn := func(in []*graph.Node, sum func(*graph.Node) *graph.Node) []*graph.Node {
		x := in[0]
		mean := graph.DivScalar(sum(graph.ReduceAllSum(x)), 4)                          // phase 0
		away := graph.Sub(x, mean)                                                      //
		spread := sum(graph.ReduceAllSum(graph.Square(away)))                           // phase 1
		both := sum(x)                                                                  // phase 0
		return []*graph.Node{away, spread, graph.Add(both, sum(graph.Mul(both, away)))} // phase 1
	}
	e := &Engine{backend: backend}
	defer e.Close()
	compile := func(fn func(in []*graph.Node) []*graph.Node, donated ...int) (program, error) {
		p, err := e.device(fn, donated...)
		return onDevice{p}, err
	}
	p, err := newPhases(graph.NewGraph(backend, ""), compile, fn, []shapes.Shape{shapes.Make(dtypes.Float32, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.sums) != 2 {
		t.Errorf("%d phases of sums, want 2", len(p.sums))
	}
	if err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		mine := [][]float32{{1, 2}, {3, 6}}[g.Rank()] // the mean is 3, away {-2,-1} and {0,3}, x together {4,8}
		on, err := backend.Put(mine, g.Rank())
		if err != nil {
			return err
		}
		out, err := p.run(ctx, g, g.Rank(), []any{on})
		if err != nil {
			return err
		}
		for i, want := range [][]float32{{mine[0] - 3, mine[1] - 3}, {14}, {4 - 8, 8 + 16}} {
			for k, got := range tensors.MustCopyFlatData[float32](out[i]) {
				if got != want[k] {
					t.Errorf("rank %d, result %d: %g, want %g", g.Rank(), i, got, want[k])
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wrong := func(in []*graph.Node, sum func(*graph.Node) *graph.Node) []*graph.Node {
		return []*graph.Node{sum(graph.ConvertDType(in[0], dtypes.Int32))}
	}
	if _, err := newPhases(graph.NewGraph(backend, ""), compile, wrong, []shapes.Shape{shapes.Make(dtypes.Float32, 2)}); err == nil {
		t.Error("whole numbers are added up")
	}
}
