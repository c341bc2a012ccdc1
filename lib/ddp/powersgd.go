package ddp

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// PowerSGD is a hook that sends gradients as products of two thin matrices (Vogels et al. 2019, "PowerSGD: Practical
// Low-Rank Gradient Compression for Distributed Optimization", Algorithms 1 and 2). A parameter's gradient is taken as
// a matrix M of n rows, its first axis, and m columns, all others. From what Q was at the step before, random numbers
// at first,
//
//	P = all-reduce(M·Q), made orthonormal;  Q = all-reduce(Mᵀ·P);  the sum of the ranks' M is taken to be P·Qᵀ
//
// for P of n×rank and Q of m×rank: a step of the power iteration. What a rank's own part of that, P·(Mᵀ·P)ᵀ, is short
// of its M it keeps, and adds to its gradient of the next step. Vectors, and matrices that this would not make smaller,
// are all-reduced as they are.
//
// In two all-reduces a rank gives the group 4·(n+m)·rank bytes for each matrix with (n+m)·rank < n·m, and 4 for each
// element of the others. It keeps 4 bytes for each element, and 4·(n+3·m)·rank for a matrix. Gradients must be float32.
// A matrix with an infinity or a NaN on any rank becomes NaN as a whole, on all ranks, for this step. A rank below 1 is
// an error of the first step.
func PowerSGD(rank int) func() Hook {
	return func() Hook {
		random := rand.New(rand.NewPCG(1905, 13727))
		return &feedback{&powerSGD{rank, map[int]*factors{}, random}, residues{}}
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
	random  *rand.Rand // whose numbers are the same on all ranks
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
	for _, w := range b.whole {
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
	for _, w := range b.whole {
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
			continue // what is kept, but for rounding, and the last Q, stay as they were
		}
		m.multiply(sums, own)
		copy(m.last, m.q)
	}
	return nil
}
