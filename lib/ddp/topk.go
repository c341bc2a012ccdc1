package ddp

import (
	"context"
	"fmt"
	"math"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// TopK is a hook that sends only the largest gradients (Stich et al. 2018, "Sparsified SGD with Memory", Algorithm 1;
// Lin et al. 2018, "Deep Gradient Compression"). Of the n elements of a bucket each rank sends the k = max(1,
// round(share·n)) of largest magnitude, of equal ones those that come first, to all others, which add them up in the
// order of the ranks. It keeps the other elements, and adds them to its gradients of the next step. Infinities and NaNs
// count as largest.
//
// A rank gives the group 8·k bytes, indices and values, in two all-gathers. As a ring carries them out each of N ranks
// sends 8·k·(N−1) bytes, where the all-reduce of the whole bucket would take 8·n·(N−1)/N: a share of 1/N or more saves
// nothing.
//
// A rank keeps 4 bytes for each element. Gradients must be float32. A share that is not above 0 and at most 1 is an
// error of the first step.
func TopK(share float64) func() Hook {
	return func() Hook { return &feedback{topK(share), residues{}} }
}

func checkShare(share float64) error {
	if share > 0 && share <= 1 {
		return nil
	}
	return fmt.Errorf("ddp: TopK's share is %g: set it above 0, and to at most 1, which sends all", share)
}

type topK float64

func (share topK) reduce(ctx context.Context, g group.Group, _ Gradients, own, sums []float32) error {
	if err := checkShare(float64(share)); err != nil {
		return err
	}
	n := len(own)
	if n > math.MaxInt32 {
		return fmt.Errorf("ddp: TopK of a bucket of %d elements, which it counts in int32: "+
			"set a smaller Options.BucketBytes", n)
	}
	k := min(n, max(1, int(math.Round(float64(share)*float64(n)))))
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

// largest returns where the k numbers of largest magnitude are, from first to last; of equal ones it takes the first.
// NaNs are larger than infinities. k is at most the number of numbers.
func largest(x []float32, k int) []int32 {
	// Magnitudes are in the order of their bits, so that the k-th is found by counting, 11 bits after 11 from the
	// highest.
	var kth uint32
	equal := k // in the end, how many of those that equal the k-th are among the k
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
