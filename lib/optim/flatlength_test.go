package optim_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

func ExampleFlatLength() {
	w := params.New("w", dtypes.Float32, 100, 100)
	fmt.Println(optim.FlatLength(optim.AdamW(1e-3), w, 3), "of 3334 elements each")
	fmt.Println(optim.FlatLength(optim.Adam8bit(1e-3), w, 3), "of", 14*256, "elements each: 14 blocks")
	// Output:
	// 3334 of 3334 elements each
	// 3584 of 3584 elements each: 14 blocks
}

// quantized are optimizers in which the parameter "w" has blocks of 4 elements if it has at least 10, and others none.
func quantized() map[string]optim.Optimizer {
	eight := optim.Adam8bitOptimizer{AdamWOptimizer: optim.AdamW(0.01), Block: 4, Least: 10}
	onlyW := optim.Group{Has: optim.Named("w"), Optimizer: eight}
	slow := func(r optim.Optimizer) optim.Optimizer { return optim.Scheduled(r, optim.Warmup{Steps: 5}) }
	return map[string]optim.Optimizer{
		"Scheduled":            slow(optim.Grouped(optim.SGD(1), onlyW)),
		"Grouped":              optim.Grouped(optim.AdamW(1), onlyW),
		"the rest of Grouped":  optim.Grouped(eight, optim.Group{Has: optim.Named("other"), Optimizer: optim.Lion(1)}),
		"Scheduled in Grouped": optim.Grouped(optim.SGD(1), optim.Group{Has: optim.Named("w"), Optimizer: slow(eight)}),
		"twice Scheduled, twice Grouped": slow(optim.Grouped(optim.Grouped(optim.SGD(1), onlyW),
			optim.Group{Has: optim.Named("x"), Optimizer: optim.SGD(1)})),
	}
}

// TestFlatLength searches for the smallest length that has room for all elements, in full blocks.
func TestFlatLength(t *testing.T) {
	for _, dims := range [][]int{{}, {1}, {3}, {9}, {10}, {2, 5}, {7, 11}, {4, 4, 4}, {0, 3}} {
		for ranks := 1; ranks <= 9; ranks++ {
			check := func(name string, opt optim.Optimizer, param params.Spec, block int) {
				want := block
				for want*ranks < param.Size() {
					want += block
				}
				if got := optim.FlatLength(opt, param, ranks); got != want {
					t.Errorf("%s, %s%v on %d ranks: %d, want %d", name, param.Name, dims, ranks, got, want)
				}
			}
			w, other := params.New("w", dtypes.Float32, dims...), params.New("other", dtypes.Float32, dims...)
			check("AdamW", optim.AdamW(1), w, 1)
			check("Adafactor", optim.Scheduled(optim.Adafactor(1), optim.Warmup{Steps: 5}), w, 1)
			block := 1
			if w.Size() >= 10 {
				block = 4
			}
			for name, opt := range quantized() {
				check(name, opt, w, block)
				check(name, opt, other, 1)
			}
		}
	}
}

// TestFlatLengthKeepsSteps: with this length, the flat parts of all ranks make the steps of the full parameter, and
// their joined parameter and states are the same bit for bit.
func TestFlatLengthKeepsSteps(t *testing.T) {
	const steps = 3
	for name, opt := range quantized() {
		for _, dims := range [][]int{{3}, {7, 11}, {2, 3, 5}} {
			for _, ranks := range []int{1, 2, 3, 5} {
				c := cutting{dims: dims, ranks: ranks, axis: -1}
				c.length = optim.FlatLength(opt, c.spec(), ranks)
				tree := params.Tree{c.spec()}
				random := rand.New(rand.NewPCG(7, 8))
				args := normal(tree, random)
				for range steps {
					args = append(args, normal(tree, random)...)
				}
				out := mustCall(t, func(in []*graph.Node) (both []*graph.Node) {
					whole := trained(opt, tree, nil, in[0], in[1:])
					parts := make([][]*graph.Node, len(whole))
					for rank := range ranks {
						var grads []*graph.Node
						for _, grad := range in[1:] {
							grads = append(grads, c.of(grad, rank))
						}
						// needs no sums
						for k, x := range trained(opt, tree, c.onRank(in[0].Graph(), rank, nil), c.of(in[0], rank),
							grads) {
							parts[k] = append(parts[k], x)
						}
					}
					for k := range whole {
						both = append(both, join(parts[k], 0, whole[k]), whole[k])
					}
					return both
				}, args...)
				for k := 0; k < len(out); k += 2 {
					if got, want := floats(t, out[k]), floats(t, out[k+1]); !slices.Equal(got, want) {
						t.Errorf("%s, %v on %d ranks: output %d is %v, of the whole %v", name, dims, ranks, k/2, got,
							want)
					}
				}
			}
		}
	}
}
