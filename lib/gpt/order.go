package gpt

import "math/bits"

// order is a pseudo-random permutation of 0 to n−1 that is computed rather than stored: a four-round Feistel network
// over the smallest even number of bits that holds n−1 (Luby & Rackoff 1988, "How to Construct Pseudorandom
// Permutations from Pseudorandom Functions"), applied again while its result is n or more (cycle walking: Black &
// Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). It needs fewer than 4 applications on average.
type order struct {
	n    uint64
	half int // bits in each half
	keys [4]uint64
}

// newOrder returns the permutation of 0 to n−1 that seed and epoch choose, for n of at least 1.
func newOrder(n, seed, epoch uint64) order {
	o := order{n: n, half: (bits.Len64(n-1) + 1) / 2}
	key := splitmix64(seed) ^ epoch
	for i := range o.keys {
		key = splitmix64(key)
		o.keys[i] = key
	}
	return o
}

// at returns the i-th element, for i in 0 to n−1.
func (o order) at(i uint64) uint64 {
	mask := uint64(1)<<o.half - 1
	for {
		left, right := i>>o.half, i&mask
		for _, key := range o.keys {
			left, right = right, left^splitmix64(right^key)&mask
		}
		if i = left<<o.half | right; i < o.n {
			return i
		}
	}
}
