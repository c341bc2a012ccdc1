package online

import "math"

// State is the softmax statistics of the numbers so far: their maximum M and D = Σe^(xⱼ−M). Start with [Empty], not
// with the zero value.
type State[F Float] struct{ M, D F }

// Empty returns the state of no numbers: M = −Inf, D = 0.
func Empty[F Float]() State[F] { return State[F]{M: lowest[F]()} }

// Add returns the state with one more number (Milakov & Gimelshein 2018, algorithm 3):
//
//	mᵢ = max(mᵢ₋₁, xᵢ)
//	dᵢ = dᵢ₋₁·e^(mᵢ₋₁−mᵢ) + e^(xᵢ−mᵢ)
//
// The factor rescales dᵢ₋₁ from mᵢ₋₁ to mᵢ. No exponent is above 0.
func (s State[F]) Add(x F) State[F] {
	m := max(s.M, x)
	return State[F]{m, s.D*weight(s.M, m) + weight(x, m)}
}

// Merge returns the state of the numbers of both s and t (Milakov & Gimelshein 2018, §3.1):
//
//	m = max(mₛ, mₜ)
//	d = dₛ·e^(mₛ−m) + dₜ·e^(mₜ−m)
//
// It is commutative, associative except for rounding, and [Empty] is its neutral element.
func (s State[F]) Merge(t State[F]) State[F] {
	m := max(s.M, t.M)
	// F prevents fused multiply-adds, which would round the two products differently.
	return State[F]{m, F(s.D*weight(s.M, m)) + F(t.D*weight(t.M, m))}
}

// share returns the softmax of x, one of the numbers: e^(x−M)/D.
func (s State[F]) share(x F) F { return divide(weight(x, s.M), s.D) }

// LogSumExp returns log Σeˣʲ = M + log D, or −Inf for [Empty].
func (s State[F]) LogSumExp() F { return s.M + F(math.Log(float64(s.D))) }

// Trace returns the state after each number.
func Trace[F Float](x []F) []State[F] {
	states := make([]State[F], len(x))
	s := Empty[F]()
	for i := range x {
		s = s.Add(x[i])
		states[i] = s
	}
	return states
}

// weight is e^(x−m), or 0 for x = −Inf, even if m is −Inf as well.
func weight[F Float](x, m F) F {
	if x == lowest[F]() {
		return 0
	}
	return exp(x - m)
}

// divide is w/d, or 0 if d is 0 because no key was seen.
func divide[F Float](w, d F) F {
	if d == 0 {
		return 0
	}
	return w / d
}
