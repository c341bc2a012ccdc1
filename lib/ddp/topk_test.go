package ddp_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
)

// Of four gradients each rank sends the largest one. The others accumulate: 3 becomes 6, which is larger than the 5
// that is new in the second step.
func ExampleTopK() {
	bucket := bucketsOf(4, []int{4})[0]
	err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		hook := ddp.TopK(0.25)()
		for range 2 {
			own := []float32{3, 0, 5, 0}
			if g.Rank() == 1 {
				own = []float32{0, 0, 1, -4}
			}
			if err := hook.Reduce(ctx, g, gradients(bucket, 0, own)); err != nil {
				return err
			}
			if g.Rank() == 0 {
				fmt.Println(own)
			}
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [0 0 5 -4]
	// [6 0 0 -4]
	// <nil>
}

// TestTopKSums compares TopK with sorting, for integers, many of which are equal, whose sums are exact.
func TestTopKSums(t *testing.T) {
	const steps = 20
	for _, world := range worlds {
		for _, n := range []int{1, 2, 7, 100} {
			for _, share := range []float64{0.01, 0.15, 0.5, 1} {
				whole := func(rank, step int, _ []float32) []float32 {
					random := rand.New(rand.NewPCG(uint64(rank), uint64(step)))
					x := make([]float32, n)
					for i := range x {
						x[i] = float32(random.IntN(21) - 10)
					}
					return x
				}
				got, _ := exchange(t, world, steps, ddp.TopK(share), bucketsOf(n, []int{n}), whole)
				kept := make([][]float64, world)
				for rank := range kept {
					kept[rank] = make([]float64, n)
				}
				for step := range steps {
					want := make([]float64, n)
					for rank, kept := range kept {
						order := make([]int, n)
						for i, x := range whole(rank, step, nil) {
							kept[i] += float64(x)
							order[i] = i
						}
						slices.SortStableFunc(order, func(i, j int) int {
							return int(math.Abs(kept[j]) - math.Abs(kept[i]))
						})
						for _, i := range order[:max(1, int(math.Round(share*float64(n))))] {
							want[i] += kept[i]
							kept[i] = 0
						}
					}
					for i, x := range want {
						if float64(got[step][i]) != x {
							t.Fatalf("%d ranks, %g of %d, step %d: element %d is %v, want %v", world, share, n, step, i,
								got[step][i], x)
						}
					}
				}
			}
		}
	}
}

// TestLargest compares the choice with sorting, for numbers of all bit patterns, and for those that differ in few bits.
func TestLargest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		x := make([]float32, 1+random.IntN(50))
		mask := uint32(1)<<random.IntN(33) - 1
		for i := range x {
			x[i] = math.Float32frombits(0xbf8007ff ^ random.Uint32()&mask)
		}
		order := make([]int32, len(x))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(i, j int32) int { return cmp.Compare(rating(x[j]), rating(x[i])) })
		k := 1 + random.IntN(len(x))
		want := slices.Sorted(slices.Values(order[:k]))
		if got := ddp.Largest(x, k); !slices.Equal(got, want) {
			t.Fatalf("the largest %d of %x are at %v, want %v", k, x, got, want)
		}
	}
}

// rating orders numbers by magnitude; NaNs are largest, in the order of their bits.
func rating(x float32) float64 {
	if x != x {
		return math.MaxFloat64 * float64(math.Float32bits(x)&0x7fffffff) / (1 << 32)
	}
	return min(math.Abs(float64(x)), 1e39)
}
