package rank_test

import (
	"context"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/xla"
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
	compiled := 0
	compile := func(fn func(in []*graph.Node) []*graph.Node, donated ...int) (rank.Program, error) {
		compiled++
		p, err := xla.CompilePortable(backend, fn, donated...)
		if err == nil {
			t.Cleanup(p.Close)
		}
		return p, err
	}
	p, err := rank.NewPhases(graph.NewGraph(backend, ""), compile, fn, []shapes.Shape{shapes.Make(dtypes.Float32, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Prepare(); err != nil {
		t.Error(err)
	}
	if compiled != 3 {
		t.Errorf("%d programs, want 3: two phases of sums, and the last", compiled)
	}
	if err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		mine := [][]float32{{1, 2}, {3, 6}}[g.Rank()] // the mean is 3, away {-2,-1} and {0,3}, x together {4,8}
		on, err := backend.Put(mine, g.Rank())
		if err != nil {
			return err
		}
		out, err := p.Run(ctx, g, g.Rank(), []any{on})
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
	if _, err := rank.NewPhases(graph.NewGraph(backend, ""), compile, wrong, []shapes.Shape{shapes.Make(dtypes.Float32, 2)}); err == nil {
		t.Error("whole numbers are added up")
	}
}
