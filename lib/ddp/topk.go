package ddp

import (
	"context"
	"fmt"
	"math"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// TopK returns a hook that sends only the largest gradients (Stich et al. 2018, "Sparsified SGD with Memory", Algorithm
// 1; Lin et al. 2018, "Deep Gradient Compression"). Of the n elements of a bucket each rank sends to all others the k =
// max(1, round(fraction·n)) with the largest magnitudes, the first ones if some are equal; they are summed in the order
// of the ranks. The other elements are added to the gradients of the next step. Infinities and NaNs count as largest.
//
// A rank contributes 8·k bytes, indices and values, to two all-gathers. In a ring each of N ranks sends 8·k·(N−1)
// bytes; the all-reduce of the full bucket would send 8·n·(N−1)/N, so a fraction of 1/N or more saves nothing.
//
// A rank stores 4 bytes per element. Gradients must be float32. If the fraction is not above 0 and at most 1, the first
// step returns an error.
func TopK(fraction float64) func() Hook {
	return func() Hook { return &feedback{topK(fraction), residuals{}} }
}

func checkFraction(fraction float64) error {
	if fraction > 0 && fraction <= 1 {
		return nil
	}
	return fmt.Errorf("ddp: TopK's fraction is %g: set it above 0, and to at most 1, which sends all", fraction)
}

type topK float64

func (fraction topK) reduce(ctx context.Context, g group.Group, _ Gradients, own, sums []float32) error {
	if err := checkFraction(float64(fraction)); err != nil {
		return err
	}
	n := len(own)
	if n > math.MaxInt32 {
		return fmt.Errorf("ddp: TopK of a bucket of %d elements, which it counts in int32: "+
			"set a smaller Options.BucketBytes", n)
	}
	k := min(n, max(1, int(math.Round(float64(fraction)*float64(n)))))
	places, sent := largest(own, k), make([]float32, k)
	for j, at := range places {
		sent[j], own[at] = own[at], 0
	}
	allPlaces, allSent := make([]int32, k*g.Size()), make([]float32, k*g.Size())
	if err := group.AllGather(ctx, g, places, allPlaces); err != nil {
		return err
	}
	if err := group.AllGather(ctx, g, sent, allSent); err != nil {
		return err
	}
	clear(sums)
	for j, at := range allPlaces {
		sums[at] += allSent[j]
	}
	return nil
}

// largest returns the indices of the k numbers of largest magnitude, in ascending order; of equal ones it takes the
// first. NaNs are larger than infinities. k is at most len(x).
func largest(x []float32, k int) []int32 {
	// Magnitudes are ordered like their bits: a radix select finds the k-th, 11 bits at a time from the highest.
	var kth uint32
	equal := k // in the end, how many of the k equal the k-th
	for _, shift := range [...]int{22, 11, 0} {
		var counts [1 << 11]int
		above := ^uint32(0) << (shift + 11) // the bits that are known
		for _, v := range x {
			if m := magnitude(v); m&above == kth {
				counts[m>>shift%(1<<11)]++
			}
		}
		digit := uint32(1<<11 - 1)
		for ; counts[digit] < equal; digit-- {
			equal -= counts[digit]
		}
		kth |= digit << shift
	}
	places := make([]int32, 0, k)
	for i, v := range x {
		switch m := magnitude(v); {
		case m > kth:
			places = append(places, int32(i))
		case m == kth && equal > 0:
			places = append(places, int32(i))
			equal--
		}
	}
	return places
}

// magnitude is the bits of |x|.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }
