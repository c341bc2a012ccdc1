package ddp

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// PowerSGD returns a hook that compresses gradients to low-rank matrices (Vogels et al. 2019, "PowerSGD: Practical
// Low-Rank Gradient Compression for Distributed Optimization", Algorithms 1 and 2). It takes the gradient of a
// parameter as a matrix M whose n rows are its first axis and whose m columns are all others. With Q from the step
// before, random at first, it computes one step of the power iteration,
//
//	P = all-reduce(M·Q), made orthonormal;  Q = all-reduce(Mᵀ·P)
//
// and replaces the sum of the ranks' M by P·Qᵀ, where P is n×rank and Q is m×rank. Each rank adds the error of its own
// gradient, M − P·(Mᵀ·P)ᵀ, to that of the next step. Vectors, and matrices that this would not make smaller, are
// all-reduced uncompressed.
//
// Its two all-reduces have 4·(n+m)·rank bytes for each matrix with (n+m)·rank < n·m, and 4 bytes for each other
// element. A rank stores 4 bytes per element, and 4·(n+3·m)·rank per matrix. Gradients must be float32. A matrix with
// an infinity or a NaN on any rank becomes all NaN, on all ranks, for this step. If rank is below 1 the first step
// returns an error.
func PowerSGD(rank int) func() Hook {
	return func() Hook {
		random := rand.New(rand.NewPCG(1905, 13727))
		return &feedback{&powerSGD{rank, map[int]*factors{}, random}, residuals{}}
	}
}

func checkRank(rank int) error {
	if rank < 1 {
		return fmt.Errorf("ddp: PowerSGD's rank is %d: set it to at least 1", rank)
	}
	return nil
}

type powerSGD struct {
	rank    int
	buckets map[int]*factors
	random  *rand.Rand // the same numbers on all ranks
}

func (s *powerSGD) reduce(ctx context.Context, g group.Group, grads Gradients, own, sums []float32) error {
	if err := checkRank(s.rank); err != nil {
		return err
	}
	b := s.buckets[grads.Unit]
	if b == nil {
		b = newFactors(grads, s.rank)
		s.buckets[grads.Unit] = b
	}
	at := 0
	for _, w := range b.plain {
		at += copy(b.first[at:], own[w.from:w.to])
		clear(own[w.from:w.to])
	}
	for _, m := range b.matrices {
		orthonormalise(m.last, m.columns, s.random)
		m.computeP(own)
	}
	if err := group.AllReduce(ctx, g, b.first, group.Sum); err != nil {
		return err
	}
	at = 0
	for _, w := range b.plain {
		at += copy(sums[w.from:w.to], b.first[at:])
	}
	if len(b.matrices) == 0 {
		return nil
	}
	for _, m := range b.matrices {
		orthonormalise(m.p, m.rows, s.random)
		m.computeQ(own)
		copy(m.own, m.q)
	}
	if err := group.AllReduce(ctx, g, b.second, group.Sum); err != nil {
		return err
	}
	for _, m := range b.matrices {
		if slices.ContainsFunc(m.q, infinite) {
			for i := m.from; i < m.to; i++ {
				own[i], sums[i] = own[i]-sums[i], float32(math.NaN())
			}
			continue // the stored error, up to rounding, and the last Q stay as they were
		}
		m.multiply(sums, own)
		copy(m.last, m.q)
	}
	return nil
}
