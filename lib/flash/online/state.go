package online

import "math"

// State is what softmax needs to know of the numbers seen so far: their maximum M and D = Σe^(xⱼ−M), which is at least
// 1 once any is seen. It begins as [Empty], not as the zero value.
type State[F Float] struct{ M, D F }

// Empty is the state of no numbers: M = −Inf, D = 0.
func Empty[F Float]() State[F] { return State[F]{M: lowest[F]()} }

// Add takes one number more (Milakov & Gimelshein 2018, algorithm 3):
//
//	mᵢ = max(mᵢ₋₁, xᵢ)
//	dᵢ = dᵢ₋₁·e^(mᵢ₋₁−mᵢ) + e^(xᵢ−mᵢ)
//
// The terms of dᵢ₋₁ were taken against mᵢ₋₁; the one factor takes all of them against mᵢ. No exponent is above 0.
func (s State[F]) Add(x F) State[F] {
	m := max(s.M, x)
	return State[F]{m, s.D*weight(s.M, m) + weight(x, m)}
}

// Merge is the state of what s and t have seen together (Milakov & Gimelshein 2018, §3.1):
//
//	m = max(mₛ, mₜ)
//	d = dₛ·e^(mₛ−m) + dₜ·e^(mₜ−m)
//
// It is commutative, associative but for rounding, and Empty changes nothing: so numbers can be cut into any pieces.
func (s State[F]) Merge(t State[F]) State[F] {
	m := max(s.M, t.M)
	return State[F]{m, F(s.D*weight(s.M, m)) + F(t.D*weight(t.M, m))} // F rounds each product alike: nothing is fused
}

// share is softmax at x, one of the numbers seen: e^(x−M)/D.
func (s State[F]) share(x F) F { return divide(weight(x, s.M), s.D) }

// LogSumExp is log Σeˣʲ = M + log D; −Inf for [Empty].
func (s State[F]) LogSumExp() F { return s.M + F(math.Log(float64(s.D))) }

// Trace returns the states after each of the numbers.
func Trace[F Float](x []F) []State[F] {
	states := make([]State[F], len(x))
	s := Empty[F]()
	for i := range x {
		s = s.Add(x[i])
		states[i] = s
	}
	return states
}

// weight is e^(x−m); 0 for x = −Inf, also where m is −Inf as well.
func weight[F Float](x, m F) F {
	if x == lowest[F]() {
		return 0
	}
	return exp(x - m)
}

// divide is w/d; 0 where d is, which is where nothing was seen.
func divide[F Float](w, d F) F {
	if d == 0 {
		return 0
	}
	return w / d
}
